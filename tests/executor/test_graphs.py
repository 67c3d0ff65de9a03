"""Recorded decode steps. On a CPU nothing can be recorded, but launches that are run again read the same tensors in the
same places: what is tested is that padded inputs which never move give the tokens of the plain step."""

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.engine import serve
from pagedlab.executor.base import CachePlan
from pagedlab.executor.graphs import DecodeGraphs
from pagedlab.executor.torch import TorchExecutor
from pagedlab.kernels.base import KERNELS
from pagedlab.recorder.recorder import Recorder
from tests.lab import make_scheduler
from tests.torch_lab import conf_model, load, with_answers


class CountingRecord:
    """Stands in for CUDA's recorder: keeps the launches and counts how often each is replayed."""

    def __init__(self):
        self.replays = []

    def __call__(self, launches):
        number = len(self.replays)
        self.replays.append(0)

        def replay():
            self.replays[number] += 1
            return launches()

        return replay


@pytest.fixture
def capturable(monkeypatch):
    monkeypatch.setattr(KERNELS["torch"], "capturable", True)


def test_recorded_decodes_give_the_tokens_of_generate(capturable):
    served = with_answers(*load(conf_model("tiny_llama")), [(5, 20), (17, 9), (3, 14), (30, 25), (9, 1)])
    scheduler = make_scheduler(14, 4, tokens=16, max_num_seqs=6, max_model_len=100)
    record = CountingRecord()
    plan = CachePlan(lambda free: 14, 4, 6, 100)
    executor = TorchExecutor(served.model, served.shape, KERNELS["torch"](), plan, record)
    recorder = Recorder()
    serve(served.requests, scheduler, executor, recorder, audit_every=1)
    executor.close()
    assert [seq.output for seq in recorder.sequences] == served.outputs
    assert recorder.preemptions  # rows and tables moved between replays
    assert len(record.replays) >= 2  # more than one batch size was met
    assert sum(record.replays) > 20


def test_recorded_sizes_cover_every_batch_with_few_recordings():
    def sizes(most):
        return DecodeGraphs(lambda fed: fed.token_ids, lambda launches: launches, most, 1, 1).sizes()

    assert sizes(1)[0] == 1
    assert sizes(6) == [1, 2, 4, 8]
    assert sizes(20) == [1, 2, 4, 8, 16, 24]
    assert all(any(size >= count for size in sizes(256)) for count in range(1, 257))


def test_a_kernel_that_cannot_be_recorded_is_refused():
    model, shape = load(conf_model("tiny_llama"))
    plan = CachePlan(lambda free: 8, 4, 2, 32)
    with pytest.raises(ConfigError, match=r"executor\.cuda_graphs=true: kernel=reference cannot be recorded"):
        TorchExecutor(model, shape, KERNELS["reference"](), plan, CountingRecord())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: real recording cannot be shown")
def test_cuda_records_and_replays():
    from pagedlab.executor.graphs import cuda_record

    x = torch.zeros(4, device="cuda")
    replay = cuda_record(lambda: x * 2)
    x.fill_(3)
    assert replay().tolist() == [6.0] * 4
