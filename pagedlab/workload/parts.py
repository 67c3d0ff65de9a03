"""From what a ShareGPT file holds to conversations that can be replayed: parts joined, turns made to alternate."""

from __future__ import annotations

import re
from itertools import groupby

from pagedlab.workload.conversations import Conversation, Message

SUFFIX = re.compile(r"(.*)_([0-9]{1,9})", re.DOTALL)


def join_parts(entries: list[Conversation]) -> list[Conversation]:
    """Undo FastChat's splitter, which cut long conversations into the entries x_0, x_11, ... (x: the id).

    Entries with the same x are taken in the order of their number, then of the file. One that begins with the
    assistant continues the one before it: either with the reply to its last message or, as the first versions of
    the splitter left it, with that very reply once more, which is then taken once. Any other entry is a
    conversation of its own, for ids like talk_1 and talk_2 mean nothing by themselves, and histories must not be
    made up. A joined conversation has the id and the place of its first part.
    """
    groups: dict[str, list[tuple[int, int]]] = {}
    for index, entry in enumerate(entries):
        match = SUFFIX.fullmatch(entry.id)
        prefix, number = (match[1], int(match[2])) if match else (entry.id, -1)
        groups.setdefault(prefix, []).append((number, index))

    joined: dict[int, list[Message]] = {}
    for parts in groups.values():
        first = -1
        for _, index in sorted(parts):
            tail = _continuation(joined[first], entries[index].messages) if first >= 0 else None
            if tail is None:
                first = index
                joined[first] = list(entries[index].messages)
            else:
                joined[first].extend(tail)
    return [Conversation(entries[index].id, tuple(joined[index])) for index in sorted(joined)]


def _continuation(before: list[Message], part: tuple[Message, ...]) -> tuple[Message, ...] | None:
    """What `part` adds to the messages `before` it, or None when it does not continue them."""
    if part[0].role != "assistant":
        return None
    if part[0] == before[-1]:
        return part[1:]
    return part if before[-1].role == "user" else None


def alternate(conversation: Conversation) -> Conversation:
    """Drop what the assistant says before the first question, and join neighbours of one role by a blank line.

    Chat templates refuse two messages of a role in a row, or give each its markers; one message with both texts
    is what all of them can write. About a third of the entries of ShareGPT files begin with the assistant.
    """
    roles = [message.role for message in conversation.messages]
    asked = roles.index("user") if "user" in roles else len(roles)
    kept = [m for i, m in enumerate(conversation.messages) if i > asked or m.role != "assistant"]
    runs = groupby(kept, key=lambda message: message.role)
    return Conversation(
        conversation.id, tuple(Message(role, "\n\n".join(message.text for message in run)) for role, run in runs)
    )
