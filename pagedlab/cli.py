"""The console command: `pagedlab serve ...` is `python -m experiments.serve ...`."""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "serve": "serve a workload with a real model or a fake one, measure KV memory and latency; -m sweeps",
    "plan": "what `serve -m` with the same words would do: jobs, which are refused, which are done, how long",
    "results": "finished runs as a table: filter, sort, SQL, export",
    "compare": "two runs or sweeps, pair by pair: differences, intervals, what is more than chance",
    "ablate": "what an axis of a sweep does: effects, interactions, the best settings, tables and plots",
    "report": "a run or a sweep on one HTML page that opens offline",
    "trace": "a run as a trace for Perfetto: steps, copies, preemptions, requests by phase",
    "publish": "curated results as a versioned artifact of W&B",
    "dashboard": "the panels of a W&B project, saved there or written to a file",
    "replay": "replay a trace through eviction policies alone: hit ratio by policy and capacity, with bounds",
    "paper": "the figures of the PagedAttention paper, in simulation, beside the published values",
    "bench_eviction": "what a reference costs in a flat cache, by eviction policy and capacity",
    "bench_simulator": "requests a second that the simulator serves, by number of requests",
    "calibrate": "measure this machine for a minute and fit the simulator's cost model to it",
    "fidelity": "serve a workload for real and in simulation: how far the two are apart",
    "bench_engine": "how fast the engine is on a CPU, beside what the machine could do and beside other engines",
    "bench_inputs": "what it costs to build the inputs of a decode step",
    "profile_step": "where the time of a step goes, part by part, with the settings of serve",
    "bench_kernels": "attention kernels against attention without pages, and against the read bandwidth",
    "device_check": "on a GPU: are the kernels right on it, and how fast are they",
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


if __name__ == "__main__":
    sys.exit(main())
