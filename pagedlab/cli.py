"""The console command: `pagedlab serve ...` is `python -m experiments.serve ...`."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "serve": "serve a workload with a real model or a fake one, measure KV memory and latency; -m sweeps",
    "bench_simulator": "requests a second that the simulator serves, by number of requests",
    "bench_inputs": "what it costs to build the inputs of a decode step",
}


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        command = sys.argv.pop(1)
        return int(import_module(f"pagedlab.experiments.{command}").main())
    listed = "\n".join(f"  {name:14} {text}" for name, text in COMMANDS.items())
    usage = f"usage: pagedlab COMMAND [key=value ...]\n\ncommands:\n{listed}\n\npagedlab COMMAND --help tells more."
    if len(sys.argv) == 1 or sys.argv[1] in ("-h", "--help"):
        print(usage)
        return 0
    print(f"error: {sys.argv[1]}: no such command, expected one of {', '.join(COMMANDS)}", file=sys.stderr)
    return 2
