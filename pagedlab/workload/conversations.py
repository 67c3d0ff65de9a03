"""Conversations from ShareGPT and OpenAI-messages files, checked field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedlab.core.errors import WorkloadError
from pagedlab.workload.checks import one_line, shown
from pagedlab.workload.jsonfile import json_objects

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "assistant", "model"), "assistant"),
    "system": "system",
}
TOOL_ROLES = ("tool", "function")
# The list of messages -> the keys of a message in it.
FORMS = {"conversations": ("from", "value"), "messages": ("role", "content")}
ID_LIMIT = 256  # characters
# NUL, which ends text in other languages, and halves of a surrogate pair, which UTF-8 cannot write.
BAD_CHARACTER = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Message:
    """role: system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """id: as the file has it, or the entry's index where it has none; not necessarily unique."""

    id: str
    messages: tuple[Message, ...]


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a file, in its order, as they stand there. Fields that are not needed are not looked at.

    `"conversations": []` is passed over and no fault: FastChat's splitter, which made the ShareGPT files in use,
    writes it for a first message that is too long. An empty "messages" has no such excuse.
    Raises WorkloadError of one line: file, entry, field, value, what was expected.
    """
    name = one_line(path)
    for index, (place, entry) in enumerate(json_objects(path)):
        where = f"{name}: {place}: "
        messages = _messages(entry, where)
        if messages:
            yield Conversation(_id(entry, index, where), messages)


def _messages(entry: dict[str, Any], where: str) -> tuple[Message, ...]:
    forms = [form for form in FORMS if form in entry]
    if len(forms) != 1:
        raise WorkloadError(f'{where}{"both" if forms else "neither"} of "conversations" and "messages", expected one')
    (form,) = forms
    items = entry[form]
    if not isinstance(items, list):
        raise WorkloadError(f"{where}{form}: {shown(items)}, expected a list of messages")
    if form == "messages" and not items:
        raise WorkloadError(f"{where}{form}: an empty list, expected messages")
    return tuple(_message(item, *FORMS[form], f"{where}{form}[{i}]") for i, item in enumerate(items))


def _message(item: object, role_key: str, text_key: str, where: str) -> Message:
    if not isinstance(item, dict):
        raise WorkloadError(f"{where}: {shown(item)}, expected an object")
    for key in (role_key, text_key):
        if key not in item:
            raise WorkloadError(f'{where}: no "{key}", expected text')
    role, text = item[role_key], item[text_key]
    if role in TOOL_ROLES:
        raise WorkloadError(f"{where}.{role_key}: {shown(role)}: tool calls are not served, expected a chat without")
    if not isinstance(role, str) or role not in ROLES:
        raise WorkloadError(f"{where}.{role_key}: {shown(role)}, expected one of {', '.join(ROLES)}")
    return Message(ROLES[role], _text(text, f"{where}.{text_key}"))


def _id(entry: dict[str, Any], index: int, where: str) -> str:
    id = entry.get("id")
    if id is None:
        return str(index)
    text = str(id) if type(id) is int else _text(id, f"{where}id")
    if not 0 < len(text) <= ID_LIMIT:
        raise WorkloadError(f"{where}id: {len(text)} characters, expected 1 to {ID_LIMIT}")
    return text


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise WorkloadError(f"{where}: {shown(value)}, expected text")
    if bad := BAD_CHARACTER.search(value):
        raise WorkloadError(f"{where}: character {bad.start()} is {bad[0]!r}, expected no NUL and no half pair")
    return value
