"""Weights & Biases. The run is written as an offline run inside its own folder; `online` then uploads that.

Writing happens in this process, where a further run of a sweep costs less than a second. It touches no network, so
it cannot hang on one. Uploading is left to `wandb sync` in a process of its own, for only a process can be killed
for certain, and a crash of wandb's service stays outside. The offline run outlives a failed upload, so that it can
be sent later; `wandb.init(mode="online")` writes nothing at all when the server is dead at the start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedlab.recorder.redact import redact, redact_text
from pagedlab.settings import WandbSettings
from pagedlab.tracker import rundata
from pagedlab.tracker.area import stacked_area
from pagedlab.tracker.base import TRACKERS

if TYPE_CHECKING:
    import wandb

# A point costs wandb over a millisecond, and its page draws no more of a line than it has pixels.
MAX_POINTS = 500
MAX_REQUESTS = 10_000


@TRACKERS.register("wandb")
class WandbTracker:
    """Where things appear: config, summary (`ttft_s/p50`), series kv/* and batch/* over time_s, table `requests`,
    picture `memory_split` (a stacked area). Long runs are thinned evenly to 500 points and 10,000 requests, ends
    included."""

    def __init__(self, settings: WandbSettings):
        self.settings = settings

    def publish(self, run_dir: Path, name: str, group: str | None) -> None:
        # wandb falls back to the temporary folder when it cannot write here; this raises instead.
        (run_dir / "wandb").mkdir(exist_ok=True)
        with inside(run_dir):
            log_dir = self._write(run_dir, redact_text(name), self.settings.group or group)
        if self.settings.mode == "online":
            upload(run_dir, log_dir, self.settings.timeout_s)

    def _write(self, run_dir: Path, name: str, group: str | None) -> Path:
        """Write the offline run and return its folder."""
        import wandb

        run = wandb.init(
            # Given here because wandb reads WANDB_MODE only once in a process.
            mode="offline",
            # The caller may have a run of its own open: leave that alone.
            reinit="create_new",
            dir=str(run_dir),
            project=self.settings.project,
            entity=self.settings.entity,
            group=group and redact_text(group),
            job_type=self.settings.job_type,
            tags=list(self.settings.tags),
            name=name,
            config=rundata.config(run_dir),
            settings=quiet_settings(self.settings.timeout_s),
        )
        # Not `with run`: that prints a traceback of its own.
        try:
            _log(run, run_dir)
            if self.settings.report:
                _log_report(run, run_dir)
        except BaseException:
            with suppress(Exception):
                run.finish(exit_code=1)
            raise
        run.finish()
        log_dir = Path(run.dir).parent
        check_written(log_dir)
        return log_dir


def quiet_settings(timeout_s: float) -> wandb.Settings:
    """For many short runs, and without what the run folder already holds: argv (it may carry secrets), the git
    remote, the machine, the console. `finish_timeout` bounds the wait for wandb's service, should that be stuck."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        disable_git=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=timeout_s,
        finish_timeout=timeout_s,
        finish_timeout_raises=True,
        x_service_wait=timeout_s,
    )


def _log(run: wandb.Run, run_dir: Path) -> None:
    import wandb

    # An axis of its own, never `step=`: wandb drops what comes with a step below the last one, and says nothing.
    run.define_metric("time_s", hidden=True, summary="none")
    for series in ("kv/*", "batch/*"):
        run.define_metric(series, step_metric="time_s", summary="none")
    points = rundata.timeline(run_dir, MAX_POINTS)
    for point in points:
        run.log(point)

    columns, rows = rundata.requests(run_dir, MAX_REQUESTS)
    last: dict[str, Any] = {"requests": wandb.Table(columns=columns, data=rows)}
    if points:
        last["memory_split"] = _memory_split(points)
    run.log(last)
    run.summary.update(redact(rundata.summary(run_dir)))


def _log_report(run: wandb.Run, run_dir: Path) -> None:
    """The page as a file of an artifact, of which W&B keeps every version."""
    import wandb

    from pagedlab.analysis.report.report import report
    from pagedlab.analysis.runs import find_runs

    artifact = wandb.Artifact(f"report-{run.id}", type="report")
    with artifact.new_file("report.html", encoding="utf-8") as file:
        file.write(report(run_dir, find_runs(run_dir).runs[:1]))
    run.log_artifact(artifact)


def _memory_split(points: list[rundata.Row]) -> Any:
    """Share of the pool in each state over time; they sum to 1."""
    import wandb

    kinds = sorted((name for name in points[0] if name.startswith("kv/")), key=lambda name: name == "kv/free")
    shares = {name.removeprefix("kv/"): [point.get(name, 0.0) for point in points] for name in kinds}
    return wandb.Html(stacked_area([point["time_s"] for point in points], shares), inject=False)


def check_written(log_dir: Path) -> None:
    """wandb's service keeps a full disk to itself; a file of our own does not."""
    probe = log_dir / "probe"
    try:
        probe.write_bytes(bytes(1 << 16))
    finally:
        probe.unlink(missing_ok=True)
    if not any(file.stat().st_size for file in log_dir.glob("run-*.wandb")):
        raise OSError(f"wandb wrote no log into {log_dir}")


@contextmanager
def inside(run_dir: Path) -> Iterator[None]:
    """Keep wandb inside the run folder: else each table leaves a copy in the home directory, and a run that calls
    itself offline reports to wandb's maker at exit. What the user has set is left as it is."""
    # Not undone: wandb looks at it again at exit.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    ours = {"WANDB_DATA_DIR", "WANDB_CACHE_DIR"} - set(os.environ)
    os.environ |= dict.fromkeys(ours, str(run_dir / "wandb"))
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def upload(run_dir: Path, log_dir: Path, timeout_s: float) -> None:
    """Upload an offline run, or raise after `timeout_s` seconds at the latest.

    `run` kills the command on a timeout and on Ctrl-C; wandb's service then ends by itself within 0.2 s.
    """
    later = f"upload it later with: wandb sync {log_dir}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        # Without WANDB_SERVICE, or the command would use the service of this process, which would outlive it.
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"} | {
            "WANDB_MODE": "online",
            "WANDB_DIR": str(run_dir),
            "WANDB_CACHE_DIR": scratch,
            # Three tries, about 8 s, then it names the cause; by default it was still trying after 25 s.
            "WANDB__GRAPHQL_RETRY_MAX": os.environ.get("WANDB__GRAPHQL_RETRY_MAX", "2"),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "wandb", "sync", str(log_dir)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
                # Ctrl-C is for us to handle: the command would answer it with a traceback and a wait.
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"not uploaded within {timeout_s:g} s, {later}") from None
    # `wandb sync` exits with 0 when the server refused everything; it leaves this mark only when all has arrived.
    if not any(log_dir.glob("*.synced")):
        lines = [line for line in done.stdout.splitlines() if "error" in line.lower() and "error logs at" not in line]
        raise ConnectionError(f"not uploaded ({' '.join(lines)[:300]}), {later}")
