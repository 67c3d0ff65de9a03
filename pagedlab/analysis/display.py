"""What a person sees of a run on the terminal: a header, a progress bar, a result table, one plain sentence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pagedlab.recorder.recorder import Recorder

if TYPE_CHECKING:
    from pagedlab.run import Lab

_REFRESH_S = 0.1


class Display:
    """Progress goes to stderr, and only to a terminal; results go to stdout."""

    def __init__(self, progress: bool):
        self._err = Console(stderr=True)
        # Into a file or a pipe the tables keep their width instead of folding at 80 columns.
        self._out = Console(width=None if sys.stdout.isatty() else 120)
        self._progress = progress and self._err.is_terminal
        self._bar: Progress | None = None

    def doing(self, what: str) -> None:
        """Say what takes a moment and cannot tell how far it is."""
        if self._progress:
            self._err.print(f"{what} ...", style="dim", highlight=False, markup=False)

    def serving(self, lab: Lab) -> Callable[[Recorder], None]:
        """Open the progress bar; returns what the recorder calls after each step."""
        pool = lab.scheduler.allocator.pool
        slots = pool.num_blocks * pool.block_size
        each = f"each of {len(lab.replicas)} replicas, " if lab.others else ""
        self._out.print(
            f"KV cache: {each}{pool.num_blocks} blocks x {pool.block_size} slots = {slots} tokens, "
            f"{slots * lab.kv_bytes_per_token / 2**20:.1f} MiB; "
            f"{lab.num_requests} requests, max_model_len {lab.max_model_len}; KV memory by {lab.kv_budget}",
            highlight=False,
            soft_wrap=True,
        )
        if lab.executor.optimized:
            self._out.print(f"model optimized: {lab.executor.optimized}", highlight=False, soft_wrap=True)
        if lab.constants:
            self._out.print(lab.constants, highlight=False, markup=False, soft_wrap=True)
        if not self._progress:
            return lambda recorder: None
        self._bar = Progress(
            TextColumn("{task.completed}/{task.total} requests"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._err,
            transient=True,
        )
        self._bar.start()
        task = self._bar.add_task("", total=lab.num_requests)
        started, shown = time.monotonic(), 0.0
        seen: dict[int, Recorder] = {}  # of each replica

        def update(recorder: Recorder) -> None:
            nonlocal shown
            now = time.monotonic()
            seen[recorder.replica] = recorder
            if now - shown >= _REFRESH_S and self._bar is not None:
                shown = now
                all_of = seen.values()
                last = [each.steps[-1] for each in all_of]
                ended = sum(each.num_finished + sum(bool(seq.refusal) for seq in each.sequences) for each in all_of)
                rate = sum(each.output_tokens for each in all_of) / max(now - started, 1e-9)
                running, waiting = sum(step.running for step in last), sum(step.waiting for step in last)
                text = f"{running} running, {waiting} waiting, {rate:.0f} output tokens/s"
                self._bar.update(task, completed=ended, description=text)

        return update

    def done(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def warn(self, lines: list[str]) -> None:
        for line in lines:
            self._err.print(f"warning: {line}", highlight=False, markup=False, soft_wrap=True)

    def result(self, summary: dict[str, Any]) -> None:
        """The tables of a finished run and what they mean."""
        self._out.print(header(summary), highlight=False, soft_wrap=True)
        self._out.print(memory_table(summary))
        self._out.print(latency_table(summary))
        if "per_seed" in summary:
            self._out.print(seeds_table(summary))
        if "per_replica" in summary:
            self._out.print(replicas_table(summary))
        self._out.print(verdict(summary), highlight=False, soft_wrap=True)


def header(s: dict[str, Any]) -> str:
    """How the numbers came about: from what state, with which seeds, and how alike the prompts were."""
    seeds = s.get("seeds") or [s["seed"]]
    said = f"seed {seeds[0]}" if len(seeds) == 1 else f"means over seeds {', '.join(map(str, seeds))}"
    said += f"; {s['cache_at_start']} cache at the start, {s['warm_up_requests'] or 'no'} warm-up requests"
    overlap = s["prompt_overlap_fraction"]
    alike = "too many tokens to compare prompts" if overlap is None else f"{100 * overlap:.1f} % of the prompt tokens"
    return f"{said}; {alike}" + ("" if overlap is None else " repeat the beginning of an earlier prompt")


_PER_SEED = {
    "kv_waste_fraction": "waste",
    "mean_batch_size": "mean batch",
    "output_tokens_per_s": "output tokens/s",
    "ttft_s": "TTFT, mean",
    "e2e_s": "end to end, mean",
    "preemptions": "preemptions",
}


def seeds_table(s: dict[str, Any]) -> Table:
    """One row a repetition, then their mean and standard deviation."""
    table = Table(title="repetitions", title_justify="left")
    table.add_column("seed")
    for title in _PER_SEED.values():
        table.add_column(title, justify="right")
    for row in s["per_seed"]:
        table.add_row(str(row["seed"]), *(_number(row[key]) for key in _PER_SEED))
    table.add_section()
    table.add_row("mean", *(_number(s[key]) for key in _PER_SEED))
    table.add_row("standard deviation", *(_number(s[f"{key}_std"]) for key in _PER_SEED))
    return table


def _number(value: Any) -> str:
    value = value["mean"] if isinstance(value, dict) else value
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.4g}"


def memory_table(s: dict[str, Any]) -> Table:
    table = Table(title="KV memory (time mean over the pool) and throughput", title_justify="left")
    table.add_column("slots hold")
    table.add_column("share", justify="right")
    table.add_column("")
    table.add_column("run")
    table.add_column("value", justify="right")
    left = [
        ("a token", "kv_token_states_fraction"),
        ("reserved, used later", "kv_reserved_fraction"),
        ("reserved, never used (internal)", "kv_internal_fraction"),
        ("tail of a last block", "kv_block_tail_fraction"),
        ("cached, idle", "kv_cached_idle_fraction"),
        ("free, unusable (external)", "kv_external_fraction"),
        ("free", "kv_free_fraction"),
        ("waste: no token, of allocated", "kv_waste_fraction"),
    ]
    right = [
        ("requests", f"{s['completed']} completed, {s['refused']} refused of {s['num_requests']}"),
        ("duration", f"{s['duration_s']:.2f} s, {s['steps']} steps"),
        ("output tokens/s", f"{s['output_tokens_per_s']:.1f}"),
        ("total tokens/s", f"{s['total_tokens_per_s']:.1f}"),
        ("requests/s", f"{s['requests_per_s']:.3f}"),
        ("batch, mean (peak)", f"{s['mean_batch_size']:.1f} ({s['peak_batch_size']})"),
        ("preemptions", str(s["preemptions"])),
        ("recomputed tokens", str(s["recomputed_tokens"])),
    ]
    if s["blocks_saved_fraction"] or s["blocks_copied"]:
        left.append(("blocks saved by sharing", "blocks_saved_fraction"))
        right.append(("blocks copied", f"{s['blocks_copied']} in {s['copy_s']:.3f} s"))
    if s["prefix_queried_tokens"]:
        left.append(("prefix cache: hit, of known tokens", "prefix_hit_rate"))
        right.append(("hit tokens, lost to block size", f"{s['prefix_hit_tokens']}, {s['prefix_lost_tokens']}"))
    if s["tier_hit_rate"]:
        left.append(("brought up from tiers, of known tokens", "tier_hit_rate"))
        hits = ", ".join(str(tokens) for tokens in s["tier_hit_tokens"].values())
        right.append(("hits: device, host, disk; s up", f"{hits}; {s['tier_load_s']:.2f}"))
    if s["swaps"] or s["swap_fallbacks"]:
        left.append(("of the host pool, in use", "host_used_fraction"))
        right.append(("swaps, fallbacks", f"{s['swaps']}, {s['swap_fallbacks']}"))
        left.append(("of the host pool, peak", "host_used_fraction_peak"))
        right.append(("MiB out, in", f"{s['swapped_out_bytes'] / 2**20:.1f}, {s['swapped_in_bytes'] / 2**20:.1f}"))
        left.append(("recomputed, of fed tokens", "recompute_tax"))
        right.append(("seconds out, in", f"{s['swap_out_s']:.3f}, {s['swap_in_s']:.3f}"))
    if s["goodput_fraction"] is not None:
        left.append(("requests that met the SLO", "goodput_fraction"))
        right.append(("goodput, requests/s", f"{s['goodput_requests_per_s']:.3f}"))
    if s["service_gap_tokens"] is not None:
        left.append(("time short of memory", "memory_blocked_fraction"))
        right.append(("service gap of clients, tokens", f"{s['service_gap_tokens']:.0f}"))
    for (label, key), (name, value) in zip(left, right, strict=True):
        table.add_row(label, f"{100 * s[key]:.2f} %", "", name, value)
    return table


def latency_table(s: dict[str, Any]) -> Table:
    table = Table(title="latency in seconds", title_justify="left")
    table.add_column("")
    for column in ("mean", "p50", "p90", "p99"):
        table.add_column(column, justify="right")
    rows = [
        ("TTFT, time to first token", "ttft_s"),
        ("TPOT, time per output token", "tpot_s"),
        ("ITL, between tokens", "itl_s"),
        ("longest ITL of a request", "max_itl_s"),
        ("wait to be admitted", "wait_s"),
        ("end to end", "e2e_s"),
        ("normalized, per output token", "normalized_latency_s_per_token"),
    ]
    for label, key in rows:
        values = [s[key][column] for column in ("mean", "p50", "p90", "p99")]
        table.add_row(label, *("-" if v is None else f"{v:.4f}" for v in values))
    return table


def replicas_table(s: dict[str, Any]) -> Table:
    balance = f"{100 * s['replica_balance']:.0f} % even"
    table = Table(title=f"replicas behind {s['router']}: computed tokens {balance}", title_justify="left")
    columns = {
        "requests": ("num_requests", "{}"),
        "computed tokens": ("computed_tokens", "{}"),
        "output tokens/s": ("output_tokens_per_s", "{:.1f}"),
        "mean batch": ("mean_batch_size", "{:.1f}"),
        "waste": ("kv_waste_fraction", "{:.2%}"),
        "prefix hits": ("prefix_hit_rate", "{:.2%}"),
        "preemptions": ("preemptions", "{}"),
        "TTFT, mean": ("mean_ttft_s", "{:.4f}"),
    }
    for column in ("replica", *columns):
        table.add_column(column, justify="right")
    of = s["per_replica"]
    for i in range(s["replicas"]):
        values = [(shown, of[key][i]) for key, shown in columns.values()]
        table.add_row(str(i), *("-" if value is None else shown.format(value) for shown, value in values))
    return table


def _count(number: float) -> str:
    """A count, or the mean of counts over seeds."""
    return str(number) if isinstance(number, int) else f"{number:.1f}"


def verdict(s: dict[str, Any]) -> str:
    """One plain sentence: what the numbers mean."""
    if s["status"] != "completed":
        return f"The run was {s['status']}: the numbers cover {s['completed']} of {s['num_requests']} requests begun."
    if not s["completed"]:
        return f"No request was served: all {s['refused']} were refused (see the column refusal of requests.parquet)."
    held = s["kv_waste_fraction"]
    text = (
        f"With allocator {s['allocator']}, {100 * held:.1f} % of the KV memory that requests held stored no token, "
        f"and {s['mean_batch_size']:.1f} requests ran at a time, giving {s['output_tokens_per_s']:.0f} output tokens/s"
        f"{' of virtual time' if s.get('clock') == 'virtual' else ''}"
    )
    if s["blocks_saved_fraction"]:
        text += f"; sharing saved {100 * s['blocks_saved_fraction']:.1f} % of the blocks"
    if s["prefix_hit_tokens"]:
        text += (
            f"; the prefix cache had {100 * s['prefix_hit_rate']:.1f} % of the tokens asked for, "
            f"about {s['prefill_saved_s']:.1f} s of prefill"
        )
    if s["preemptions"]:
        ran_out = s["preemptions"] - s["preemptions_outranked"]
        text += f"; the pool ran out {_count(ran_out)} time{'' if ran_out == 1 else 's'}"
        if s["preemptions_outranked"]:
            text += f" and {_count(s['preemptions_outranked'])} requests yielded to others before them in the order"
        text += f", which cost {_count(s['recomputed_tokens'])} tokens computed twice"
        if s["swaps"]:
            moved = (s["swapped_out_bytes"] + s["swapped_in_bytes"]) / 2**20
            text += f" and {moved:.0f} MiB moved in {s['swap_out_s'] + s['swap_in_s']:.2f} s"
    elif s["memory_blocked_fraction"]:
        text += f"; for {100 * s['memory_blocked_fraction']:.0f} % of the time requests waited for memory"
    else:
        text += "; no request ever waited for memory"
    return text + "."
