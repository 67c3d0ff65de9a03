"""What the tests of the engine share: small engines over the fingerprint executor, and the naive truth beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from pagedlab.allocator.base import ALLOCATORS, Allocator
from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.host import Host
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.prefixes import Prefixes
from pagedlab.core.request import Completion, Request, SamplingParams
from pagedlab.engine import serve
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.executor.base import CachePlan
from pagedlab.executor.fingerprint import FingerprintExecutor, fingerprint, log_probs, next_token
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.base import PREFIX_CACHES
from pagedlab.prefix_cache.digest import Digest
from pagedlab.recorder.recorder import Recorder
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.scheduler import Scheduler
from pagedlab.settings import (
    AdaptiveSettings,
    EstimatedPeakSettings,
    FingerprintExecutorSettings,
    MlfqSettings,
    SchedulerSettings,
    VtcSettings,
)
from tests.engine.beam_oracle import naive_beams
from tests.eviction.lab import policy

VOCAB = 50
BLOCK_BYTES = 1000
# A token again costs as much as 100 bytes out and in: with the blocks of 4 of most tests swapping is the cheaper of the
# two for a context of more than two tokens or so, until something else is measured.
ADAPTIVE = AdaptiveSettings("adaptive", "last_arrived", None, None, "measured", 1e-3, 0.0, 2e5)
CONF = Path(__file__).resolve().parent.parent / "conf"


def request(prompt, new, id=0, arrival=0.0, true=None, client="", priority=0, **sampling):
    """R(p, g) of the case list: prompt is a length or a list of tokens."""
    tokens = [(7 * i + 3 * id + 1) % VOCAB for i in range(prompt)] if isinstance(prompt, int) else prompt
    tokens = np.array(tokens, dtype=np.int32)
    return Request(id, tokens, new, true, arrival, SamplingParams(**sampling), client=client, priority=priority)


def make_scheduler(
    num_blocks,
    block_size=4,
    allocator="paged",
    batching="chunked",
    tokens=512,
    order="fcfs",
    admission="on_demand",
    watermark=0.0,
    victim="last_arrived",
    max_num_seqs=16,
    max_model_len=None,
    foretold=None,
    skip=False,
    preemption="recompute",
    host_blocks=None,
    prefix_cache=None,
    pool=BlockPool,
    **settings,
):
    """host_blocks: of the host pool, as many as the device has unless given; a block is BLOCK_BYTES to a policy that
    counts. settings: as `caching_allocator` takes them, and those of SchedulerSettings that have no argument."""
    of_cache = settings.keys() & {"eviction", "leaf_first", "hash_bits", "pin_blocks"}
    cache = {name: settings.pop(name) for name in of_cache}
    longest = max_model_len or num_blocks * block_size
    if prefix_cache:
        assert allocator == "paged"
        a: Allocator = caching_allocator(num_blocks, block_size, longest, prefix_cache, **cache)
    else:
        a = ALLOCATORS[allocator](pool(num_blocks, block_size), longest)
    if PREEMPTIONS[preemption].needs_host:
        a.host = Host(num_blocks if host_blocks is None else host_blocks, block_size, BLOCK_BYTES)
    s = scheduler_settings(
        order=order,
        batching=batching,
        admission=admission,
        watermark=watermark,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=tokens,
        **settings,
    )
    return Scheduler(
        a,
        ORDERS[order](s, a, 0),
        ADMISSIONS[admission](s, a),
        BATCHINGS[batching](tokens),
        PREEMPTIONS[preemption](a, ADAPTIVE),
        VICTIMS[victim](a),
        max_num_seqs,
        s.preemptive,
        foretold,
        skip,
    )


def scheduler_settings(**given):
    """Those that conf/scheduler/chunked.yaml has, but for `given`."""
    values = yaml.safe_load((CONF / "scheduler" / "chunked.yaml").read_text()) | given
    nested = {"mlfq": MlfqSettings, "vtc": VtcSettings, "estimated_peak": EstimatedPeakSettings}
    return SchedulerSettings(**values | {name: kind(**dict(values[name])) for name, kind in nested.items()})


def caching_allocator(
    num_blocks,
    block_size,
    max_model_len,
    prefix_cache,
    eviction="lru",
    leaf_first=True,
    hash_bits=128,
    pin_blocks=0,
    seed=0,
):
    """eviction: by its configured settings. hash_bits: few of them make blocks of different content share a key."""
    chooser = policy(eviction, num_blocks, seed)
    pool = CachingPool(num_blocks, block_size, LeafFirst(chooser) if leaf_first else chooser)
    index = PREFIX_CACHES[prefix_cache](block_size, Digest(bits=hash_bits))
    return PagedAllocator(pool, max_model_len, Prefixes(index, pool, pin_blocks))


def make_executor(scheduler, eos=None, step_s=0.01, token_s=0.0, copy_s=0.0, swap_s=0.0):
    a = scheduler.allocator
    settings = FingerprintExecutorSettings("fingerprint", VOCAB, eos, step_s, token_s, copy_s, swap_s)
    on_host = a.host.pool.num_blocks if a.host else 0
    plan = CachePlan(
        lambda free: a.pool.num_blocks,
        a.pool.block_size,
        scheduler.max_num_seqs,
        a.max_model_len,
        lambda free: on_host,
    )
    return FingerprintExecutor(settings, plan)


def run(requests, num_blocks, block_size=4, eos=None, **choices):
    """Serve with every invariant checked after every step; returns (recorder, scheduler)."""
    scheduler = make_scheduler(num_blocks, block_size, **choices)
    recorder = Recorder()
    serve(requests, scheduler, make_executor(scheduler, eos), recorder, audit_every=1)
    pool = scheduler.allocator.pool
    assert pool.num_free + pool.num_idle == num_blocks, "blocks leaked"
    assert scheduler.allocator.host_blocks == 0, "host blocks leaked"
    return recorder, scheduler


def fingerprints_of(tokens: list[int]) -> list[int]:
    """The KV of these tokens, one after the other."""
    kv: list[int] = []
    for position, token in enumerate(tokens):
        kv.append(fingerprint(token, position, kv[-1] if kv else 0))
    return kv


def naive_output(r: Request, eos=None, sampling=None) -> list[int]:
    """What the fingerprint model generates for a request alone, from a plain list: no blocks, no batch."""
    sampling = sampling or r.sampling
    tokens, kv = [int(t) for t in r.prompt], []
    limit = min(r.max_tokens, r.true_output_tokens or r.max_tokens)
    output: list[int] = []
    while len(output) < limit:
        while len(kv) < len(tokens):
            kv.append(fingerprint(tokens[len(kv)], len(kv), kv[-1] if kv else 0))
        token = next_token(kv, sampling, len(output), VOCAB)
        output.append(token)
        tokens.append(token)
        if token == eos and not r.sampling.ignore_eos:
            break
    return output


def naive_answer(r: Request, eos=None) -> list[Completion]:
    """What the fingerprint model answers to a request of any number of outputs, alone; best first."""
    prompt = [int(t) for t in r.prompt]
    if r.sampling.beam_width > 1:
        limit = min(r.max_tokens, r.true_output_tokens or r.max_tokens)
        return naive_beams(r, lambda out: log_probs(fingerprints_of(prompt + out), VOCAB).tolist(), eos, limit)[0]
    answer = []
    for child in range(r.width):
        output = naive_output(r, eos, r.sampling.of_child(child))
        mean = None
        if r.sampling.ranks:
            chain = [log_probs(fingerprints_of(prompt + output[:i]), VOCAB)[output[i]] for i in range(len(output))]
            mean = sum(map(float, chain)) / len(chain)
        stopped = output[-1] == eos and not r.sampling.ignore_eos
        answer.append(Completion(output, mean, "stop" if stopped else "length"))
    if r.sampling.ranks:
        answer.sort(key=lambda completion: -completion.score)
    return answer[: r.sampling.n]
