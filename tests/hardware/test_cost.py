"""The cost model: prices worked out by hand, properties that no constant may break, and the paper's own figures."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.errors import ConfigError
from pagedlab.hardware.cost import CostModel, StepWork
from pagedlab.settings import HardwareSettings
from tests.hardware.devices import DEVICES, architecture, cost_model, device, read

# A device whose numbers can be multiplied in the head: 1 GB/s, 1 Tflop/s, everything reached, nothing fixed.
ROUND = {
    field.name: 0.0 if field.name.endswith(("_us", "gather_half_tokens", "elementwise_streams")) else 1.0
    for field in fields(HardwareSettings)
    if field.type == "float"
}
# 2 layers, hidden 4, 2 heads of 2, feed-forward 8 without a gate, vocabulary 10.
TINY = {
    "model_type": "opt",
    "vocab_size": 10,
    "hidden_size": 4,
    "ffn_dim": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def tiny(dtype_bytes=2, block_size=4, changes=None, **constants):
    from pagedlab.model.architecture import architecture_of

    hardware = HardwareSettings("round", 1, **ROUND, provenance={})
    hardware = replace(hardware, **{"tflops_16bit": 1.0, **constants})
    return CostModel(architecture_of(TINY | (changes or {})), hardware, dtype_bytes, block_size)


def ns(seconds):
    return pytest.approx(seconds * 1e9)


# ---- by hand --------------------------------------------------------------------------------------------------------


def test_a_product_takes_the_longer_of_reading_and_computing():
    # 3 x 4 times 4 x 8: moves 2 bytes x (32 + 3 x 12) = 136 bytes, 136 ns; computes 192 flop, 0.192 ns.
    assert ns(tiny().gemm_s(3, 4, 8)) == 136
    # At 1 Gflop/s computing is the longer one; a fixed part comes on top.
    assert ns(tiny(tflops_16bit=0.001, gemm_fixed_us=1).gemm_s(3, 4, 8)) == 192 + 1000
    assert tiny(gemm_fixed_us=1).gemm_s(0, 4, 8) == 0


def test_with_a_norm_of_one_reading_and_computing_come_one_after_the_other():
    constants = {"tflops_16bit": 0.001, "roofline_norm": 1.0}
    assert ns(tiny(**constants).gemm_s(3, 4, 8)) == 192 + 136
    assert ns(tiny(**constants | {"roofline_norm": 2.0}).gemm_s(3, 4, 8)) == (192**2 + 136**2) ** 0.5
    # Decode: the fixed part of 2 sequences, and 2 x 2 heads x 2 x 2 bytes of each of 8 slots; 2 layers.
    cost = tiny(roofline_norm=1.0, decode_fixed_us=1)
    assert ns(cost.decode_attention_s(2, 8)) == 2 * (1000 + 128)
    assert ns(tiny(decode_fixed_us=1).decode_attention_s(2, 8)) == 2 * 1000


def test_products_that_are_separate_each_have_their_fixed_part():
    gated = {"model_type": "llama", "num_key_value_heads": 1, "intermediate_size": 8}
    together, apart = (tiny(changes=gated, gemm_fixed_us=1, separate_products=of) for of in (False, True))
    assert together.products() == [(4, 8), (4, 4), (4, 16), (8, 4)]
    assert apart.products() == [(4, 4), (4, 2), (4, 2), (4, 4), (4, 8), (4, 8), (8, 4)]
    # 2 layers, 3 more products: 2 + 1 read the 4 numbers of the token once more each, 2 bytes.
    assert ns(apart.dense_s(1) - together.dense_s(1)) == 2 * (3 * 1000 + 3 * 4 * 2)


def test_every_chunk_has_its_fixed_part_and_what_a_mask_hides_may_cost():
    cost = tiny(prefill_fixed_us=1, prefill_chunk_us=3)
    plain = tiny()
    for chunks in ([(4, 0)], [(4, 0), (3, 8)]):
        extra = cost.prefill_attention_s(chunks) - plain.prefill_attention_s(chunks)
        assert ns(extra) == 2 * 1000 * (1 + 3 * len(chunks))
    # At 1 Gflop/s: 4 x 2 heads x 2 flop for each of 4 x (8 + 4) pairs instead of 4 x (8 + 2), in 2 layers.
    slow = {"tflops_16bit": 0.001}
    whole, half = (tiny(prefill_skipped_share=of, **slow).prefill_attention_s([(4, 8)]) for of in (0.0, 1.0))
    assert ns(whole - half) == 2 * 16 * 4 * 2


def test_a_decode_step_by_hand():
    cost = tiny()
    # One layer, 2 tokens: qkv 4 x 12, out 4 x 4, up 4 x 8, down 8 x 4.
    # Bytes: 2 x (48 + 2 x 16) + 2 x (16 + 2 x 8) + 2 x (32 + 2 x 12) + 2 x (32 + 2 x 12) = 160 + 64 + 112 + 112.
    assert ns(cost.dense_s(2)) == 2 * 448
    # Keys and values: 2 x 2 heads x 2 x 2 bytes = 16 a token and layer; contexts 5 and 3 take 3 blocks of 4.
    assert ns(cost.decode_attention_s(2, 12)) == 2 * 12 * 16
    # Head 4 x 10: 2 x (40 + 2 x 14).
    assert ns(cost.head_s(2)) == 136
    work = StepWork(tokens=2, sequences=2, decodes=2, decode_slots=12, sampled=2)
    assert ns(cost.step_s(work)) == 896 + 384 + 136
    host = tiny(host_step_us=1, host_sequence_us=0.5, host_block_us=0.25, host_admission_us=2)
    assert ns(host.host_s(2, 1, 3)) == 1000 + 1000 + 2000 + 750
    assert ns(host.step_s(work)) == 896 + 384 + 136 + 2000
    assert ns(host.step_s(work, overlap=True)) == 2000


def test_a_prompt_chunk_by_hand():
    cost = tiny(tflops_16bit=0.000_001)  # 1 Mflop/s
    # 4 x 2 heads x 2 x l (c + l / 2), l = 4 after c = 8: 16 x 4 x 10 = 640 flop, 640 us a layer. Bytes: 4 new tokens
    # x 2 x 2 x (2 + 2) x 2 bytes, 8 cached x 16: 256 ns.
    assert ns(cost.prefill_attention_s([(4, 8)])) == 2 * (640e3 + 128 + 128)
    assert cost.prefill_attention_s([]) == 0


def test_the_fixed_parts_of_decode_attention_are_a_floor():
    cost = tiny(decode_fixed_us=10, decode_sequence_us=4, decode_stream_us=1)
    assert ns(cost.decode_attention_s(2, 12)) == 2 * (10_000 + 4000 * 2 * 2 / 8)
    assert ns(cost.decode_attention_s(2, 2000)) == 2 * (1000 + 32_000)


def test_small_blocks_lose_bandwidth_to_gathering():
    # The efficiency holds for blocks of 16. With a half size of 16, 16 / 32 is the reference and 4 / 20 the share of 4.
    wide, narrow = (tiny(block_size=size, gather_half_tokens=16.0) for size in (16, 4))
    assert narrow.decode_attention_s(1, 16) / wide.decode_attention_s(1, 16) == pytest.approx((16 / 32) / (4 / 20))


def test_a_32_bit_model_moves_twice_the_bytes_and_computes_at_half_the_rate():
    assert ns(tiny(4).gemm_s(3, 4, 8)) == 272
    assert ns(tiny(4, tflops_16bit=0.001).gemm_s(3, 4, 8)) == 384


def test_two_devices_halve_what_they_hold_and_pay_to_join():
    one, two = tiny(), tiny(tensor_parallel=2, all_reduce_us=1)
    # qkv 4 x 6, out 2 x 4, up 4 x 4, down 4 x 4, 2 tokens: 2 x (24+20 + 8+12 + 16+16 + 16+16) bytes. Two all-reduces:
    # 1 us and 2 (g - 1) / g x 2 x 4 x 2 bytes each.
    assert ns(two.dense_s(2)) == 2 * (256 + 2 * (1000 + 16))
    assert ns(two.decode_attention_s(2, 12)) == ns(one.decode_attention_s(2, 12)).expected / 2
    assert two.kv_bytes * 2 == one.kv_bytes


def test_swapping_a_block_is_two_copies_a_layer():
    cost = tiny(swap_copy_us=3)
    assert ns(cost.swap_in_s(5)) == 5 * 4 * 16 * 2 + 5 * 2 * 2 * 3000
    assert cost.swap_out_s(5) == cost.swap_in_s(5)


def test_a_direction_whose_constants_are_known_has_its_own():
    cost = tiny(swap_copy_us=3, pcie_out_gb_s=2, swap_out_copy_us=1)
    assert ns(cost.swap_in_s(5)) == 5 * 4 * 16 * 2 + 5 * 2 * 2 * 3000
    assert ns(cost.swap_out_s(5)) == 5 * 4 * 16 * 2 / 2 + 5 * 2 * 2 * 1000


def test_copying_a_block_reads_and_writes_it():
    cost = tiny(copy_fixed_us=1)
    assert ns(cost.copy_s(5)) == 2 * 1000 + 2 * 5 * 4 * 16 * 2
    assert cost.copy_s(0) == 0


def test_grouped_queries_share_keys_and_values():
    assert architecture("llama3_8b").shape.kv_bytes_per_token(2) == 131_072
    assert cost_model("llama3_8b").kv_bytes == 4096
    # With more devices than key-value heads two hold the same head.
    assert cost_model("llama3_8b", tensor_parallel=16).kv_bytes == 512


def test_latent_attention_caches_one_vector_for_all_heads():
    assert architecture("deepseek_v2_lite").shape.kv_bytes_per_token(2) == 31_104
    for g in (1, 2, 8):
        assert cost_model("deepseek_v2_lite", tensor_parallel=g).kv_bytes == (512 + 64) * 2


def test_experts_are_read_as_tokens_meet_them():
    changes = {
        "model_type": "mixtral",
        "intermediate_size": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": True,
    }
    cost = tiny(changes=changes)
    attention = 2 * (48 + 16) + 2 * (16 + 8)
    # One token: 2 rows over 4 (1 - 1/2) = 2 experts; gate and up 4 x 16, down 8 x 4, router 4 x 4.
    rows, touched = 2, 2
    experts = 2 * (touched * 64 + rows * 20) + 2 * (touched * 32 + rows * 12) + 2 * (16 + 8)
    assert ns(cost.dense_s(1)) == 2 * (attention + experts)
    # Many tokens meet all four.
    attention = 2 * (48 + 50 * 16) + 2 * (16 + 50 * 8)
    experts = 2 * (4 * 64 + 100 * 20) + 2 * (4 * 32 + 100 * 12) + 2 * (16 + 50 * 8)
    assert ns(cost.dense_s(50)) == 2 * (attention + experts)


# ---- properties -----------------------------------------------------------------------------------------------------

MODEL_NAMES = ("opt_13b", "llama3_70b", "mixtral_8x7b", "deepseek_v2_lite", "smollm2_135m")


@st.composite
def works(draw):
    decodes = draw(st.integers(0, 300))
    slots = decodes * draw(st.integers(1, 4096))
    chunks = draw(st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 5000)), max_size=3))
    sampled = decodes + draw(st.integers(0, len(chunks)))
    tokens = decodes + sum(new for new, _ in chunks)
    return StepWork(tokens, decodes + len(chunks), decodes, slots, sampled, draw(st.integers(0, 5)), 9, chunks)


@given(works(), st.sampled_from(MODEL_NAMES), st.sampled_from(DEVICES), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_better_device_is_never_slower(work, model, name, overlap):
    base = device(name)
    before = cost_model(model, name).step_s(work, overlap)
    assert before > 0
    for better in (
        {"bandwidth_gb_s": 2 * base.bandwidth_gb_s},
        {"tflops_16bit": 2 * base.tflops_16bit},
        {"host_step_us": base.host_step_us / 2},
        {"gemm_fixed_us": 0},
    ):
        assert cost_model(model, name, **better).step_s(work, overlap) <= before


@given(works(), st.sampled_from(MODEL_NAMES), st.sampled_from(DEVICES), st.data())
@settings(max_examples=150, deadline=None)
def test_more_work_is_never_faster(work, model, name, data):
    cost = cost_model(model, name)
    more = [
        replace(work, decode_slots=work.decode_slots + 16),
        replace(work, admitted=work.admitted + 1),
        replace(work, tokens=work.tokens + 1, decodes=work.decodes + 1, decode_slots=work.decode_slots + 16),
        replace(work, sampled=work.sampled + 1),
    ]
    if work.chunks:
        new, cached = work.chunks[0]
        rest = work.chunks[1:]
        more.append(replace(work, chunks=[(new + 1, cached), *rest], tokens=work.tokens + 1))
        more.append(replace(work, chunks=[(new, cached + 1), *rest]))
    assert cost.step_s(data.draw(st.sampled_from(more))) >= cost.step_s(work)


@given(st.sampled_from(DEVICES), st.integers(1, 200), st.integers(1, 4000))
@settings(max_examples=100, deadline=None)
def test_twice_everything_but_the_fixed_parts_is_half_the_time(name, decodes, context):
    fixed = {field.name: 0.0 for field in fields(HardwareSettings) if field.name.endswith("_us")}
    base = device(name)
    twice = {"bandwidth_gb_s": 2 * base.bandwidth_gb_s, "tflops_16bit": 2 * base.tflops_16bit}
    work = StepWork(decodes, decodes, decodes, decodes * context, decodes)
    before = cost_model("llama2_7b", name, **fixed).step_s(work)
    assert cost_model("llama2_7b", name, **fixed, **twice).step_s(work) == pytest.approx(before / 2)


# ---- the paper ------------------------------------------------------------------------------------------------------


# Read from the vector figures of the PagedAttention paper (Kwon et al., SOSP 2023, arXiv:2309.06180, CC BY 4.0).
# Fig. 1 right: batch -> tokens a second; two points of vLLM's memory curve (sequences, GB); Fig. 19a: block size -> ms.
FIG_1_THROUGHPUT = {4: 146.9446, 8: 267.3348, 12: 378.8606, 16: 482.5673, 20: 577.1002, 24: 659.4567, 28: 740.7982}
FIG_1_THROUGHPUT |= {32: 810.9803, 36: 881.7883, 40: 921.8798}
FIG_1_MEMORY = (5.825, 28), (38.3552, 39)
FIG_19A_IN_AND_OUT = {1: 137.4447, 8: 47.098, 16: 40.1475, 64: 34.9105, 256: 33.4069}


def test_fig_1_right_of_the_paper_within_five_percent_at_every_batch_size():
    """Throughput of OPT-13B on an A100-40GB against the batch. The context of a sequence is not printed; the memory
    curve of the same figure says it: 1 GB more for every 2.958 sequences, 413 tokens of 819,200 bytes each."""
    first, last = FIG_1_MEMORY
    context = round((last[1] - first[1]) * 1e9 / (last[0] - first[0]) / 819_200)
    assert context == 413
    cost = cost_model("opt_13b", "a100_40gb")
    for batch, published in FIG_1_THROUGHPUT.items():
        slots = batch * -(-context // 16) * 16
        step = cost.step_s(StepWork(batch, batch, batch, slots, batch))
        assert batch / step == pytest.approx(published, rel=0.05), batch


@pytest.mark.parametrize(
    ("model", "name", "devices", "published"),
    [("opt_13b", "a100_40gb", 1, 15_700), ("opt_66b", "a100_40gb", 4, 9_700), ("opt_175b", "a100_80gb", 8, 60_100)],
)
def test_the_kv_memory_that_is_left_is_the_papers_table_1(model, name, devices, published):
    cost = cost_model(model, name, tensor_parallel=devices)
    slots = cost.free_bytes(2560, 256) / cost.model.shape.kv_bytes_per_token(2)
    assert slots == pytest.approx(published, rel=0.06)


@pytest.mark.parametrize(("block", "published"), FIG_19A_IN_AND_OUT.items())
def test_fig_19a_swapping_in_and_out_within_a_twentieth(block, published):
    """256 tokens are assumed; the constants of both directions are fitted on this very figure."""
    cost = cost_model("opt_13b", "a100_40gb", block_size=block)
    assert 1e3 * (cost.swap_in_s(256 // block) + cost.swap_out_s(256 // block)) == pytest.approx(published, rel=0.05)


# ---- what is refused, what is said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "devices", "what"), [("opt_13b", 3, "40 attention heads"), ("mixtral_8x7b", 64, "32")]
)
def test_a_model_is_divided_evenly_or_not_at_all(model, devices, what):
    with pytest.raises(ConfigError, match=rf"hardware.tensor_parallel={devices}: expected a divisor .*{what}"):
        cost_model(model, tensor_parallel=devices)


@pytest.mark.parametrize("name", DEVICES)
def test_every_constant_says_where_it_is_from(name):
    data = read("hardware", name)
    constants = {field.name for field in fields(HardwareSettings)} - {"name", "provenance", "calibration"}
    assert set(data["provenance"]) == constants
    for constant, source in data["provenance"].items():
        kind, _, words = source.partition(": ")
        assert kind in ("datasheet", "fitted", "default"), constant
        assert len(words) > 5, constant


def test_the_peaks_are_dense_and_one_way():
    """Sheets print sparse peaks and both directions in the larger letters."""
    peaks = {name: (device(name).tflops_16bit, device(name).bandwidth_gb_s, device(name).link_gb_s) for name in DEVICES}
    assert peaks["h100"] == (989.4, 3350, 450)
    assert peaks["l4"][0] == 121
    assert peaks["a10g"][0] == 70
    assert peaks["mi300x"][:2] == (1307.4, 5300)
    assert peaks["a100_40gb"] == (312, 1555, 300)
