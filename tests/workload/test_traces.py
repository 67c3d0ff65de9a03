"""Recorded traces of token counts: four formats, one window, every bad row by name."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from pagedlab.core.errors import ConfigError, PagedlabError, WorkloadError
from pagedlab.model.byte_tokenizer import ByteTokenizer
from pagedlab.settings import ArrivalSettings, SamplingSettings, TraceSettings
from pagedlab.workload.base import WORKLOADS

CONF = Path(__file__).parents[2] / "conf" / "workload"
PUBLIC = Path(__file__).parents[3] / "shared" / "data"
GREEDY = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, ignore_eos=True)

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def settings(name, path, **changes):
    fields = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    arrival = ArrivalSettings(**{**fields.pop("arrival"), **changes.pop("arrival", {})})
    return replace(TraceSettings(**fields, arrival=arrival), path=str(path), **changes)


def served(name, path, seed=0, vocabulary=1000, **changes):
    return WORKLOADS[name](settings(name, path, **changes), GREEDY, ByteTokenizer(vocabulary), seed)


def sizes(requests):
    return [(r.prompt_tokens, r.true_output_tokens) for r in requests]


def arrivals(requests):
    return [r.arrival_s for r in requests]


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# ---- formats --------------------------------------------------------------------------------------------------------


def test_azure_2023_has_seven_digits_and_2024_a_zone(write):
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"]
    requests = served("azure", write(AZURE + "\n".join(rows)))
    assert sizes(requests) == [(374, 44), (396, 109)]
    assert arrivals(requests) == pytest.approx([0, 4.314579], abs=1e-6)
    rows = ["2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:01.017335+00:00,2399,6"]
    assert arrivals(served("azure", write(AZURE + "\n".join(rows)))) == pytest.approx([0, 1.007405], abs=1e-6)


def test_burstgpt(write):
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
    requests = served("burstgpt", write(BURST + rows))
    assert sizes(requests) == [(472, 18), (1087, 230)]
    assert arrivals(requests) == [0, 40]


@pytest.mark.parametrize("names", ["prompt_tokens,output_tokens", "num_prefill_tokens,num_decode_tokens"])
def test_counts_without_times(write, names):
    requests = served("token_counts", write(f"{names},more\n74,918,0\n290,905,1\n"))
    assert sizes(requests) == [(74, 918), (290, 905)]
    assert arrivals(requests) == [0, 0]
    assert [r.source for r in requests] == ["0", "1"]


def test_json_lines_of_aibrix_and_of_vllm(write):
    aibrix = [
        {"timestamp": 0, "requests": [{"prompt": "x", "prompt_length": 101, "output_length": 7, "session_id": 0}]},
        {
            "timestamp": 1500,
            "requests": [{"prompt_length": 5, "output_length": 2}, {"prompt_length": 6, "output_length": 3}],
        },
    ]
    path = write("\n".join(map(json.dumps, aibrix)), "trace.jsonl")
    requests = served("request_lines", path, arrival={"process": "recorded"})
    assert sizes(requests) == [(101, 7), (5, 2), (6, 3)]
    assert arrivals(requests) == [0, 1.5, 1.5]
    path = write('{"prompt": "Hello", "output_tokens": 10}\n\n{"prompt": "Yo", "output_tokens": 4}\n', "custom.jsonl")
    requests = served("request_lines", path)
    assert sizes(requests) == [(5, 10), (2, 4)]
    assert requests[0].prompt.tolist() == ByteTokenizer(1000).encode("Hello")


def test_gzip_a_byte_order_mark_and_blank_lines_are_no_fault(write):
    text = b"\xef\xbb\xbfprompt_tokens,output_tokens\r\n\r\n1,2\r\n\r\n3,4\r\n"
    assert sizes(served("token_counts", write(gzip.compress(text), "t.csv.gz"))) == [(1, 2), (3, 4)]


# ---- window, rate, repetitions --------------------------------------------------------------------------------------


def burst(*rows):
    return BURST + "".join(f"{time},m,{prompt},{output},0,log\n" for time, prompt, output in rows)


TEN = burst(*((10 * i, i + 1, 5) for i in range(10)))


def test_rows_come_in_order_of_time(write):
    requests = served("burstgpt", write(burst((30, 3, 1), (10, 1, 1), (20, 2, 1))))
    assert sizes(requests) == [(1, 1), (2, 1), (3, 1)]
    assert arrivals(requests) == [0, 10, 20]


def test_a_window_is_cut_out_and_begins_at_zero(write):
    requests = served("burstgpt", write(TEN), start_s=25, duration_s=30)
    assert [p for p, _ in sizes(requests)] == [4, 5, 6]
    assert arrivals(requests) == [5, 15, 25]


def test_twice_the_rate_is_half_the_gaps(write):
    assert arrivals(served("burstgpt", write(TEN), rate_scale=2.0)) == [5 * i for i in range(10)]


def test_a_repetition_brings_the_same_arrivals_and_the_same_rows_in_another_order(write):
    requests = served("burstgpt", write(TEN), repeats=3)
    assert arrivals(requests) == [10 * i for i in range(30)]  # 90 s and one mean gap are its length
    prompts = [p for p, _ in sizes(requests)]
    assert prompts[:10] == list(range(1, 11))
    assert sorted(prompts[10:20]) == sorted(prompts[20:]) == prompts[:10]
    assert prompts[10:20] != prompts[20:] != prompts[:10]
    assert [p for p, _ in sizes(served("burstgpt", write(TEN), repeats=3, seed=1))][10:] != prompts[10:]
    assert len(served("burstgpt", write(TEN), repeats=3, num_requests=17)) == 17


def test_the_lengths_of_a_trace_may_come_by_a_process(write):
    requests = served("burstgpt", write(TEN), arrival={"process": "constant", "rate": 4.0})
    assert arrivals(requests) == [0.25 * (i + 1) for i in range(10)]


def test_limits_leave_out_and_max_tokens_cuts(write):
    requests = served("burstgpt", write(burst((0, 10, 10), (1, 200, 10), (2, 90, 20))), max_prompt_tokens=100)
    assert sizes(requests) == [(10, 10), (90, 20)]
    requests = served("burstgpt", write(burst((0, 10, 10), (1, 90, 20))), max_total_tokens=100, max_tokens=8)
    assert [(r.max_tokens, r.true_output_tokens) for r in requests] == [(8, 8)]


# ---- prompts --------------------------------------------------------------------------------------------------------


def test_prompts_are_made_up_of_the_seed_and_no_two_begin_alike(write):
    path = write(burst(*((i, 50, 5) for i in range(40))))
    first, again, other = (served("burstgpt", path, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a.prompt, b.prompt) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a.prompt, b.prompt) for a, b in zip(first, other, strict=True))
    assert len({tuple(r.prompt[:8]) for r in first}) == 40
    assert all(r.prompt.dtype == np.int32 and r.prompt.min() >= 0 and r.prompt.max() < 1000 for r in first)


def test_prompts_take_no_memory_of_their_own(write):
    path = write(burst(*((i, 100_000, 5) for i in range(2000))))  # 800 MB, were they apart
    tracemalloc.start()
    requests = served("burstgpt", path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert requests[-1].prompt_tokens == 100_000


# ---- bad rows -------------------------------------------------------------------------------------------------------

WHOLE = "expected a whole number from 1 to 16777216"
BAD = [
    ("azure", AZURE + "2023-11-16 18:15:46,1,2\nyesterday,1,2\n", "3:TIMESTAMP: 'yesterday', expected a date and time"),
    ("azure", AZURE + "2023-11-16 18:15:46,0,2\n", f"2:ContextTokens: 0, {WHOLE}"),
    ("azure", AZURE + "2023-11-16 18:15:46,1.5,2\n", f"2:ContextTokens: '1.5', {WHOLE}"),
    (
        "azure",
        AZURE + "2023-11-16 18:15:46,7\n",
        "2:GeneratedTokens: null, expected a value in column 3, and the row has 2",
    ),
    ("burstgpt", burst((1, 5, 0)), f"2:Response tokens: 0, {WHOLE}"),
    ("burstgpt", burst(("nan", 5, 1)), "2:Timestamp: 'nan', expected a number of at least 0"),
    ("burstgpt", burst((-1, 5, 1)), "2:Timestamp: '-1', expected a number of at least 0"),
    ("burstgpt", burst((1, 10**9, 1)), f"2:Request tokens: 1000000000, {WHOLE}"),
    ("burstgpt", burst((1, "9" * 5000, 1)), f"2:Request tokens: '{'9' * 40}'..., {WHOLE}"),
    ("token_counts", "prompt_tokens,output_tokens\n\n4,-1\n", f"3:output_tokens: '-1', {WHOLE}"),
    ("token_counts", b"prompt_tokens,output_tokens\n4,\xff\n", "2:row: 'byte 2 is 0xff', expected UTF-8"),
    ("token_counts", 'prompt_tokens,output_tokens\n"4,1\n', "2:row: 'unexpected end of data', expected CSV"),
    ("request_lines", '{"prompt_tokens": 3}', "1:output_tokens: null, expected a whole number, as output_tokens or"),
    ("request_lines", '{"output_tokens": 3}', "1:prompt: null, expected text, or its tokens as prompt_tokens"),
    ("request_lines", '{"prompt_tokens": true, "output_tokens": 3}', f"1:prompt_tokens: true, {WHOLE}"),
    ("request_lines", "[1]", "1:row: a list, expected a JSON object"),
    ("request_lines", "{nonsense", "1:row: 'not JSON: Expecting property name"),
    (
        "request_lines",
        '{"requests": [{"prompt_tokens": 1e9, "output_tokens": 3}]}',
        "1:requests[0].prompt_tokens: 1000",
    ),
    (
        "request_lines",
        '{"timestamp": -1, "prompt_tokens": 1, "output_tokens": 3}',
        "1:timestamp: -1, expected a number",
    ),
]


@pytest.mark.parametrize(("name", "text", "line"), BAD, ids=[f"{name}-{line[:30]}" for name, _, line in BAD])
def test_a_bad_row_is_named_by_file_line_field_and_value(write, name, text, line):
    path = write(text)
    with pytest.raises(WorkloadError) as caught:
        served(name, path)
    assert str(caught.value).startswith(f"{path}:{line}")


def test_bad_rows_can_be_skipped_and_are_counted(write, caplog):
    path = write(burst((1, 5, 1), (2, 0, 1), (3, 6, 2), (4, "x", 1), (5, 7, 3)))
    assert sizes(served("burstgpt", path, bad_rows="skip")) == [(5, 1), (6, 2), (7, 3)]
    assert caplog.messages == [f"2 rows skipped, first {path}:3:Request tokens: 0, {WHOLE}"]
    with pytest.raises(WorkloadError, match="no row is left, expected at least one"):
        served("burstgpt", write(burst((1, 0, 1))), bad_rows="skip")


@pytest.mark.parametrize("text", ["", "\n\n", "a,b\n1,2\n", "ContextTokens,GeneratedTokens\n1,2\n"])
def test_a_file_of_another_kind_is_refused_even_when_bad_rows_are_skipped(write, text):
    with pytest.raises(WorkloadError, match=r"empty, expected a header|the header has no column TIMESTAMP"):
        served("azure", write(text), bad_rows="skip")


def test_a_line_without_end_is_refused_or_skipped_in_little_memory(tmp_path):
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.write(AZURE.encode() + b"2023-11-16 18:15:46,1,2\n")
        file.seek(200_000_000, 1)  # a hole: zeros that take no disk
        file.write(b"\n2023-11-16 18:15:47,3,4\n")
    tracemalloc.start()
    assert sizes(served("azure", path, bad_rows="skip")) == [(1, 2), (3, 4)]
    with pytest.raises(WorkloadError, match=r"long.csv:3:row: 'more than 65536 bytes', expected a shorter line"):
        served("azure", path)
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_what_is_no_file_or_no_gzip_is_refused(tmp_path, write):
    for path in (tmp_path, tmp_path / "nowhere.csv", write(b"not gzip", "t.csv.gz")):
        with pytest.raises(WorkloadError):
            served("azure", path)
    cut = write(gzip.compress(AZURE.encode() * 1000)[:60], "cut.csv.gz")
    with pytest.raises(WorkloadError):
        served("azure", cut)


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"bad_rows": "ignore"}, "workload.bad_rows=ignore: expected one of refuse, skip"),
        ({"repeats": 0}, "workload.repeats=0: expected a whole number from 1"),
        ({"repeats": 2**24}, "workload.repeats=16777216: expected at most 1677721, with 10 rows"),
        ({"rate_scale": 0}, "workload.rate_scale=0: expected a number from 1e-06"),
        ({"start_s": -1}, "workload.start_s=-1: expected a number from 0"),
        ({"duration_s": 0}, "workload.duration_s=0: expected a number from 1e-06"),
        ({"num_requests": 11}, "num_requests=11: expected at most 10"),
        ({"start_s": 1000}, "no row is within the window, which begins 1000 s after the first row"),
        (
            {"rate_scale": 2, "arrival": {"process": "at_once"}},
            "workload.rate_scale=2: expected 1, as arrivals are not",
        ),
        ({"arrival": {"rate": 2.0}}, "workload.arrival.rate=2.0: expected null, as recorded arrivals have their own"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(write, changes, line):
    with pytest.raises(PagedlabError) as caught:
        served("burstgpt", write(TEN), **changes)
    assert line in str(caught.value)


def test_a_trace_needs_a_path_and_times_for_what_asks_for_them(write):
    with pytest.raises(ConfigError, match=r"workload.path=null: expected the file of the trace, which workload=azure"):
        WORKLOADS["azure"](replace(settings("azure", "x"), path=None), GREEDY, ByteTokenizer(300), 0)
    path = write("prompt_tokens,output_tokens\n1,2\n")
    for changes in ({"arrival": {"process": "recorded"}}, {"start_s": 1.0}, {"duration_s": 5.0}):
        with pytest.raises(WorkloadError, match="needs the time of every row, and the trace has not got it"):
            served("token_counts", path, **changes)


# ---- real ones ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "rows", "mean_prompt", "mean_output"),
    [
        ("azure", "azure_2023/AzureLLMInferenceTrace_conv.csv.gz", 19_366, 1154.7, 211.1),
        ("token_counts", "sharegpt_lengths/turns.csv.gz", 30_731, None, None),
        ("token_counts", "arxiv_lengths/arxiv_summarization.csv.gz", None, None, None),
    ],
)
def test_public_traces_read_whole(name, file, rows, mean_prompt, mean_output):
    path = PUBLIC / file
    if not path.is_file():
        pytest.skip("needs the public trace")
    requests = served(name, path, bad_rows="skip")
    assert rows is None or len(requests) == rows
    if mean_prompt:
        assert np.mean([p for p, _ in sizes(requests)]) == pytest.approx(mean_prompt, abs=0.1)
        assert np.mean([o for _, o in sizes(requests)]) == pytest.approx(mean_output, abs=0.1)


@pytest.mark.parametrize(
    "line", ['{"prompt_tokens": "3", "output_tokens": 2}', '{"prompt_tokens": 3, "output_len": "2"}']
)
def test_text_in_the_place_of_a_number_of_json_is_refused(write, line):
    with pytest.raises(WorkloadError, match=r"'[23]', expected a number"):
        served("request_lines", write(line, "t.jsonl"))
