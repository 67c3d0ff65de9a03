"""Parts run side by side in processes; what measures this machine runs after them, in this one."""

from hydra import initialize_config_module

from pagedlab.paper import figure18
from pagedlab.paper.bench import Bench
from pagedlab.paper.figure1 import Figure1
from pagedlab.paper.pool import run_all


def test_what_measures_the_machine_runs_last_and_here(monkeypatch):
    monkeypatch.setattr(figure18, "kernel_us", lambda batch, context: ("mine", 3.0, 2.0, 5.0, 1.5))  # of this process
    simulated = [("18", "18a simulated"), *(("1", part) for part in Figure1().parts())]
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        done = list(run_all([("18", "18a here"), *simulated], Bench(60, (0,)), workers=2))
    names = [name for name, _ in done]
    assert set(names[:-1]) == set(simulated)
    assert names[-1] == ("18", "18a here")
    assert [p.value for p in done[-1][1]] == [3.0, 2.0, 5.0, 50.0] * 6
