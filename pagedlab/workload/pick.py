"""Which recorded turns become requests: those within the limits, and of these as many as were asked for."""

from __future__ import annotations

import operator
from collections import Counter

from pagedlab.core.errors import WorkloadError
from pagedlab.settings import ShareGPTSettings
from pagedlab.workload.assemble import bound_prompts
from pagedlab.workload.history import Turn
from pagedlab.workload.streams import Stream, generator


def pick(turns: list[Turn], settings: ShareGPTSettings, seed: int, file: str) -> list[tuple[Turn, int]]:
    """The chosen turns, in the order of `turns`, each with its true output length.

    Turns are tried in random order (in their own when num_requests is null, which takes all) and those within the
    limits are kept until there are enough. That is the same draw as one among all that are within the limits, but
    only the turns that it touches get encoded. Raises WorkloadError, beginning with `file`, for too few.
    """
    wanted = settings.num_requests
    order = range(len(turns)) if wanted is None else generator(seed, Stream.PICK).permutation(len(turns)).tolist()
    outputs: dict[int, int] = {}
    dropped: Counter[str] = Counter()
    total = 0
    for i in order:
        if len(outputs) == wanted:
            break
        prompt, recorded = turns[i].sizes()
        output = min(recorded, settings.max_tokens)
        if limit := _broken_limit(settings, prompt, output):
            dropped[limit] += 1
            continue
        outputs[i] = output
        total += prompt
        bound_prompts(total)

    drops = ", ".join(f"{count} dropped by {limit}" for limit, count in sorted(dropped.items())) or "none dropped"
    if not outputs:
        raise WorkloadError(f"{file}: no request is left of {len(turns)} turns: {drops}, expected at least one")
    if wanted is not None and len(outputs) < wanted:
        raise WorkloadError(
            f"{file}: workload.num_requests={wanted}: expected at most {len(outputs)}, of {len(turns)} turns {drops}"
        )
    return [(turns[i], outputs[i]) for i in sorted(outputs)]


def _broken_limit(settings: ShareGPTSettings, prompt: int, output: int) -> str | None:
    """The first limit that a request of these tokens breaks, with its value; None when it is within all."""
    if prompt < 1 or output < 1:
        return "an empty prompt or reply"
    for name, breaks, tokens in (
        ("min_prompt_tokens", operator.lt, prompt),
        ("max_prompt_tokens", operator.gt, prompt),
        ("min_output_tokens", operator.lt, output),
        ("max_total_tokens", operator.gt, prompt + output),
    ):
        limit = getattr(settings, name)
        if limit is not None and breaks(tokens, limit):
            return f"workload.{name}={limit}"
    return None
