"""Requests from recorded conversations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.core.errors import ConfigError, WorkloadError
from pagedlab.core.request import Request
from pagedlab.settings import ArrivalSettings, SamplingSettings

Build = Callable[..., list[Request]]
Talks = Callable[..., Path]

OBEY_EOS = SamplingSettings(temperature=0.7, top_p=0.9, top_k=40, ignore_eos=False)
SAFE_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0:"), min_size=1, max_size=8)
CONVERSATIONS = st.lists(st.lists(SAFE_TEXT, min_size=2, max_size=7), min_size=1, max_size=4)


def numbered(conversations: list[list[str]]) -> list[tuple[str, ...]]:
    return [(f"talk{i}", *texts) for i, texts in enumerate(conversations)]


def sources(requests: list[Request]) -> list[str]:
    return [request.source for request in requests]


def test_single_turn_asks_the_first_question_of_each_conversation(
    sharegpt: Build, talks: Talks, tokenizer: Any
) -> None:
    path = talks(("a", "Hi", "Hello!", "More", "No"), ("b", "Why", "So"))
    first, second = sharegpt(path, multi_turn=False)
    assert first.prompt.tolist() == [*tokenizer.message("user", "Hi"), *tokenizer.reply_header()]
    assert (first.true_output_tokens, second.true_output_tokens) == (6, 2)
    assert sources([first, second]) == ["a#0", "b#0"]


def test_multi_turn_asks_every_question_after_all_that_was_said(sharegpt: Build, talks: Talks, tokenizer: Any) -> None:
    path = talks(("a", "system: Be brief", "human: Hi", "gpt: Hello!", "human: More", "gpt: No", "human: Bye"))
    first, second = sharegpt(path)
    system, hi, hello, more = (
        tokenizer.message(role, text)
        for role, text in [("system", "Be brief"), ("user", "Hi"), ("assistant", "Hello!"), ("user", "More")]
    )
    assert first.prompt.tolist() == [*system, *hi, *tokenizer.reply_header()]
    assert second.prompt.tolist() == [*system, *hi, *hello, *more, *tokenizer.reply_header()]
    assert (first.true_output_tokens, second.true_output_tokens) == (6, 2)
    assert sources([first, second]) == ["a#0", "a#1"]  # and nobody answered "Bye"


def test_pin_system_pins_the_system_prompt_of_each_turn(sharegpt: Build, talks: Talks, tokenizer: Any) -> None:
    path = talks(
        ("a", "system: Be brief", "human: Hi", "gpt: Hello!", "human: More", "gpt: No"), ("b", "human: Why", "gpt: So")
    )
    length = len(tokenizer.message("system", "Be brief"))
    assert [r.pin_tokens for r in sharegpt(path, pin_system=True)] == [length, length, 0]
    assert [r.pin_tokens for r in sharegpt(path)] == [0, 0, 0]


@given(conversations=CONVERSATIONS, seed=st.integers(0, 2**40))
def test_a_prompt_extends_the_prompt_and_the_reply_before_it(
    sharegpt: Build, talks: Talks, tokenizer: Any, conversations: list[list[str]], seed: int
) -> None:
    """So that the KV of one turn is a prefix of the next: block for block, ids and not text."""
    requests = {request.source: request for request in sharegpt(talks(*numbered(conversations)), seed)}
    for i, texts in enumerate(conversations):
        history: list[int] = []
        for turn, (question, reply) in enumerate(zip(texts[0::2], texts[1::2], strict=False)):
            request = requests.pop(f"talk{i}#{turn}")
            history += tokenizer.message("user", question)
            assert request.prompt.tolist() == history + tokenizer.reply_header()
            assert request.true_output_tokens == len(tokenizer.encode(reply))
            history += tokenizer.message("assistant", reply)
    assert not requests


@given(conversations=CONVERSATIONS, seed=st.integers(0, 2**40), part=st.floats(0, 1))
def test_a_draw_is_a_part_of_the_whole_in_file_order_and_the_seed_decides_it(
    sharegpt: Build, talks: Talks, conversations: list[list[str]], seed: int, part: float
) -> None:
    path = talks(*numbered(conversations))
    whole = sharegpt(path, seed)
    count = max(1, round(part * len(whole)))
    drawn = sharegpt(path, seed, num_requests=count)
    assert [request.id for request in drawn] == list(range(count))
    assert len(set(sources(drawn))) == count
    position = {source: i for i, source in enumerate(sources(whole))}
    assert [position[source] for source in sources(drawn)] == sorted(position[source] for source in sources(drawn))
    by_source = {request.source: request.prompt.tolist() for request in whole}
    assert all(request.prompt.tolist() == by_source[request.source] for request in drawn)
    again = sharegpt(path, seed, num_requests=count)
    assert [(r.source, r.sampling, r.arrival_s) for r in drawn] == [(r.source, r.sampling, r.arrival_s) for r in again]


def test_every_turn_within_the_limits_is_drawn_equally_often(sharegpt: Build, talks: Talks) -> None:
    path = talks(*((f"talk{i}", "ab" if i % 2 else "a", "reply") for i in range(8)))
    counts = dict.fromkeys((f"talk{i}#0" for i in (1, 3, 5, 7)), 0)
    for seed in range(2000):
        for source in sources(sharegpt(path, seed, num_requests=2, min_prompt_tokens=5)):
            counts[source] += 1
    assert list(counts.values()) == pytest.approx([1000] * 4, rel=0.1)


class TestLimits:
    """Bytes of the tokenizer here: a message adds 2 markers and a reply's header 1, so `"Hi"` makes 5 tokens."""

    PATH = ("short", "Hi", "yes"), ("long", "x" * 97, "no " * 30)

    @pytest.mark.parametrize(
        ("limits", "kept"),
        [
            ({}, ["short#0", "long#0"]),
            ({"min_prompt_tokens": 5}, ["short#0", "long#0"]),
            ({"min_prompt_tokens": 6}, ["long#0"]),
            ({"max_prompt_tokens": 100}, ["short#0", "long#0"]),
            ({"max_prompt_tokens": 99}, ["short#0"]),
            ({"min_output_tokens": 3}, ["short#0", "long#0"]),
            ({"min_output_tokens": 4}, ["long#0"]),
            ({"max_total_tokens": 190}, ["short#0", "long#0"]),
            ({"max_total_tokens": 189}, ["short#0"]),
            # The total is of the output as it will be, not as it was recorded.
            ({"max_total_tokens": 189, "max_tokens": 89}, ["short#0", "long#0"]),
        ],
    )
    def test_each_includes_its_bound(
        self, sharegpt: Build, talks: Talks, limits: dict[str, int], kept: list[str]
    ) -> None:
        assert sources(sharegpt(talks(*self.PATH), **limits)) == kept

    def test_when_all_are_dropped_the_error_says_how_many_by_which(self, sharegpt: Build, talks: Talks) -> None:
        path = talks(*self.PATH, ("empty", "Hi, anybody?", ""))
        with pytest.raises(WorkloadError) as caught:
            sharegpt(path, min_prompt_tokens=6, max_total_tokens=150)
        assert str(caught.value) == (
            f"{path}: no request is left of 3 turns: 1 dropped by an empty prompt or reply, "
            "1 dropped by workload.max_total_tokens=150, "
            "1 dropped by workload.min_prompt_tokens=6, expected at least one"
        )

    def test_more_than_there_are_is_refused_with_both_numbers(self, sharegpt: Build, talks: Talks) -> None:
        path = talks(*self.PATH)
        with pytest.raises(WorkloadError) as caught:
            sharegpt(path, num_requests=2, min_prompt_tokens=6)
        assert str(caught.value) == (
            f"{path}: workload.num_requests=2: expected at most 1, of 2 turns 1 dropped by workload.min_prompt_tokens=6"
        )


