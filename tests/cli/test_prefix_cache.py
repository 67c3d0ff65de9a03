"""The prefix cache through the command: what a run says of it, sweeps over it, a policy of the user's own."""

import pyarrow.parquet as pq
import pytest

from tests.cli.test_serve import call, summary

PREFIX = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=24"]
PREFIX += ["workload.prompt.high=20", "workload.output.high=20", "workload.shared_prefix_tokens=70"]
PREFIX += ["workload.arrival.process=constant", "workload.arrival.rate=50", "kv_num_blocks=24", "audit_every=1"]

NAMES = ("queried_tokens", "hit_tokens", "hit_rate", "lost_tokens", "copied_tokens", "evicted_blocks")
NAMES += ("regretted_blocks",)


@pytest.mark.parametrize("kind", ["hash_chain", "radix"])
def test_a_run_says_what_its_cache_had(tmp_path, kind):
    done = call(*PREFIX, f"prefix_cache={kind}", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "prefix cache: hit, of known tokens" in done.stdout
    assert "the prefix cache had" in done.stdout
    said = summary(tmp_path)
    found = {name: said[f"prefix_{name}"] for name in NAMES}
    assert (said["prefix_cache"], said["eviction"]) == (kind, "lru")
    assert 0 < found["hit_tokens"] < found["queried_tokens"]
    assert found["hit_rate"] == found["hit_tokens"] / found["queried_tokens"]
    assert found["evicted_blocks"] > 0
    assert (found["copied_tokens"] > 0) == (kind == "radix")
    assert (found["lost_tokens"] > found["copied_tokens"]) == (kind == "hash_chain")
    assert said["prefill_saved_s"] > 0
    assert said["kv_cached_idle_fraction"] > 0
    requests = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert sum(row["cached_tokens"] for row in requests) == found["hit_tokens"]
    needed = sum(row["prompt_tokens"] + row["output_tokens"] - 1 for row in requests)
    lost = sum(row["tokens_lost"] for row in pq.read_table(tmp_path / "events.parquet").to_pylist())
    assert said["computed_tokens"] + found["hit_tokens"] == needed + lost
    timeline = pq.read_table(tmp_path / "timeline.parquet").to_pylist()
    for name in ("queried_tokens", "hit_tokens", "evicted_blocks"):
        column = [row[f"prefix_{name}"] for row in timeline]
        assert column == sorted(column)  # sums from the start, through waits as well
        assert column[-1] == found[name]


def test_a_sweep_over_the_cache_shows_its_hits(tmp_path):
    words = ["-m", "prefix_cache=none,hash_chain,radix", *PREFIX, f"hydra.sweep.dir={tmp_path}"]
    done = call(*words)
    assert done.returncode == 0, done.stderr
    for words in ("prefix", "hits", "TTFT"):
        assert words in done.stdout.rsplit("run folder", 1)[1]  # in the table of the sweep
    none, chain, radix = summary(tmp_path)["rows"]
    assert none["prefix_hit_rate"] == 0 < chain["prefix_hit_rate"] < radix["prefix_hit_rate"]
    assert none["output_tokens"] == chain["output_tokens"] == radix["output_tokens"]
    files = [tmp_path / row["folder"] / "requests.parquet" for row in (none, chain, radix)]
    answers = [pq.read_table(file).column("output_token_ids") for file in files]
    assert answers[0] == answers[1] == answers[2]


POLICY = '''
from pagedlab.eviction.base import EVICTIONS
from pagedlab.eviction.queued import QueuedEviction


@EVICTIONS.register("oldest")
class Oldest(QueuedEviction):
    """What was cached first goes first."""

    def hit(self, key, retention=None):
        pass
'''


def test_a_policy_of_a_users_file_serves_as_fifo_does(tmp_path):
    (tmp_path / "mine.py").write_text(POLICY)
    numbers = []
    for name, words in (("oldest", ["--plugin", str(tmp_path / "mine.py")]), ("fifo", [])):
        done = call(*words, *PREFIX, "prefix_cache=radix", f"eviction={name}", f"hydra.run.dir={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        said = summary(tmp_path / name)
        assert said.pop("eviction") == name
        numbers.append(said)
    assert numbers[0] == numbers[1]
    assert numbers[0]["prefix_evicted_blocks"] > 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["prefix_cache=radix", "allocator=reserve_max"], "prefix_cache=radix with allocator=reserve_max: a run of a "),
        (["prefix_cache=radix", "prefix_cache.pin_blocks=24"], "prefix_cache.pin_blocks=24: expected less than the "),
        (["prefix_cache=tree"], "Available options in 'prefix_cache': hash_chain none radix"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, words, line):
    done = call(*PREFIX, *words, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith("error: ")
    assert line in said
    assert not (tmp_path / "run").exists()
