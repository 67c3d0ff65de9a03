"""Finished results as a versioned artifact of W&B: what `results/NAME` holds under git, under one name in a project.

W&B gives an artifact a new version when its files differ from the last one's, and none when they do not.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pagedlab.core.errors import ConfigError
from pagedlab.recorder.redact import redact_text
from pagedlab.settings import WandbSettings
from pagedlab.tracker.wandb import check_written, inside, quiet_settings, upload

if TYPE_CHECKING:
    import wandb

KINDS = frozenset({".md", ".csv", ".json", ".yaml", ".html", ".svg", ".png", ".tex", ".parquet"})
MOST_BYTES = 64 * 2**20


def curated_files(folder: Path) -> list[Path]:
    """The files to publish: of a kind that people read, below `folder`, without runs of their own (folders that hold a
    `requests.parquet`) and what W&B wrote. ConfigError where there are none, or more than 64 MiB."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    runs = {path.parent for path in folder.rglob("requests.parquet")}
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix in KINDS and path.is_file() and not path.is_symlink()
        if not any(part == "wandb" or part.startswith(".") for part in path.relative_to(folder).parts)
        if not runs & {path.parent, *path.parents} or path.parent == folder
    ]
    if not found:
        raise ConfigError(f"{folder}: nothing to publish, expected files like {', '.join(sorted(KINDS))}")
    size = sum(path.stat().st_size for path in found)
    if size > MOST_BYTES:
        raise ConfigError(f"{folder}: {size / 2**20:.0f} MiB to publish, expected {MOST_BYTES // 2**20} at most")
    return found


def publish_results(folder: Path, name: str, settings: WandbSettings) -> Path:
    """Log the files as the artifact `name` of type `results`, by an offline run inside the folder, which is uploaded
    with mode=online; returns where that run lies. OSError and ConnectionError for what went wrong there."""
    files = curated_files(folder)
    (folder / "wandb").mkdir(exist_ok=True)
    with inside(folder):
        log_dir = _write(folder, name, files, settings)
    if settings.mode == "online":
        upload(folder, log_dir, settings.timeout_s)
    return log_dir


def _write(folder: Path, name: str, files: list[Path], settings: WandbSettings) -> Path:
    import wandb

    run = wandb.init(
        mode="offline",
        reinit="create_new",
        dir=str(folder),
        project=settings.project,
        entity=settings.entity,
        job_type=settings.job_type,
        name=redact_text(name),
        settings=quiet_settings(settings.timeout_s),
    )
    try:
        run.log_artifact(_artifact(folder, name, files))
    except BaseException:
        with suppress(Exception):
            run.finish(exit_code=1)
        raise
    run.finish()
    log_dir = Path(run.dir).parent
    check_written(log_dir)
    return log_dir


def _artifact(folder: Path, name: str, files: list[Path]) -> wandb.Artifact:
    import wandb

    artifact = wandb.Artifact(name, type="results", metadata={"files": len(files)})
    for path in files:
        artifact.add_file(str(path), name=path.relative_to(folder).as_posix(), skip_cache=True)
    return artifact
