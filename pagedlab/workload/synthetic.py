"""Requests of random tokens with drawn lengths, some sharing a prefix if asked to."""

from __future__ import annotations

import numpy as np

from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, SyntheticSettings
from pagedlab.workload.arrival import check_arrival
from pagedlab.workload.assemble import Draft, assemble, bound_prompts
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.callers import check_callers, client_of
from pagedlab.workload.checks import refused, whole
from pagedlab.workload.lengths import check_lengths, draw_lengths
from pagedlab.workload.streams import Stream, generator


@WORKLOADS.register("synthetic")
def build(
    settings: SyntheticSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int
) -> list[Request]:
    """The requests of `settings`, from the seed alone: of the tokenizer only vocab_size is asked.

    Tokens are uniform over the whole vocabulary, special tokens included, since nothing reads them. Input and
    output lengths are drawn independently. Prefix groups take turns: request i has the prefix of group
    i mod shared_prefix_groups. Each request draws its tokens from a stream of its own, and lengths come in order,
    so the first requests of a longer workload are those of a shorter one. Raises ConfigError, WorkloadError.
    """
    _check(settings)
    count, vocabulary = settings.num_requests, tokenizer.vocab_size
    inputs = draw_lengths(settings.prompt, "input", count, generator(seed, Stream.PROMPT_LENGTH))
    outputs = draw_lengths(settings.output, "output", count, generator(seed, Stream.OUTPUT_LENGTH))
    bound_prompts(int(inputs.sum()) + count * settings.shared_prefix_tokens)

    prefixes = [
        generator(seed, Stream.PREFIX, group).integers(vocabulary, size=settings.shared_prefix_tokens, dtype=np.int32)
        for group in range(min(settings.shared_prefix_groups, count))
    ]
    drafts = []
    for i, (input_tokens, drawn) in enumerate(zip(inputs.tolist(), outputs.tolist(), strict=True)):
        tail = generator(seed, Stream.PROMPT, i).integers(vocabulary, size=input_tokens, dtype=np.int32)
        most = drawn if settings.max_tokens is None else settings.max_tokens
        prompt = np.concatenate([prefixes[i % len(prefixes)], tail])
        pinned = settings.shared_prefix_tokens if settings.pin_shared_prefix else 0
        priority = settings.cache_priorities[i % len(settings.cache_priorities)]
        salt = f"tenant {i % settings.tenants}" if settings.tenants > 1 else ""
        client, urgency = client_of(i, settings.clients), settings.priorities[i % len(settings.priorities)]
        drafts.append(Draft(prompt, most, min(drawn, most), f"synthetic#{i}", pinned, priority, salt, client, urgency))
    return assemble(drafts, settings.arrival, sampling, seed)


@checks("synthetic")
def _check(settings: SyntheticSettings) -> None:
    whole("workload.num_requests", settings.num_requests)
    check_lengths(settings.prompt, "workload.prompt")
    check_lengths(settings.output, "workload.output")
    if settings.max_tokens is not None:
        whole("workload.max_tokens", settings.max_tokens, why=", or null for each request's own output length")
    whole("workload.shared_prefix_tokens", settings.shared_prefix_tokens, low=0)
    whole("workload.shared_prefix_groups", settings.shared_prefix_groups)
    whole("workload.tenants", settings.tenants)
    if not settings.cache_priorities:
        raise refused("workload.cache_priorities", "[]", "at least one, from 0 to 100")
    for priority in settings.cache_priorities:
        if not 0 <= priority <= 100:
            raise refused("workload.cache_priorities", priority, "numbers from 0 to 100")
    check_callers(settings.clients, settings.priorities)
    check_arrival(settings.arrival)
