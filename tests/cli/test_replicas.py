"""Dialogues, replicas and tiers through the command: what a run says of them, and what it refuses."""

import pyarrow.parquet as pq

from tests.cli import test_replay
from tests.cli.test_serve import call, summary

RUN = ["executor=simulated", "hardware=a100_40gb", "model=opt_13b", "workload=dialogues", "workload.num_dialogues=24"]
RUN += ["workload.prompt.high=64", "workload.output.high=64", "workload.arrival.rate=10"]
RUN += ["prefix_cache=hash_chain", "kv_num_blocks=64", "workload.think.mean_s=1", "audit_every=7"]


def test_replicas_behind_a_router_with_tiers_below_each(tmp_path):
    words = [*RUN, "replicas=2", "router=prefix_aware", "tiers.host.gib=0.1", "tiers.disk.gib=1", "tiers.load=always"]
    done = call(*words, f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "KV cache: each of 2 replicas, 64 blocks" in done.stdout
    assert "replicas behind prefix_aware" in done.stdout
    assert "brought up from tiers" in done.stdout
    said = summary(tmp_path)
    assert (said["replicas"], said["router"], said["num_requests"]) == (2, "prefix_aware", said["completed"])
    requests = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert len(requests) == said["num_requests"] > 48
    counted = [sum(row["replica"] == i for row in requests) for i in range(2)]
    assert said["per_replica"]["num_requests"] == counted
    hits = said["tier_hit_tokens"]
    assert min(hits.values()) > 0
    assert sum(hits.values()) == said["prefix_hit_tokens"] == sum(row["cached_tokens"] for row in requests)
    timeline = pq.read_table(tmp_path / "timeline.parquet").to_pylist()
    assert {row["replica"] for row in timeline} == {0, 1}
    assert sum(row["load_s"] for row in timeline) > 0
    assert sum(row["batch"] > 0 for row in timeline) == said["steps"]
    # A later turn is asked after the answer to the one before, whichever replica gave it.
    ends = {row["source"]: row["finish_s"] for row in requests}
    for row in requests:
        dialogue, turn = row["source"].split(".")
        assert turn == "0" or row["arrival_s"] >= ends[f"{dialogue}.{int(turn) - 1}"]


def test_the_same_again_and_one_replica_as_none(tmp_path):
    runs = {"none": [], "one": ["router=least_loaded"], "again": ["router=least_loaded"]}
    for name, words in runs.items():
        assert call(*RUN, *words, f"hydra.run.dir={tmp_path / name}").returncode == 0
    tables = ("requests", "timeline", "events")
    read = [[pq.read_table(tmp_path / name / f"{table}.parquet") for table in tables] for name in runs]
    assert read[0] == read[1] == read[2]
    said = [summary(tmp_path / name) | {"router": None} for name in runs]
    assert said[0] == said[1] == said[2]


def test_what_needs_answers_is_no_trace_to_replay():
    done = test_replay.call("model=tiny_llama", "workload=dialogues", "policies=[lru]", "capacity_blocks=[9]")
    assert done.returncode == 2
    assert "workload=dialogues: its prompts hold answers, which only `pagedlab serve` generates" in done.stderr
