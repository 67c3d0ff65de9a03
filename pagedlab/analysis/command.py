"""What the commands that read finished runs share: words from the command line, one line for an error, exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from pagedlab.core.errors import PagedlabError
from pagedlab.interrupts import Interrupts, guarded


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the other commands do."""

    def __init__(self, command: str, description: str):
        super().__init__(
            f"pagedlab {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (--help tells more)", file=sys.stderr)
        raise SystemExit(2)


def answer(parser: Parser, body: Callable[[argparse.Namespace], None]) -> int:
    """Run a command on sys.argv; returns its exit code: 2 for an error of the user, which it says in one line."""

    def run(interrupts: Interrupts) -> int:
        words = parser.parse_args()
        try:
            with interrupts.striking():
                body(words)
        except PagedlabError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    return guarded(run)


def console() -> Console:
    """Into a file or a pipe tables keep their width instead of folding at 80 columns."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def note(lines: list[str]) -> None:
    for line in lines:
        print(f"note: {line}", file=sys.stderr)
