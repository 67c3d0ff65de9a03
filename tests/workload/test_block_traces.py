"""Traces of block ids: what each format means, and one line for every way in which a file can be wrong."""

from __future__ import annotations

import json

import pytest

from pagedlab.core.errors import WorkloadError
from pagedlab.settings import BlockTraceSettings
from pagedlab.workload import ids, jsonfile, mooncake, oracle_general
from pagedlab.workload.oracle_general import RECORD

READERS = {"mooncake": mooncake.read, "ids": ids.read, "oracle_general": oracle_general.read}


def read(name, path):
    return list(READERS[name](BlockTraceSettings(name, str(path), 512, None), path))


def line(**changes):
    entry = {"timestamp": 3000, "input_length": 1000, "output_length": 7, "hash_ids": [4, 5]} | changes
    return json.dumps({key: value for key, value in entry.items() if value is not ...})


def test_mooncake_gives_seconds_lengths_and_blocks(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(line() + "\n\n" + line(timestamp=4500.5, input_length=1, hash_ids=[2**64 - 1]) + "\n")
    first, second = read("mooncake", path)
    assert (first.time_s, first.blocks, first.prompt_tokens, first.output_tokens) == (3.0, [4, 5], 1000, 7)
    assert (second.time_s, second.blocks) == (4.5005, [2**64 - 1])


def test_a_line_of_ids_is_a_request(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("3 1,4\n\n  15\t9 \n7")
    assert [(request.time_s, request.blocks) for request in read("ids", path)] == [
        (0.0, [3, 1, 4]),
        (1.0, [15, 9]),
        (2.0, [7]),
    ]


def test_oracle_general_gives_a_request_for_each_reference(tmp_path):
    path = tmp_path / "trace.oracleGeneral"
    path.write_bytes(RECORD.pack(100, 2**64 - 1, 4096, -1) + RECORD.pack(102, 7, 1, 5))
    assert [(request.time_s, request.blocks) for request in read("oracle_general", path)] == [
        (0.0, [2**64 - 1]),
        (2.0, [7]),
    ]


FAULTS = {
    "no timestamp": (line(timestamp=...), 'no "timestamp"'),
    "negative time": (line(timestamp=-1), "timestamp: -1, expected milliseconds from 0 to 1e+15"),
    "time true": (line(timestamp=True), "timestamp: true, expected milliseconds"),
    "time text": (line(timestamp="3"), "timestamp: '3', expected milliseconds"),
    "time NaN": (line().replace("3000", "NaN"), "NaN, which is not JSON"),
    "time infinite": (line().replace("3000", "1e999"), "timestamp: inf, expected milliseconds"),
    "time of 400 digits": (line().replace("3000", "9" * 400), "timestamp: 9999"),
    "no input": (line(input_length=...), 'no "input_length"'),
    "input 0": (line(input_length=0, hash_ids=[]), "input_length: 0, expected a whole number from 1"),
    "input 1.5": (line(input_length=1.5), "input_length: 1.5, expected a whole number from 1"),
    "input huge": (line(input_length=10**9), "input_length: 1000000000, expected a whole number from 1 to 16777216"),
    "output negative": (line(output_length=-3), "output_length: -3, expected a whole number from 0"),
    "no ids": (line(hash_ids=...), 'no "hash_ids"'),
    "ids a number": (line(hash_ids=4), "hash_ids: 4, expected a list of ids"),
    "too few ids": (line(hash_ids=[1]), "hash_ids: 1 ids, expected 2 for 1000 tokens in blocks of 512"),
    "id negative": (line(hash_ids=[1, -2]), "hash_ids[1]: -2, expected a whole number from 0"),
    "id 2**64": (line(hash_ids=[1, 2**64]), "hash_ids[1]: 18446744073709551616, expected a whole number"),
    "id text": (line(hash_ids=[1, "x"]), "hash_ids[1]: 'x', expected a whole number"),
    "id true": (line(hash_ids=[1, True]), "hash_ids[1]: true, expected a whole number"),
    "key twice": (line()[:-1] + ', "timestamp": 4}', "the key 'timestamp' twice in one object"),
    "a list": ("[1, 2]", "begins with '1', expected an object"),
    "cut off": (line()[:40], "not JSON"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_mooncake_line_is_refused_in_one_line(fault, tmp_path):
    content, said = FAULTS[fault]
    path = tmp_path / "trace.jsonl"
    path.write_text(content if content.startswith("[") else line() + "\n" + content + "\n")
    with pytest.raises(WorkloadError) as refused:
        read("mooncake", path)
    message = str(refused.value)
    assert message.startswith(f"{path}: {'entry 0' if content.startswith('[') else 'line 2'}: ")
    assert said in message
    assert len(message) < len(str(path)) + 200
    assert "\n" not in message


def test_time_may_not_go_back(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(line(timestamp=5) + "\n" + line(timestamp=4) + "\n")
    with pytest.raises(WorkloadError, match="line 2: timestamp: 4, expected no less than 5 of the line before"):
        read("mooncake", path)
    path.write_bytes(RECORD.pack(9, 1, 1, -1) + RECORD.pack(8, 1, 1, -1))
    with pytest.raises(WorkloadError, match="reference 1: time: 8, expected at least 9"):
        read("oracle_general", path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"1 2\nx 3\n", "line 2: id 0: 'x', expected a whole number from 0"),
        (b"1 -2\n", "line 1: id 1: '-2', expected a whole number from 0"),
        (b"1.5\n", "line 1: id 0: '1.5', expected a whole number from 0"),
        (b"18446744073709551616\n", "line 1: id 0: 18446744073709551616, expected a whole number from 0 to"),
        (b"9" * 5000, "line 1: id 0: '9999"),
        (b"\xff\xfe\n", "line 1: id 0: '\ufffd\ufffd', expected a whole number from 0"),
    ],
)
def test_a_malformed_list_of_ids_is_refused_in_one_line(content, said, tmp_path):
    path = tmp_path / "ids.txt"
    path.write_bytes(content)
    with pytest.raises(WorkloadError) as refused:
        read("ids", path)
    assert said in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 200


def test_a_line_without_end_is_refused_before_it_is_held(tmp_path, monkeypatch):
    for module in (jsonfile, ids):
        monkeypatch.setattr(module, "LINE_LIMIT", 50)
    path = tmp_path / "long"
    path.write_text("1 " * 100)
    with pytest.raises(WorkloadError, match="line 1: longer than 50 bytes"):
        read("ids", path)
    path.write_text('{"timestamp": 1, "hash_ids": [' + "1, " * 100)
    with pytest.raises(WorkloadError, match="line 1: longer than 50 bytes"):
        read("mooncake", path)


def test_a_binary_trace_that_is_cut_off_is_refused(tmp_path):
    path = tmp_path / "trace.oracleGeneral"
    path.write_bytes(RECORD.pack(1, 2, 3, -1) + b"\0" * 10)
    with pytest.raises(WorkloadError, match="reference 1: 10 bytes, expected 24"):
        read("oracle_general", path)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_refused(name, tmp_path):
    with pytest.raises(WorkloadError, match="No such file"):
        read(name, tmp_path / "nowhere")
    with pytest.raises(WorkloadError, match="not a regular file"):
        read(name, tmp_path)
