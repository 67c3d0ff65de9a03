"""From files to conversations: both forms, every role, parts of one conversation, turns that alternate."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.workload.conversations import Conversation, Message, read_conversations
from pagedlab.workload.parts import alternate, join_parts

Talks = Callable[..., Path]


def said(conversation: Conversation) -> list[str]:
    """Each message as "u: text"."""
    return [f"{message.role[0]}: {message.text}" for message in conversation.messages]


def test_both_forms_read_alike_as_an_array_and_as_jsonl(tmp_path: Path) -> None:
    sharegpt = {
        "id": "x",
        "model": "",
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}],
    }
    openai = {
        "id": "x",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo", "n": 1}],
    }
    path = tmp_path / "talks"
    expected = [Conversation("x", (Message("user", "Hi"), Message("assistant", "Yo")))] * 2
    path.write_text(json.dumps([sharegpt, openai]))
    assert list(read_conversations(path)) == expected
    path.write_text(f"{json.dumps(sharegpt)}\n{json.dumps(openai)}\n")
    assert list(read_conversations(path)) == expected


@pytest.mark.parametrize(
    ("role", "meaning"),
    [
        ("human", "user"),
        ("user", "user"),
        ("gpt", "assistant"),
        ("chatgpt", "assistant"),
        ("bing", "assistant"),
        ("bard", "assistant"),
        ("assistant", "assistant"),
        ("model", "assistant"),
        ("system", "system"),
    ],
)
def test_every_role_found_in_the_wild_is_one_of_three(talks: Talks, role: str, meaning: str) -> None:
    (conversation,) = read_conversations(talks(("a", f"{role}: Hi")))
    assert conversation.messages == (Message(meaning, "Hi"),)


def test_an_entry_without_an_id_has_its_index_and_a_number_is_an_id_too(tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    messages = [{"role": "user", "content": "Hi"}]
    path.write_text("\n".join(json.dumps(x) for x in [{"messages": messages}, {"id": 7, "messages": messages}]))
    assert [conversation.id for conversation in read_conversations(path)] == ["0", "7"]


def test_the_empty_entries_that_fastchats_splitter_leaves_are_passed_over(talks: Talks) -> None:
    assert [c.id for c in read_conversations(talks(("x_0",), ("x_0", "Hi", "Yo"), ("y_0",)))] == ["x_0"]


class TestParts:
    def joined(self, path: Path) -> dict[str, list[str]]:
        return {conversation.id: said(conversation) for conversation in join_parts(list(read_conversations(path)))}

    def test_a_part_that_begins_with_the_reply_continues_the_one_that_ends_with_the_question(
        self, talks: Talks
    ) -> None:
        path = talks(("x_0", "1", "2", "3"), ("x_3", "gpt: 4", "human: 5", "gpt: 6"))
        assert self.joined(path) == {"x_0": ["u: 1", "a: 2", "u: 3", "a: 4", "u: 5", "a: 6"]}

    def test_a_reply_that_ends_one_part_and_begins_the_next_is_taken_once(self, talks: Talks) -> None:
        path = talks(("x_0", "1", "2"), ("x_1", "gpt: 2", "human: 3", "gpt: 4"))
        assert self.joined(path) == {"x_0": ["u: 1", "a: 2", "u: 3", "a: 4"]}

    def test_parts_are_ordered_by_number_and_not_as_text_nor_as_the_file_has_them(self, talks: Talks) -> None:
        path = talks(
            ("x_11", "gpt: 12", "human: 13", "gpt: 14"), ("x_2", "gpt: 3", "human: 11"), ("y", "Hi", "Yo"), ("x_0", "1")
        )
        assert self.joined(path) == {
            "y": ["u: Hi", "a: Yo"],
            "x_0": ["u: 1", "a: 3", "u: 11", "a: 12", "u: 13", "a: 14"],
        }

    def test_two_entries_of_one_id_are_parts_in_the_order_of_the_file(self, talks: Talks) -> None:
        assert self.joined(talks(("x", "1"), ("x", "gpt: 2"))) == {"x": ["u: 1", "a: 2"]}

    def test_an_id_without_a_number_is_the_first_part(self, talks: Talks) -> None:
        assert self.joined(talks(("x_1", "gpt: 2"), ("x", "1"))) == {"x": ["u: 1", "a: 2"]}

    def test_a_part_that_begins_with_a_question_is_a_conversation_of_its_own(self, talks: Talks) -> None:
        path = talks(("identity_0", "1", "2"), ("identity_1", "3", "4"))
        assert self.joined(path) == {"identity_0": ["u: 1", "a: 2"], "identity_1": ["u: 3", "a: 4"]}

    def test_a_part_after_a_gap_does_not_continue_another_reply(self, talks: Talks) -> None:
        path = talks(("x_0", "1", "2"), ("x_9", "gpt: 10", "human: 11", "gpt: 12"))
        assert self.joined(path) == {"x_0": ["u: 1", "a: 2"], "x_9": ["a: 10", "u: 11", "a: 12"]}

    def test_parts_of_other_conversations_do_not_join(self, talks: Talks) -> None:
        path = talks(("x_0", "1"), ("y_1", "gpt: 2", "human: 3", "gpt: 4"))
        assert self.joined(path) == {"x_0": ["u: 1"], "y_1": ["a: 2", "u: 3", "a: 4"]}

    @given(
        texts=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
        cuts=st.sets(st.integers(1, 11)),
        order=st.randoms(),
    )
    def test_what_the_old_splitter_cut_at_replies_comes_back_whole(
        self, texts: list[str], cuts: set[int], order: object
    ) -> None:
        """The first versions of FastChat's splitter: a part cut before a reply is still given that reply."""
        whole = [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
        starts = [0, *sorted(cut for cut in cuts if cut < len(whole) and cut % 2)]
        parts = [
            Conversation(f"x_{start}", tuple(whole[start : end + 1]))
            for start, end in zip(starts, [*starts[1:], len(whole) - 1], strict=True)
        ]
        order.shuffle(parts)  # type: ignore[attr-defined]
        assert join_parts(parts) == [Conversation("x_0", tuple(whole))]


class TestAlternate:
    @pytest.mark.parametrize(
        ("messages", "kept"),
        [
            (["gpt: 0", "human: 1", "gpt: 2"], ["u: 1", "a: 2"]),
            (["gpt: 0", "gpt: 0"], []),
            (["system: s", "gpt: 0", "human: 1", "gpt: 2"], ["s: s", "u: 1", "a: 2"]),
            (["human: 1", "human: 2", "gpt: 3", "gpt: 4"], ["u: 1\n\n2", "a: 3\n\n4"]),
            (["system: s", "system: t", "human: 1"], ["s: s\n\nt", "u: 1"]),
            (["human: 1", "gpt: 2", "system: s", "human: 3"], ["u: 1", "a: 2", "s: s", "u: 3"]),
        ],
    )
    def test_what_stays(self, talks: Talks, messages: list[str], kept: list[str]) -> None:
        (conversation,) = read_conversations(talks(("x", *messages)))
        assert said(alternate(conversation)) == kept

    @given(st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), st.sampled_from("ab"))))
    def test_no_two_neighbours_have_one_role_and_nothing_asked_is_lost(self, messages: list[Message]) -> None:
        result = alternate(Conversation("x", tuple(messages))).messages
        assert all(a.role != b.role for a, b in pairwise(result))
        asked = [message.text for message in messages if message.role == "user"]
        assert "".join(m.text.replace("\n\n", "") for m in result if m.role == "user") == "".join(asked)
        assert alternate(Conversation("x", result)).messages == result
