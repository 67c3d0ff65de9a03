"""Runs libcachesim, an independent cache simulator, over traces: in a process of its own, as it aborts or hangs on some
inputs. stdin: {"traces": {name: [key, ...]}, "runs": [[policy, trace, size], ...]}; stdout: the misses of each run.
"""

import json
import sys

import libcachesim as lcs

POLICIES = {
    "lru": lcs.LRU,
    "fifo": lcs.FIFO,
    "lfu": lcs.LFU,
    "clock": lcs.Clock,
    "sieve": lcs.Sieve,
    "s3fifo": lcs.S3FIFO,
    "arc": lcs.ARC,
    "belady": lcs.Belady,
}
NEVER = 2**62


def next_uses(trace):
    """Without it Belady's figures are wrong, and nothing says so."""
    following, seen = [NEVER] * len(trace), {}
    for time in range(len(trace) - 1, -1, -1):
        following[time] = seen.get(trace[time], NEVER)
        seen[trace[time]] = time
    return following


def misses(policy, trace, size):
    cache = POLICIES[policy](size, hashpower=14)
    missed = 0
    for time, (key, following) in enumerate(zip(trace, next_uses(trace), strict=True)):
        request = lcs.Request(obj_id=key, obj_size=1, clock_time=time, next_access_vtime=following)
        missed += not cache.get(request)
    return missed


def main():
    asked = json.load(sys.stdin)
    print(json.dumps([misses(policy, asked["traces"][trace], size) for policy, trace, size in asked["runs"]]))


if __name__ == "__main__":
    main()