def test_outputs_are_as_recorded_but_end_at_what_the_client_declared(sharegpt: Build, talks: Talks) -> None:
    path = talks(("a", "Hi", "12345"), ("b", "Hi", "12"))
    assert [(r.max_tokens, r.true_output_tokens) for r in sharegpt(path, max_tokens=3)] == [(3, 3), (3, 2)]


def test_where_eos_is_obeyed_no_length_is_known_beforehand(sharegpt: Build, talks: Talks) -> None:
    (request,) = sharegpt(talks(("a", "Hi", "12345")), sampling=OBEY_EOS, max_tokens=30)
    assert (request.max_tokens, request.true_output_tokens) == (30, None)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.7, 0.9, 40)
    assert not request.sampling.ignore_eos


def test_requests_arrive_in_file_order_by_the_process(sharegpt: Build, talks: Talks) -> None:
    path = talks(("a", "1", "2", "3", "4"), ("b", "1", "2"))
    requests = sharegpt(path, arrival=ArrivalSettings("constant", rate=2))
    assert [(r.source, r.arrival_s) for r in requests] == [("a#0", 0.5), ("a#1", 1.0), ("b#0", 1.5)]


def test_parts_of_a_conversation_are_one_in_multi_turn_and_apart_in_single_turn(sharegpt: Build, talks: Talks) -> None:
    path = talks(("x_0", "1", "2"), ("x_1", "gpt: 2", "human: 3", "gpt: 4"))
    assert sources(sharegpt(path)) == ["x_0#0", "x_0#1"]
    assert sources(sharegpt(path, multi_turn=False)) == ["x_0#0", "x_1#0"]


