"""The W&B workspace for pagedlab's runs: `python -m experiments.dashboard` is `pagedlab dashboard`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagedlab.analysis.command import Parser, answer


def main() -> int:
    parser = Parser("dashboard", "The panels of a W&B project, defined in code: saved to the project, or to a file.")
    parser.add_argument("--project", default="pagedlab", help="tracker.project of the runs; pagedlab unless given")
    parser.add_argument("--entity", help="the user or team that it belongs to, needed to save")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the specification there; nothing is sent")
    return answer(parser, dashboard)


def dashboard(words: argparse.Namespace) -> None:
    import json

    from pagedlab.analysis.export import write_file
    from pagedlab.core.errors import ConfigError
    from pagedlab.tracker.dashboard import spec, workspace

    if words.out:
        text = json.dumps(spec(workspace(words.project, words.entity or "")), indent=2)
        write_file(words.out, lambda path: path.write_text(text + "\n", encoding="utf-8"))
        print(f"workspace of {words.project}: {words.out}")
        return
    if not words.entity:
        raise ConfigError("--entity is missing: whose project it is; or --out FILE, to write it and send nothing")
    built = workspace(words.project, words.entity)
    try:
        built.save()
    except Exception as error:  # whatever the network, the server or wandb say
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(f"not saved to {words.entity}/{words.project}: {reason}") from None
    print(f"workspace saved: {built.url}")


if __name__ == "__main__":
    sys.exit(main())
