"""Where a step's time goes: `pagedlab serve` of the same settings, with a stopwatch at every part of the engine."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.launch import Job
    from pagedlab.run import Lab


def main() -> int:
    return guarded(profile)


def profile(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(lambda job: profile_job(job, interrupts), interrupts, config_name="profile_step").exit_code


def profile_job(job: Job, interrupts: Interrupts) -> None:
    from pagedlab.config import load_settings
    from pagedlab.core.errors import ConfigError
    from pagedlab.engine import serve
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_json
    from pagedlab.recorder.recorder import Recorder
    from pagedlab.run import build
    from pagedlab.sweep.timing import check_plain

    settings = load_settings(job.config)
    check_plain(settings, job.launcher, job.sweep_folder is not None)
    if settings.executor.name != "torch":
        raise ConfigError(f"executor={settings.executor.name}: a profile is of a real model, expected torch")
    lab = build(settings, interrupts)
    recorder, watch = Recorder(), Stopwatch()
    watch.attach(lab, recorder)
    start = time.perf_counter()
    serve(lab.requests, lab.scheduler, lab.executor, recorder)
    total = time.perf_counter() - start
    steps = sum(step.batch > 0 for step in recorder.steps)
    lab.executor.close()
    rows = watch.rows(total, steps)
    facts: dict[str, Any] = {"kernel": lab.executor.kernel_name, "dtype": settings.model.dtype}
    facts["optimized"] = lab.executor.optimized
    facts |= {
        "block_size": settings.block_size,
        "steps": steps,
        "total_s": total,
        "output_tokens": recorder.output_tokens,
    }
    show(rows, facts)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "env.json", environment(settings.seed))
    write_json(job.folder / "summary.json", {**facts, "rows": rows})
    print(f"run folder: {job.folder}")


_PROGRAM = "decode steps as one program"


class Stopwatch:
    """Seconds and calls by part. Parts do not overlap: one inside another is taken off the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._open: list[tuple[str, float]] = []  # part, when it began, later for what is inside
        self._program: Any = None  # keeps its own times, as ticks
        self._ticks: Counter[str] = Counter()

    def enter(self, part: str) -> None:
        self._open.append((part, time.perf_counter()))

    def leave(self) -> None:
        part, began = self._open.pop()
        spent = time.perf_counter() - began
        self.seconds[part] += spent
        self.calls[part] += 1
        if self._open:
            self.seconds[self._open[-1][0]] -= spent

    def around(self, owner: Any, name: str, part: str) -> None:
        """Time every call of owner.name, of this object alone."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return inner(*args, **kwargs)
            finally:
                self.leave()

        setattr(owner, name, timed)

    def attach(self, lab: Lab, recorder: Any) -> None:
        from pagedlab.executor import torch as torch_executor

        executor: Any = lab.executor
        self.around(lab.scheduler, "schedule", "scheduler and memory")
        self.around(lab.scheduler, "commit", "scheduler and memory")
        self.around(recorder, "step", "recorder")
        self.around(executor, "execute", "executor, the rest")
        self.around(executor.inputs, "apply", "input building")
        self.around(executor.inputs, "build", "input building")
        self.around(executor.inputs, "append", "input building")
        self.around(executor, "_logits", "model: element-wise parts and Python")
        self.around(executor.kernel, "write_kv", "KV write")
        self.around(executor.kernel, "decode", "attention, decode")
        self.around(executor.kernel, "prefill", "attention, prefill")
        self.around(torch_executor, "choose", "sampling")
        if executor.program is not None:
            self.around(executor.program, "run", "model: element-wise parts and Python")
            self.around(executor.program, "_go", _PROGRAM)
            self._program, self._ticks = executor.program, executor.program.ticks()
        head = executor.model.get_output_embeddings()
        for module in executor.model.modules():
            part = "head" if module is head else _part_of(module)
            if part is not None:
                module.register_forward_pre_hook(lambda m, args, part=part: self.enter(part))
                module.register_forward_hook(lambda m, args, out: self.leave())

    def rows(self, total: float, steps: int) -> list[dict[str, Any]]:
        parts, calls = dict(self.seconds), Counter(self.calls)
        if spent := parts.pop(_PROGRAM, 0.0):
            ticks = self._program.ticks() - self._ticks
            for part, share in ticks.items():
                parts[part] = parts.get(part, 0.0) + spent * share / ticks.total()
            for part, count in self._program.bodies().items():
                calls[part] += count * self.calls[_PROGRAM]
        parts["engine loop"] = total - sum(parts.values())
        return [
            {
                "part": part,
                "seconds": spent,
                "share": spent / total,
                "ms_per_step": 1e3 * spent / steps,
                "calls": calls[part],
            }
            for part, spent in sorted(parts.items(), key=lambda item: -item[1])
        ]


def _part_of(module: Any) -> str | None:
    """By the kind of a module without children; None for what is left in the model's rest."""
    if any(True for _ in module.children()):
        return None
    kind = type(module).__name__.lower()
    for word, part in (("linear", "GEMMs"), ("conv1d", "GEMMs"), ("norm", "norms"), ("embedding", "embedding, rotary")):
        if word in kind:
            return part
    return "activations" if "act" in kind or kind in ("silu", "gelu", "relu") else None


def show(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{facts['steps']} steps, kernel={facts['kernel']}, {facts['dtype']}: {facts['total_s']:.2f} s"
    table = Table(title=title)
    table.add_column("part")
    for column in ("ms a step", "share", "calls"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row["part"], f"{row['ms_per_step']:.3f}", f"{row['share']:.1%}", str(row["calls"]))
    table.add_section()
    table.add_row("step", f"{sum(row['ms_per_step'] for row in rows):.3f}", f"{sum(row['share'] for row in rows):.1%}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    sys.exit(main())
