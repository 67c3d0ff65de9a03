"""Results as a versioned artifact of W&B: `python -m experiments.publish DIR` is `pagedlab publish DIR`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer


def main() -> int:
    parser = Parser("publish", "The tables, plots and pages of a folder as a versioned artifact of W&B.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="curated results, or a sweep")
    parser.add_argument("--name", help="of the artifact; the folder's unless given")
    parser.add_argument("--project", default="pagedlab", help="pagedlab unless given")
    parser.add_argument("--entity", help="the user or team that the project belongs to; your default unless given")
    parser.add_argument("--online", action="store_true", help="upload it; else it is written for `wandb sync`")
    parser.add_argument("--timeout-s", type=float, default=120.0, metavar="S", help="for the upload; 120 unless given")
    return answer(parser, publish)


def publish(words: argparse.Namespace) -> None:
    from pagedlab.core.errors import ConfigError
    from pagedlab.settings import WandbSettings
    from pagedlab.tracker.artifacts import publish_results

    name = words.name or words.folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name):
        raise ConfigError(f"--name {name}: expected letters, digits, -, _ and . (128 at most)")
    mode = "online" if words.online else "offline"
    settings = WandbSettings("wandb", mode, words.project, words.entity, None, "results", [], words.timeout_s)
    try:
        log_dir = publish_results(words.folder, name, settings)
    except (OSError, TimeoutError) as error:
        raise ConfigError(f"{words.folder}: {type(error).__name__}: {error}") from None
    sent = "uploaded" if words.online else f"send it with: wandb sync {log_dir}"
    print(f"artifact {name}, {sent}")


if __name__ == "__main__":
    sys.exit(main())
