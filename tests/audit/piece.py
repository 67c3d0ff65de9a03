"""One piece of a check in this process: `python -m tests.audit.piece CHECK PIECE`, the piece as JSON.

Whatever it prints goes to stderr; the last line of stdout is what it found, as JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict

from tests.audit.checks import CHECKS


def main(name: str, piece: str) -> None:
    with redirect_stdout(sys.stderr):
        found = CHECKS[name].attempt(json.loads(piece))
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
