"""Run folders made by hand, each with what a reader of finished runs looks at."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

SUMMARY = {
    "status": "completed",
    "schema_version": 1,
    "num_requests": 3,
    "clock": "virtual",
    "kv_waste_fraction": 0.25,
    "kv_waste_fraction_when_full": None,
    "mean_batch_size": 2.0,
    "output_tokens_per_s": 100.0,
    "preemptions": 0,
    "refused": 0,
    "ttft_s": {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 2.0},
    "e2e_s": {"mean": 3.0, "p50": 3.0, "p90": 3.0, "p99": 4.0},
}


def config(allocator="paged", block_size=16, order="fcfs", **more):
    return {
        "seed": 0,
        "block_size": block_size,
        "allocator": {"name": allocator},
        "scheduler": {"name": order, "order": order, "watermark": 0.0},
        "workload": {"name": "synthetic", "num_requests": 3},
        "tracker": {"name": "none"},
        **more,
    }


def make_run(folder, seed=0, requests=None, settings=None, ttft=(0.5, 1.0, 1.5), **summary):
    """requests: of another workload than that of the seed. settings: as `config` takes them."""
    folder.mkdir(parents=True)
    settings = settings or {}
    values = config(**settings)
    labels = {"allocator": values["allocator"]["name"], "block_size": values["block_size"], "seed": seed}
    (folder / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    (folder / "summary.json").write_text(json.dumps(SUMMARY | labels | summary))
    rng = np.random.default_rng(seed if requests is None else requests)
    prompts = [rng.integers(1000, size=5).tolist() for _ in range(3)]
    rows = {
        "id": [0, 1, 2],
        "arrival_s": [0.0, 1.0, 2.0],
        "prompt_tokens": [5, 5, 5],
        "max_tokens": [4, 4, 4],
        "prompt_token_ids": pa.array(prompts, pa.list_(pa.int32())),
        "ttft_s": list(ttft),
        "tpot_s": pa.array([0.1, 0.1, None], pa.float64()),
        "e2e_s": [2.0, 3.0, 4.0],
        "normalized_latency_s_per_token": [0.5, 0.75, 1.0],
    }
    pq.write_table(pa.table(rows), folder / "requests.parquet")
    return folder
