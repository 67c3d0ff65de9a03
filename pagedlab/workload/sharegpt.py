"""Requests from recorded conversations, as serving benchmarks replay them."""

from __future__ import annotations

import os
from pathlib import Path

from pagedlab.core.errors import WorkloadError
from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, ShareGPTSettings
from pagedlab.workload.arrival import check_arrival
from pagedlab.workload.assemble import Draft, assemble
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.callers import check_callers, client_of, number_of
from pagedlab.workload.checks import one_line, refused, whole
from pagedlab.workload.conversations import read_conversations
from pagedlab.workload.history import History, Turn
from pagedlab.workload.parts import alternate, join_parts
from pagedlab.workload.pick import pick

SHIPPED = Path(__file__).parent / "data" / "conversations.json"


@WORKLOADS.register("sharegpt")
def build(
    settings: ShareGPTSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int
) -> list[Request]:
    """One request for each recorded reply (the first of each conversation unless multi_turn).

    The prompt is all that was said before, with what was recorded as replies, and the opening of a reply. Turn t
    (from 0) of conversation c has the source "c#t". Turns keep the order of the file and arrive by the arrival
    process; they do not wait for the turn before. The limits look at the prompt with its markers and at the
    recorded length cut to max_tokens. An empty reply is no request, as every request generates a token, and nor is an
    empty prompt.
    Raises ConfigError for settings, WorkloadError for the file and for asking more of it than it holds.
    """
    _check(settings)
    path = SHIPPED if settings.path is None else Path(os.path.expanduser(settings.path))
    turns = _turns(path, settings.multi_turn, tokenizer)
    drafts = [
        Draft(
            turn.prompt(),
            settings.max_tokens,
            output_tokens,
            turn.source,
            pin_tokens=turn.history.system_tokens() if settings.pin_system else 0,
            client=client_of(number_of(conversation_of(turn), "client"), settings.clients),
            priority=settings.priorities[number_of(conversation_of(turn), "priority") % len(settings.priorities)],
        )
        for turn, output_tokens in pick(turns, settings, seed, one_line(path))
    ]
    return assemble(drafts, settings.arrival, sampling, seed)


def conversation_of(turn: Turn) -> str:
    """All turns of a conversation come from one client, with one priority."""
    return turn.source.rpartition("#")[0]


def _turns(path: Path, multi_turn: bool, tokenizer: PromptTokenizer) -> list[Turn]:
    entries = list(read_conversations(path))
    header = tokenizer.reply_header()
    turns: list[Turn] = []
    for entry in join_parts(entries) if multi_turn else entries:
        history = History(alternate(entry), tokenizer, header)
        replies = history.replies() if multi_turn else history.replies()[:1]
        turns.extend(Turn(f"{entry.id}#{turn}", history, reply) for turn, reply in enumerate(replies))
    if not turns:
        raise WorkloadError(f"{one_line(path)}: no conversation has a question and a reply, expected at least one")
    return turns


@checks("sharegpt")
def _check(settings: ShareGPTSettings) -> None:
    if settings.num_requests is not None:
        whole("workload.num_requests", settings.num_requests, why=", or null for all")
    whole("workload.max_tokens", settings.max_tokens)
    for name in ("min_prompt_tokens", "max_prompt_tokens", "min_output_tokens", "max_total_tokens"):
        if (limit := getattr(settings, name)) is not None:
            whole(f"workload.{name}", limit, why=", or null for no limit")
    for low, high in (("min_prompt_tokens", "max_prompt_tokens"), ("min_output_tokens", "max_tokens")):
        least, most = getattr(settings, low), getattr(settings, high)
        if least is not None and most is not None and least > most:
            raise refused(f"workload.{low}", least, f"at most workload.{high}={most}")
    check_callers(settings.clients, settings.priorities)
    check_arrival(settings.arrival)
