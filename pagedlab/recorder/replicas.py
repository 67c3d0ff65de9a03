"""How a run of several replicas was shared out among them."""

from __future__ import annotations

from typing import Any

# Of each replica's own summary.
_PARTS = (
    *("num_requests", "completed", "computed_tokens", "output_tokens", "duration_s", "output_tokens_per_s"),
    *("mean_batch_size", "peak_batch_size", "kv_waste_fraction", "memory_blocked_fraction", "preemptions"),
    *("prefix_queried_tokens", "prefix_hit_tokens", "prefix_hit_rate"),
)


def shared_out(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """summaries: as `summarize` makes them of each replica alone, in order.

    per_replica: its values, a list each, and the mean time to first token. replica_balance: the mean of the tokens that
    were computed by the most: 1 is even, 1 / replicas is all by one of them.
    """
    parts = {name: [summary[name] for summary in summaries] for name in _PARTS}
    computed = parts["computed_tokens"]
    return {
        "replica_balance": sum(computed) / len(computed) / max(computed) if any(computed) else 1.0,
        "per_replica": parts | {"mean_ttft_s": [summary["ttft_s"]["mean"] for summary in summaries]},
    }
