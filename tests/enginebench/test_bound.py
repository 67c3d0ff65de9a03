"""The roofline by hand: a layer is either read or computed, whichever takes longer, and so is the head."""

import pytest
import torch

from pagedlab.enginebench.bound import Reader, bound_s
from pagedlab.model.architecture import architecture_of

DENSE = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
LAYERS = 2 * (64 * 16 * (2 * 4 + 2 * 2) + 3 * 64 * 128)  # q, k, v and o; gate, up and down
HEAD = 64 * 1000
MACHINE = {"flops": 1e9, "bytes_per_s": 1e9}


def run(tokens, kv, output):
    return {"step_tokens": tokens, "step_kv_tokens": kv, "output_tokens": output}


def test_one_token_a_step_reads_the_weights_and_many_compute():
    one = bound_s(architecture_of(DENSE), 4, 0, run([1], [0], 1), MACHINE)
    assert one == pytest.approx((LAYERS + HEAD) * 4e-9)  # 4 bytes a weight against 2 operations
    many = bound_s(architecture_of(DENSE), 4, 0, run([10], [0], 10), MACHINE)
    assert many == pytest.approx((LAYERS + HEAD) * 20e-9)


def test_what_is_cached_is_read_in_each_step():
    model = architecture_of(DENSE)
    empty, held = (bound_s(model, 4, 512, run([1, 1], kv, 2), MACHINE) for kv in ([0, 0], [100, 101]))
    assert held - empty == pytest.approx(201 * 512e-9)


def test_experts_have_no_such_bound():
    mixture = {**DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    assert bound_s(architecture_of(mixture), 4, 0, run([1], [0], 1), MACHINE) is None


def test_a_reader_reads_as_many_bytes_on_as_many_threads_as_it_is_told():
    before = torch.get_num_threads()
    try:
        reader = Reader(4096, threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert reader.run()["read_s"] > 0
    assert reader._memory.nbytes == 4096
