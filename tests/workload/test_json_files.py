"""Reading JSON arrays and JSONL object by object."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.core.errors import WorkloadError
from pagedlab.workload import json_window, jsonfile
from pagedlab.workload.jsonfile import json_objects
from pagedlab.workload.strict_json import DECODER

# Text that UTF-8 can write, with many of the characters that JSON escapes or that take several bytes.
TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('"\\{}[],:\n\t é€😀'), max_size=12)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(TEXT, VALUE, max_size=4), max_size=4)


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "file.json"


@given(objects=OBJECTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]), chunk=st.integers(1, 40))
def test_an_array_is_what_json_reads_wherever_its_chunks_are_cut(
    file: Path, objects: list[dict[str, Any]], ascii_only: bool, indent: int | None, chunk: int
) -> None:
    file.write_text(json.dumps(objects, ensure_ascii=ascii_only, indent=indent), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_window, "CHUNK", chunk)
        assert [value for _, value in json_objects(file)] == objects


@given(objects=OBJECTS.filter(bool), ascii_only=st.booleans(), end=st.sampled_from(["\n", "\r\n", "\n\n", "\n \n"]))
def test_jsonl_is_what_json_reads_line_by_line(
    file: Path, objects: list[dict[str, Any]], ascii_only: bool, end: str
) -> None:
    text = end.join(json.dumps(value, ensure_ascii=ascii_only) for value in objects)
    file.write_bytes(text.encode())
    assert [value for _, value in json_objects(file)] == objects


@given(data=st.binary(max_size=60) | st.text('[]{}",:\\eE+-.0123456789truefalsn \n', max_size=60).map(str.encode))
def test_bytes_of_any_kind_are_read_or_refused_in_one_line(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    fault = None
    try:
        assert all(isinstance(value, dict) for _, value in json_objects(file))
    except WorkloadError as error:
        fault = str(error)
    assert fault is None or (fault.startswith(f"{file}: ") and fault.isprintable())


def test_places_count_entries_from_zero_and_lines_from_one(file: Path) -> None:
    file.write_text("[{},\n{}]")
    assert [place for place, _ in json_objects(file)] == ["entry 0", "entry 1"]
    file.write_text("{}\n\n{}\n")
    assert [place for place, _ in json_objects(file)] == ["line 1", "line 3"]


@pytest.mark.parametrize("text", ['[{"a": 1}]', '{"a": 1}'])
def test_a_byte_order_mark_is_skipped(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8-sig")
    assert [value for _, value in json_objects(file)] == [{"a": 1}]


def test_an_array_of_many_entries_takes_the_memory_of_few(file: Path) -> None:
    entry = json.dumps({"value": "😀" * 1000}, ensure_ascii=False)
    file.write_text(f"[{','.join([entry] * 8000)}]", encoding="utf-8")
    assert file.stat().st_size > 32_000_000
    tracemalloc.start()
    assert sum(1 for _ in json_objects(file)) == 8000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000


def test_a_fault_is_found_where_it_is_and_not_by_reading_on(file: Path) -> None:
    with file.open("wb") as out:
        out.write(b'[{"a": oops}, ')
        out.truncate(200_000_000)
    tracemalloc.start()
    with pytest.raises(WorkloadError, match="entry 0: not JSON: Expecting value at 'oops"):
        list(json_objects(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_file_over_the_limit_is_not_read(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate((4 << 30) + 1)  # sparse: takes no room on the disk
    with pytest.raises(WorkloadError, match=r"file\.json: 4294967297 bytes, expected at most 4294967296$"):
        list(json_objects(file))


def test_a_line_over_the_limit_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfile, "LINE_LIMIT", 20)
    file.write_text('{"a": 1}\n{"a": "%s"}\n' % ("x" * 10))
    assert len(list(json_objects(file))) == 2
    file.write_text('{"a": 1}\n{"a": "%s"}\n' % ("x" * 11))
    with pytest.raises(WorkloadError, match="line 2: longer than 20 bytes"):
        list(json_objects(file))


@pytest.mark.parametrize("chunk", [8, 1000])
@pytest.mark.parametrize("tail", ["", '"}]'])
def test_an_entry_over_the_limit_is_refused_even_if_it_never_ends(
    file: Path, monkeypatch: pytest.MonkeyPatch, tail: str, chunk: int
) -> None:
    monkeypatch.setattr(json_window, "ENTRY_LIMIT", 20)
    monkeypatch.setattr(json_window, "CHUNK", chunk)
    file.write_text('[{"a": 1}, {"a": "' + "x" * 100 + tail)
    with pytest.raises(WorkloadError, match="entry 1: longer than 20 characters"):
        list(json_objects(file))


def test_a_fault_in_a_window_over_the_limit_is_still_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_window, "ENTRY_LIMIT", 20)
    file.write_text('[{"a": oops}, ' + '{"a": 1}, ' * 10)
    with pytest.raises(WorkloadError, match="entry 0: not JSON: Expecting value at 'oops"):
        list(json_objects(file))


def test_a_long_entry_is_parsed_few_times(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading on by a chunk at a time would take time quadratic in its length."""
    decoder = Mock(wraps=DECODER)
    monkeypatch.setattr(json_window, "DECODER", decoder)
    monkeypatch.setattr(json_window, "CHUNK", 100)
    file.write_text(json.dumps([{"a": "x" * 100_000}]))
    assert len(list(json_objects(file))) == 1
    assert decoder.raw_decode.call_count <= 12


def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer for ever
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(WorkloadError, match=r"not a regular file, expected JSON or JSONL$"):
            list(json_objects(path))
