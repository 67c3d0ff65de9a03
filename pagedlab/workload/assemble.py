"""Drafts to requests: ids, arrival times and sampling seeds are given out here, the same way for every workload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedlab.core.errors import WorkloadError
from pagedlab.core.request import FollowUp, Request, SamplingParams
from pagedlab.settings import ArrivalSettings, SamplingSettings
from pagedlab.workload.arrival import arrival_times
from pagedlab.workload.streams import sampling_seed

# 4 GiB of int32. Every turn of a conversation repeats its history, so a small file can ask for far more.
MOST_PROMPT_TOKENS = 2**30


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A request before it has an id. prompt: int32 [prompt tokens]. output_tokens: its true length, 1..max_tokens.
    pin_tokens, cache_priority, cache_salt, client, priority: as in Request."""

    prompt: np.ndarray
    max_tokens: int
    output_tokens: int
    source: str
    pin_tokens: int = 0
    cache_priority: int = 35
    cache_salt: str = ""
    client: str = ""
    priority: int = 0


def assemble(drafts: list[Draft], arrival: ArrivalSettings, sampling: SamplingSettings, seed: int) -> list[Request]:
    """The requests of `drafts`, in their order, which is also the order of arrival.

    Where end-of-sequence is obeyed (ignore_eos false) nobody knows how long an output gets: the drafted length is
    withheld, and only the model's own token or max_tokens ends it. Raises ConfigError for bad arrivals.
    """
    return requests_at(drafts, arrival_times(arrival, len(drafts), seed), sampling, seed)


def requests_at(drafts: list[Draft], times: np.ndarray, sampling: SamplingSettings, seed: int) -> list[Request]:
    """The same for times already known: float64 [drafts], ascending."""
    return [
        request_of(draft, id, float(time), sampling, seed)
        for id, (draft, time) in enumerate(zip(drafts, times, strict=True))
    ]


def request_of(
    draft: Draft, id: int, arrival_s: float, sampling: SamplingSettings, seed: int, follow_up: FollowUp | None = None
) -> Request:
    """A single one."""
    return Request(
        id=id,
        prompt=draft.prompt,
        max_tokens=draft.max_tokens,
        true_output_tokens=draft.output_tokens if sampling.ignore_eos else None,
        arrival_s=arrival_s,
        sampling=SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling_seed(seed, id),
            ignore_eos=sampling.ignore_eos,
            n=sampling.n,
            best_of=sampling.best_of,
            beam_width=sampling.beam_width,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping.lower(),
        ),
        source=draft.source,
        pin_tokens=draft.pin_tokens,
        cache_priority=draft.cache_priority,
        cache_salt=draft.cache_salt,
        client=draft.client,
        priority=draft.priority,
        follow_up=follow_up,
    )


def bound_prompts(total_tokens: int) -> None:
    """Raise WorkloadError when all prompts together would be too much to hold. Called before they are made."""
    if total_tokens > MOST_PROMPT_TOKENS:
        raise WorkloadError(
            f"workload: the prompts hold {total_tokens} tokens, expected at most {MOST_PROMPT_TOKENS}: "
            "lower workload.num_requests or the prompt lengths"
        )
