"""The W&B workspace of a project: its panels, defined here, so that every project can have the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pagedlab.core.errors import ConfigError
from pagedlab.recorder.metrics import SPLIT

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws

NAME = "pagedlab"


def workspace(project: str, entity: str) -> ws.Workspace:
    """What runs tracked by `tracker=wandb` are looked at with: memory, throughput against waste, latency, prefix hits.
    Needs no network. ConfigError where the package is not there."""
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ImportError:
        raise ConfigError("the package wandb-workspaces is missing: pip install 'pagedlab[dashboard]'") from None

    def bars(title: str, metric: str, groupby: str) -> Any:
        return wr.BarPlot(
            title=title, metrics=[wr.SummaryMetric(metric)], groupby=wr.Config(groupby), groupby_aggfunc="mean"
        )

    shares = [f"kv/{kind}" for kind in SPLIT]
    memory = [
        wr.LinePlot(
            title="KV memory: where every slot is", x="time_s", y=shares, plot_type="stacked-area", max_runs_to_show=1
        ),
        bars("waste by allocator", "kv_waste_fraction", "allocator.name"),
        bars("waste by block size", "kv_waste_fraction", "block_size"),
    ]
    speed = [
        wr.ScatterPlot(
            title="throughput against waste",
            x=wr.SummaryMetric("kv_waste_fraction"),
            y=wr.SummaryMetric("output_tokens_per_s"),
        ),
        bars("output tokens/s by allocator", "output_tokens_per_s", "allocator.name"),
        wr.LinePlot(title="sequences that run", x="time_s", y=["batch/running"]),
    ]
    latency = [
        bars("TTFT, mean, by scheduler", "ttft_s/mean", "scheduler.name"),
        bars("TTFT, p99, by scheduler", "ttft_s/p99", "scheduler.name"),
        bars("TPOT, mean, by scheduler", "tpot_s/mean", "scheduler.name"),
    ]
    cache = [
        bars("prefix hit rate by eviction policy", "prefix_hit_rate", "eviction.name"),
        bars("preemptions by preemption policy", "preemptions", "preemption.name"),
    ]
    sections = {"Memory": memory, "Throughput": speed, "Latency": latency, "Prefix cache and preemption": cache}
    return ws.Workspace(
        name=NAME,
        project=project,
        entity=entity,
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
    )


def spec(built: ws.Workspace) -> dict[str, Any]:
    """What would be sent to the server."""
    found: dict[str, Any] = json.loads(built._to_model().model_dump_json(by_alias=True))
    return found