def test_turns_are_encoded_only_until_there_are_enough(
    sharegpt: Build, talks: Talks, monkeypatch: pytest.MonkeyPatch, tokenizer: Any
) -> None:
    """A ShareGPT file has 100,000 conversations, and a run wants 64 requests of it."""
    path = talks(*((f"talk{i}", "Hi", "Yo") for i in range(500)))
    encode = Mock(wraps=tokenizer.encode)
    monkeypatch.setattr(tokenizer, "encode", encode)
    assert len(sharegpt(path, num_requests=5)) == 5
    assert encode.call_count <= 15


def test_histories_that_outgrow_memory_are_refused_before_they_are_made(
    sharegpt: Build, talks: Talks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n turns of one token make n^2/2 tokens of prompts, so a small file could ask for any amount."""
    monkeypatch.setattr("pagedlab.workload.assemble.MOST_PROMPT_TOKENS", 5000)
    path = talks(("a", *["x"] * 200))
    assert len(sharegpt(path, max_prompt_tokens=100)) < 100
    with pytest.raises(WorkloadError, match=r"^workload: the prompts hold \d+ tokens, expected at most 5000: lower"):
        sharegpt(path)


def test_joining_takes_time_in_proportion_to_the_text(sharegpt: Build, talks: Talks) -> None:
    """Joining one after the other would copy 300,000 ever longer texts: hours."""
    (request,) = sharegpt(talks(("a", *["human: x"] * 300_000, "gpt: y")))
    assert request.prompt_tokens == 3 * 300_000 - 2 + 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_requests": 0}, "workload.num_requests=0: expected a whole number from 1 to 16777216, or null for all"),
        ({"max_tokens": 0}, "workload.max_tokens=0: expected a whole number from 1"),
        ({"min_prompt_tokens": 0}, "workload.min_prompt_tokens=0: expected a whole number from 1"),
        ({"max_total_tokens": True}, "workload.max_total_tokens=true: expected a whole number from 1"),
        (
            {"min_prompt_tokens": 9, "max_prompt_tokens": 8},
            "workload.min_prompt_tokens=9: expected at most workload.max_prompt_tokens=8",
        ),
        (
            {"min_output_tokens": 9, "max_tokens": 8},
            "workload.min_output_tokens=9: expected at most workload.max_tokens=8",
        ),
        ({"arrival": ArrivalSettings("at_once", rate=1)}, "workload.arrival.rate=1: expected null"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_file_is_read(
    sharegpt: Build, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        sharegpt(Path("there is no such file"), **changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
