"""Conversations whose every turn waits for the answer to the one before: closed loops, arriving in an open one.

So the history of a turn is exact for every executor: it holds what was generated, whatever that came to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedlab.core.request import Request
from pagedlab.settings import DialoguesSettings, SamplingSettings, ThinkSettings
from pagedlab.workload.arrival import arrival_times, check_arrival
from pagedlab.workload.assemble import Draft, bound_prompts, request_of
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.callers import check_callers, client_of
from pagedlab.workload.checks import choice, number, whole
from pagedlab.workload.lengths import check_lengths, draw_lengths
from pagedlab.workload.streams import Stream, generator

MOST_THINKING_S = 1e9


@WORKLOADS.register("dialogues")
def build(
    settings: DialoguesSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int
) -> list[Request]:
    """The first turn of each dialogue; the others follow. From the seed alone, and the vocabulary.

    Ids count all turns, dialogue by dialogue. Each dialogue draws from streams of its own, so the first ones of more
    dialogues are those of fewer. Raises ConfigError, WorkloadError.
    """
    _check(settings)
    count = settings.num_dialogues
    turns = draw_lengths(settings.turns, "input", count, generator(seed, Stream.TURNS))
    times = arrival_times(settings.arrival, count, seed)
    systems = [
        generator(seed, Stream.PREFIX, i).integers(tokenizer.vocab_size, size=settings.system_tokens, dtype=np.int32)
        for i in range(min(settings.system_prompts, count))
    ]
    requests, first_id, held = [], 0, 0
    for place, (length, time) in enumerate(zip(turns.tolist(), times.tolist(), strict=True)):
        dialogue = _drawn(settings, sampling, tokenizer.vocab_size, seed, place, first_id, length)
        held += dialogue.prompt_tokens(settings.system_tokens)
        bound_prompts(held)
        requests.append(dialogue.request(0, systems[place % len(systems)], time))
        first_id += length
    return requests


@dataclass(frozen=True, slots=True)
class _Dialogue:
    """What is known of a dialogue before anything is answered. messages: int32 [tokens] of each turn. outputs: true
    lengths. think_s: before each turn, the first one's counts for nothing."""

    number: int
    first_id: int
    messages: list[np.ndarray]
    outputs: list[int]
    think_s: list[float]
    settings: DialoguesSettings
    sampling: SamplingSettings
    seed: int

    def request(self, turn: int, history: np.ndarray, arrival_s: float) -> Request:
        settings, output = self.settings, self.outputs[turn]
        most = output if settings.max_tokens is None else settings.max_tokens
        draft = Draft(
            np.concatenate([history, self.messages[turn]]),
            most,
            min(output, most),
            f"dialogue#{self.number}.{turn}",
            pin_tokens=settings.system_tokens if settings.pin_system else 0,
            client=client_of(self.number, settings.clients),
            priority=settings.priorities[self.number % len(settings.priorities)],
        )
        follow_up = _Turn(self, turn + 1) if turn + 1 < len(self.messages) else None
        return request_of(draft, self.first_id + turn, arrival_s, self.sampling, self.seed, follow_up)

    def prompt_tokens(self, system_tokens: int) -> int:
        """Of the prompts of all turns together, at most."""
        most, total, history = self.settings.max_tokens, 0, system_tokens
        for message, output in zip(self.messages, self.outputs, strict=True):
            total += history + len(message)
            history += len(message) + (output if most is None else most)
        return total


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn that waits for the answer to the one before."""

    dialogue: _Dialogue
    turn: int

    @property
    def turns(self) -> int:
        return len(self.dialogue.messages) - self.turn

    def request(self, before: Request, answer: np.ndarray, ended_s: float) -> Request:
        history = np.concatenate([before.prompt, answer])
        return self.dialogue.request(self.turn, history, ended_s + self.dialogue.think_s[self.turn])


def _drawn(
    settings: DialoguesSettings,
    sampling: SamplingSettings,
    vocab_size: int,
    seed: int,
    dialogue: int,
    first_id: int,
    turns: int,
) -> _Dialogue:
    inputs = draw_lengths(settings.prompt, "input", turns, generator(seed, Stream.PROMPT_LENGTH, dialogue))
    outputs = draw_lengths(settings.output, "output", turns, generator(seed, Stream.OUTPUT_LENGTH, dialogue))
    said = generator(seed, Stream.PROMPT, dialogue).integers(vocab_size, size=int(inputs.sum()), dtype=np.int32)
    messages = np.split(said, np.cumsum(inputs)[:-1])
    think = _think_times(settings.think, turns, generator(seed, Stream.THINKING, dialogue))
    return _Dialogue(dialogue, first_id, messages, outputs.tolist(), think, settings, sampling, seed)


def _think_times(settings: ThinkSettings, turns: int, rng: np.random.Generator) -> list[float]:
    if settings.distribution == "fixed":
        return [settings.mean_s] * turns
    drawn: list[float] = (rng.exponential(size=turns) * settings.mean_s).tolist()
    return drawn


@checks("dialogues")
def _check(settings: DialoguesSettings) -> None:
    whole("workload.num_dialogues", settings.num_dialogues)
    choice("workload.turns.distribution", settings.turns.distribution, ("fixed", "uniform", "lognormal"))
    for name in ("turns", "prompt", "output"):
        check_lengths(getattr(settings, name), f"workload.{name}")
    choice("workload.think.distribution", settings.think.distribution, ("fixed", "exponential"))
    number("workload.think.mean_s", settings.think.mean_s, 0, MOST_THINKING_S, " seconds")
    if settings.max_tokens is not None:
        whole("workload.max_tokens", settings.max_tokens, why=", or null for each request's own output length")
    whole("workload.system_tokens", settings.system_tokens, low=0)
    whole("workload.system_prompts", settings.system_prompts)
    check_callers(settings.clients, settings.priorities)
    check_arrival(settings.arrival)
