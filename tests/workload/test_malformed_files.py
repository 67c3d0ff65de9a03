"""Every way in which a conversation file can be wrong: one line that names the file, the place and the fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedlab.core.errors import WorkloadError
from pagedlab.core.request import Request

Build = Callable[..., list[Request]]

GOOD = '{"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}]}'


def array(*entries: Any) -> str:
    """A ShareGPT file whose entry 0 is sound."""
    return f"[{GOOD}, {', '.join(json.dumps(entry) for entry in entries)}]"


def talk(*messages: Any, **fields: Any) -> str:
    return array({"conversations": list(messages), **fields})


def chat(*messages: Any) -> str:
    return array({"messages": list(messages)})


ASK = {"from": "human", "value": "Hi"}
MESSAGE = "conversations[1]"

# name: (content, what the line says after the file's name)
FAULTS: dict[str, tuple[str | bytes, str]] = {
    # The file.
    "empty": (b"", "empty, expected a JSON array of objects or one JSON object a line"),
    "blank": (b" \n\t\n", "empty, expected a JSON array of objects or one JSON object a line"),
    "only a byte order mark": (b"\xef\xbb\xbf", "empty, expected"),
    "utf-16": (GOOD.encode("utf-16"), "begins with b'\\xff', expected a JSON array"),
    "gzip": (b"\x1f\x8b\x08\x00", "begins with b'\\x1f', expected a JSON array"),
    "root is text": ('"hello"', "begins with b'\"', expected a JSON array"),
    "root is a number": ("3", "begins with b'3', expected a JSON array"),
    "root is null": ("null", "begins with b'n', expected a JSON array"),
    "root is one object over many lines": ('{\n"data": []}', "line 1: not JSON: Expecting property name"),
    "root is an object that wraps the list": ('{"data": []}', 'line 1: neither of "conversations" and "messages"'),
    "invalid utf-8 in an array": (b'[{"id": "\xff"}]', "byte 9: not UTF-8 (invalid start byte)"),
    "utf-8 cut off in an array": (b'[{"id": "\xe2\x82', "byte 9: not UTF-8 (unexpected end of data)"),
    "invalid utf-8 in a line": (GOOD.encode() + b'\n{"a": "\xff"}', "line 2: byte 7: not UTF-8 (invalid start byte)"),
    # The array and its entries.
    "array without entries": ("[]", "no conversation has a question and a reply"),
    "array never closed": (f"[{GOOD}", "after entry 0: the end of the file, expected a comma or the array's end"),
    "array cut off in an entry": (f"[{GOOD}, {GOOD[:40]}", "entry 1: not JSON: Unterminated string"),
    "array cut off after a comma": (f"[{GOOD},", "entry 1: the file ends before it"),
    "comma too many": (f"[{GOOD},]", "entry 1: begins with ']', expected an object"),
    "comma missing": (f"[{GOOD} {GOOD}]", "after entry 0: '{', expected a comma or the array's end"),
    "something after the array": (f"[{GOOD}]\n{GOOD}", "'{' after the array, expected the end of the file"),
    "entry is null": ("[null]", "entry 0: begins with 'n', expected an object"),
    "entry is a list": ("[[]]", "entry 0: begins with '[', expected an object"),
    "entry is text": (array("hello"), "entry 1: begins with '\"', expected an object"),
    "line is cut off": (f"{GOOD}\n{GOOD[:50]}\n", "line 2: not JSON: "),
    "line is a list": (f"{GOOD}\n[]\n", "line 2: a list, expected an object"),
    "line is a number": (f"{GOOD}\n12\n", "line 2: 12, expected an object"),
    "two objects on a line": (f"{GOOD} {GOOD}", "line 1: not JSON: Extra data at "),
    # What Python's json would take.
    "a key twice": ('[{"id": "a", "id": "b"}]', "entry 0: the key 'id' twice in one object"),
    "a key twice deep inside": ('[{"x": [{"y": {"z": 1, "z": 1}}]}]', "entry 0: the key 'z' twice in one object"),
    "NaN": ('[{"id": NaN}]', "entry 0: NaN, which is not JSON"),
    "Infinity": ('{"id": Infinity}', "line 1: Infinity, which is not JSON"),
    "minus Infinity": ('[{"id": -Infinity}]', "entry 0: -Infinity, which is not JSON"),
    "an integer without end": (
        f'[{{"id": {"9" * 4301}}}]',
        "entry 0: an integer of 4301 digits, expected at most 4300",
    ),
    "nested without end": ('[{"x": ' + "[" * 100_000, "entry 0: nested too deeply"),
    "nested without end in a line": ('{"x": ' + '{"x": ' * 100_000, "line 1: nested too deeply"),
    "a raw line break in text": ('[{"id": "a\nb"}]', "entry 0: not JSON: Invalid control character at"),
    "single quotes": ("[{'id': 'a'}]", "entry 0: not JSON: Expecting property name"),
    # The list of messages.
    "no list": (array({"id": "b"}), 'entry 1: neither of "conversations" and "messages", expected one'),
    "both lists": (array({"conversations": [], "messages": []}), 'entry 1: both of "conversations" and "messages"'),
    "list is null": (array({"conversations": None}), "entry 1: conversations: null, expected a list of messages"),
    "list is text": (array({"messages": "Hi"}), "entry 1: messages: 'Hi', expected a list of messages"),
    "list is an object": (array({"messages": {}}), "entry 1: messages: an object, expected a list of messages"),
    "messages are none": (chat(), "entry 1: messages: an empty list, expected messages"),
    # A message.
    "message is text": (talk(ASK, "Yo"), f"entry 1: {MESSAGE}: 'Yo', expected an object"),
    "message is null": (chat(None), "entry 1: messages[0]: null, expected an object"),
    "no role": (talk(ASK, {"value": "Yo"}), f'entry 1: {MESSAGE}: no "from", expected text'),
    "no text": (talk(ASK, {"from": "gpt"}), f'entry 1: {MESSAGE}: no "value", expected text'),
    "keys of the other form": (talk({"role": "user", "content": "Hi"}), 'entry 1: conversations[0]: no "from"'),
    "role unknown": (
        talk({"from": "narrator", "value": "Yo"}),
        "conversations[0].from: 'narrator', expected one of human",
    ),
    "role without end": (
        talk({"from": "x" * 9999, "value": "Yo"}),
        f"[0].from: '{'x' * 40}'..., expected one of human",
    ),
    "role in capitals": (
        talk({"from": "Human", "value": "Yo"}),
        "conversations[0].from: 'Human', expected one of human",
    ),
    "role is a number": (talk({"from": 1, "value": "Yo"}), "conversations[0].from: 1, expected one of human"),
    "role is a list": (talk({"from": [], "value": "Yo"}), "conversations[0].from: a list, expected one of human"),
    "role tool": (chat({"role": "tool", "content": "42"}), "messages[0].role: 'tool': tool calls are not served"),
    "role function": (
        talk({"from": "function", "value": "42"}),
        "conversations[0].from: 'function': tool calls are not",
    ),
    "text is null": (chat({"role": "assistant", "content": None}), "messages[0].content: null, expected text"),
    "text is a number": (talk(ASK, {"from": "gpt", "value": 3}), f"entry 1: {MESSAGE}.value: 3, expected text"),
    "text is true": (talk(ASK, {"from": "gpt", "value": True}), f"entry 1: {MESSAGE}.value: true, expected text"),
    "text is in parts": (
        chat({"role": "user", "content": [{"type": "text"}]}),
        "messages[0].content: a list, expected",
    ),
    "half a surrogate pair": (
        talk({"from": "human", "value": "a\ud83d"}),
        "[0].value: character 1 is '\\ud83d', expected",
    ),
    "NUL": (talk({"from": "human", "value": "a\0"}), "conversations[0].value: character 1 is '\\x00', expected no NUL"),
    # The id.
    "id is empty": (talk(ASK, id=""), "entry 1: id: 0 characters, expected 1 to 256"),
    "id is endless": (talk(ASK, id="x" * 257), "entry 1: id: 257 characters, expected 1 to 256"),
    "id is a list": (talk(ASK, id=[]), "entry 1: id: a list, expected text"),
    "id is true": (talk(ASK, id=True), "entry 1: id: true, expected text"),
    "id has a NUL": (talk(ASK, id="\0"), "entry 1: id: character 0 is '\\x00', expected no NUL"),
    # Sound, but nothing to ask.
    "nobody asks": (
        f"[{json.dumps({'conversations': [{'from': 'gpt', 'value': 'Yo'}]})}]",
        "no conversation has a question",
    ),
    "nobody replies": (f"[{json.dumps({'conversations': [ASK, ASK]})}]", "no conversation has a question and a reply"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("multi_turn", [False, True])
def test_a_malformed_file_is_refused_in_one_line(sharegpt: Build, tmp_path: Path, fault: str, multi_turn: bool) -> None:
    content, message = FAULTS[fault]
    path = tmp_path / "talks.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(WorkloadError) as caught:
        sharegpt(path, multi_turn=multi_turn)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert line.isprintable()  # which a line break is not
    assert len(line) < len(str(path)) + 250


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("missing.json", "No such file or directory"),
        ("a\0b", "null"),
        ("line\nbreak.json", "No such file or directory"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused_in_one_line(
    sharegpt: Build, tmp_path: Path, name: str, fault: str
) -> None:
    with pytest.raises(WorkloadError) as caught:
        sharegpt(tmp_path / name)
    assert fault in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_home_that_does_not_exist_is_a_path_that_does_not(sharegpt: Build) -> None:
    with pytest.raises(WorkloadError, match="No such file or directory"):
        sharegpt(Path("~nobody-by-this-name/talks.json"))
