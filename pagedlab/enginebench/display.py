"""The tables of `bench_engine`."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table


def show(part: str, result: dict[str, Any]) -> None:
    _SHOWN[part](Console(width=None if sys.stdout.isatty() else 130), result)


def show_machine(limits: dict[str, dict[str, float]]) -> None:
    for dtype, of in limits.items():
        print(
            f"{dtype}: products {of['flops'] / 1e9:.0f} GFLOP/s, reads {of['bytes_per_s'] / 1e9:.1f} GB/s, weights "
            f"{of['weight_bytes'] / 1e6:.0f} MB"
        )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _throughput(console: Console, result: dict[str, Any]) -> None:
    table = _table(
        "offline throughput, medians",
        *(
            "dtype",
            "block",
            "optimize",
            "output tok/s",
            "a CPU second",
            "wall, s",
            "of bound",
            "peak (allowed) MB",
        ),
    )
    for row in result["rows"]:
        table.add_row(
            row["dtype"],
            str(row["block_size"]),
            row["optimize"],
            f"{row['output_tokens_per_s']:.0f}",
            f"{row['output_tokens_per_cpu_s']:.0f}",
            f"{row['wall_s']:.2f}",
            "-" if row["of_bound"] is None else f"{row['of_bound']:.0%}",
            f"{row['peak_rss_bytes'] / 1e6:.0f} ({row['rss_bytes_allowed'] / 1e6:.0f})",
        )
    console.print(table)
    console.print(
        f"model.optimize=auto: {result['optimize_speedup']:.2f}x the tokens of none, "
        f"{result['optimize_cpu_speedup']:.2f}x a CPU second: {result['rows'][0]['optimized']}"
    )
    for optimize, rows in result["profile"].items():
        profile = _table(f"a step, model.optimize={optimize}", "part", "ms", "share", "calls")
        for row in rows:
            profile.add_row(row["part"], f"{row['ms_per_step']:.3f}", f"{row['share']:.1%}", str(row["calls"]))
        profile.add_section()
        profile.add_row("step", f"{sum(r['ms_per_step'] for r in rows):.3f}", f"{sum(r['share'] for r in rows):.1%}")
        console.print(profile)
    if "against" in result:
        peer = result["against"]
        console.print(
            f"{peer['speedup']:.2f}x the tokens/s of {peer['name']}, {peer['cpu_speedup']:.2f}x a CPU second; "
            "its runs: " + ", ".join(f"{one['output_tokens_per_s']:.0f}" for one in peer["runs"])
        )
        if peer["bound"] is not None:
            console.print(f"the bound, which no engine can reach here, is {peer['bound']:.2f}x of {peer['name']}")


def _blocks(console: Console, result: dict[str, Any]) -> None:
    table = _table("block sizes", "block", "waste of allocated", "output tok/s", "to 32", "CPU time to 32", "steps")
    for row in result["rows"]:
        table.add_row(
            str(row["block_size"]),
            f"{row['kv_waste_fraction']:.2%}",
            f"{row['output_tokens_per_s']:.0f}",
            f"{row['to_32']:.3f}",
            f"{row['cpu_to_32']:.3f}",
            str(row["steps"]),
        )
    console.print(table)


def _memory(console: Console, result: dict[str, Any]) -> None:
    table = _table(
        "a fifth of the KV memory",
        *("allocator", "longest", "KV, MiB", "output tok/s", "mean batch", "tok/s a running request", "preemptions"),
    )
    for row in result["rows"]:
        table.add_row(
            row["allocator"],
            str(row.get("max_model_len", "")),
            f"{row['kv_bytes'] / 2**20:.0f}",
            f"{row['output_tokens_per_s']:.0f}",
            f"{row['mean_batch_size']:.1f}",
            f"{row['per_running_request']:.2f}",
            str(row["preemptions"]),
        )
    console.print(table)
    to_reserved = result["paged_to_reserve_max"].items()
    console.print(
        f"paged: {result['per_running_request_to_full']:.2f}x a running request's tokens/s with all the memory, "
        "tokens/s to reserve_max: "
        + ", ".join(f"{one:.2f}x where {tokens:,} are reserved" for tokens, one in to_reserved)
    )


def _latency(console: Console, result: dict[str, Any]) -> None:
    spread = f"{result['to_bound_least']:.2f} to {result['to_bound_most']:.2f}"
    console.print(
        f"one request: {1e3 * result['token_s']:.2f} ms a token, {result['to_bound']:.2f}x ({spread}) of "
        f"reading the weights just before and after ({1e3 * result['read_weights_s']:.2f} ms)"
    )


def _loop(console: Console, result: dict[str, Any]) -> None:
    parts = ("schedule", "inputs", "commit")
    total = sum(result[f"{part}_ms"] for part in parts)
    console.print(
        f"a decode step of {result['batch']} sequences without the model: {total:.3f} ms ("
        + ", ".join(f"{part} {result[f'{part}_ms']:.3f}" for part in parts)
        + f"), and {result['recorder_ms']:.3f} ms of recording"
    )


_SHOWN = {"throughput": _throughput, "blocks": _blocks, "memory": _memory, "latency": _latency, "loop": _loop}
