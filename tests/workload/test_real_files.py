"""Files of the real kind: the conversations that pagedlab ships, and public ones where they are at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pagedlab.core.request import Request
from pagedlab.workload.conversations import read_conversations
from pagedlab.workload.parts import alternate, join_parts
from pagedlab.workload.sharegpt import SHIPPED

Build = Callable[..., list[Request]]
PUBLIC = Path(__file__).parents[3] / "shared" / "data"


def test_the_shipped_conversations_are_what_every_default_run_can_rely_on() -> None:
    conversations = list(read_conversations(SHIPPED))
    assert len(conversations) >= 60
    assert len({conversation.id for conversation in conversations}) == len(conversations)
    for conversation in conversations:
        roles = [message.role for message in conversation.messages]
        assert len(roles) >= 4, conversation.id
        assert roles == ["user", "assistant"] * (len(roles) // 2), conversation.id
        assert all(message.text.strip() for message in conversation.messages), conversation.id
    # Nothing to mend in them: they are replayed as they stand.
    assert [alternate(conversation) for conversation in join_parts(conversations)] == conversations


def test_without_a_path_the_shipped_conversations_are_asked(sharegpt: Build) -> None:
    conversations = list(read_conversations(SHIPPED))
    assert len(sharegpt(None, multi_turn=False)) == len(conversations)
    assert len(sharegpt(None)) == sum(len(conversation.messages) // 2 for conversation in conversations)
    assert len(sharegpt(None, num_requests=64)) == 64


@pytest.mark.parametrize(
    ("file", "conversations", "replies"),
    [("oasst/oasst_paths_sharegpt_format.json", 562, 918), ("fastchat/dummy_conversation.json", 500, 1000)],
)
def test_public_files_read_whole(sharegpt: Build, file: str, conversations: int, replies: int) -> None:
    path = PUBLIC / file
    if not path.exists():
        pytest.skip(f"{file} is not beside this repository")
    assert len(sharegpt(path, multi_turn=False)) == conversations
    assert len(sharegpt(path)) == replies
