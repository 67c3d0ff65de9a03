"""Files that are wrong, hand-made and drawn by seed, for every format: each refused in one named line, in bounded time
and memory, none taken silently."""

from __future__ import annotations

import copy
import json
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from functools import partial
from importlib import import_module
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagedlab.core.errors import PagedlabError
from pagedlab.model.byte_tokenizer import ByteTokenizer
from pagedlab.settings import OPTIONS, ArrivalSettings, SamplingSettings
from pagedlab.workload import jsonfile, request_lines, trace_file
from pagedlab.workload.base import WORKLOADS
from tests.audit.harness import Check, Found
from tests.lab import CONF

FEWEST = 200  # of a format
MOST_MEMORY_MB = 300.0  # more than before, in all of a format
MOST_LINE = 1 << 12  # instead of a limit of megabytes

GREEDY = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, ignore_eos=True)


def read(workload: str, path: Path) -> int:
    """How many requests the file holds."""
    fields = yaml.safe_load((CONF / "workload" / f"{workload}.yaml").read_text())
    if "arrival" in fields:
        fields["arrival"] = ArrivalSettings(**fields["arrival"])
    limits = ("num_requests", "min_prompt_tokens", "max_prompt_tokens", "min_output_tokens", "max_total_tokens")
    fields |= {name: None for name in limits if name in fields}
    settings = OPTIONS["workload"][workload](**fields | {"path": str(path)})
    return len(WORKLOADS[workload](settings, GREEDY, ByteTokenizer(1000), 0))


# ---- JSON -----------------------------------------------------------------------------------------------------------

TALK = {
    "id": "a",
    "conversations": [{"from": "human", "value": "Hello you"}, {"from": "gpt", "value": "And hello to you"}],
}
CHAT = {"messages": [{"role": "user", "content": "Hello you"}, {"role": "assistant", "content": "And hello to you"}]}
HASHED = {"timestamp": 5, "input_length": 700, "output_length": 9, "hash_ids": [4, 5]}
COUNTED = {"prompt_tokens": 30, "output_tokens": 7}
TOGETHER = {"timestamp": 5, "requests": [{"prompt_length": 30, "output_length": 7}]}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


class Raw(str):
    """JSON, or what is none, as it is to stand in the file."""


ALWAYS = [None, True, False, -1, 1.5, 10**400, [], {}, [[]], {"a": 1}, nested(60), "", "\0", "x" * 5000]
RAW = [Raw(text) for text in ("NaN", "Infinity", "-Infinity", "1e999", "nul", "'a'", "9" * 5000, "01", "[" * 3000, "")]
TEXT = [*ALWAYS[:-1], 3, *RAW]  # wrong where text is expected: long text is not
NUMBER = [*ALWAYS, "3", "abc", *RAW]


def written(value: Any) -> str:
    """As JSON, but what is `Raw` as it is."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def put(entry: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(entry)
    at = changed
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return changed


def bad_values(entry: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every place of the entry, with every value that is wrong there, or without it where it must be."""
    for path in places(entry):
        was, name = entry, path[-1]
        for key in path:
            was = was[key]
        if isinstance(was, dict | list):
            wrong = [None, True, 3, "text", 1.5, *RAW]
            if name in ("messages", "hash_ids"):  # ShareGPT has conversations of nothing, AIBrix moments
                wrong.append([])
        else:
            wrong = list(TEXT if isinstance(was, str) else NUMBER)
        if name == "id":
            wrong = [value for value in wrong if type(value) not in (int, type(None)) or type(value) is bool]
        elif (isinstance(name, str) and name != "timestamp") or (name == "timestamp" and "hash_ids" in entry):
            wrong.append(...)
        if name in ("value", "content"):
            wrong = [value for value in wrong if value != ""]  # an empty message is one
        if name == "timestamp":
            wrong = [value for value in wrong if value != 1.5 and (value is not None or "hash_ids" in entry)]
        if path == ("requests", 0):
            wrong.remove(Raw(""))  # which leaves an empty list
        for value in wrong:
            said = "gone" if value is ... else written(value)[:30]
            yield f"{'.'.join(map(str, path))}={said}", put(entry, path, value)


def json_files(entry: dict[str, Any], array: bool) -> Iterator[tuple[str, bytes]]:
    good = json.dumps(entry)
    for said, bad in bad_values(entry):
        text = written(bad)
        yield f"line 2: {said}", f"{good}\n{text}\n".encode("utf-8", "surrogatepass")
        yield f"line 1: {said}", f"{text}\n{good}\n".encode("utf-8", "surrogatepass")
        if array:
            yield f"entry 1: {said}", f"[{good}, {text}]".encode("utf-8", "surrogatepass")
    whole = f"[{good}, {good}]" if array else good
    for cut in range(1, len(whole), 3):
        yield f"cut off at {cut}", whole[:cut].encode()
    quote = good.index('"') + 1
    for byte in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00", b"\n", b"\x1f", b"\xf8\x88\x80\x80\x80"):
        yield f"byte {byte!r} in a key", good[:quote].encode() + byte + good[quote:].encode()
    yield "a key twice", (good[:-1] + ", " + good[1:]).encode()
    yield "a line without end", (good[:-1] + " " * MOST_LINE * 3 + "}").encode() if not array else b'["' + b"a" * 99999
    for head in (b"", b" ", b"\xef\xbb\xbf", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"null", b"3", b'"a"', b"<html>"):
        yield f"only {head!r}", head
    yield "utf-16", good.encode("utf-16")


# ---- CSV ------------------------------------------------------------------------------------------------------------

WRONG_COUNTS = ("", "abc", "-1", "0", "1.5", "nan", "inf", "1e3", "9" * 400, "true", "0x10", "1_000", "\u0661", "+5")
WRONG_COUNTS += ("None", "null", "[]", '"', '"1', "1;2", "--1", "1 2", "\0", "99999999999999999999", "16777217")
WRONG_TIMES = ("", "abc", "-1", "nan", "inf", "-inf", "1e400", "0x10", "2023", "true", "None", "1 2", "\0", "1:00")
WRONG_DATES = ("", "abc", "-1", "nan", "2023-13-01", "2023-02-30 00:00:00", "99999-01-01", "12", "yesterday")
WRONG_DATES += ("2023-11-16T25:00:00", "18:15:46", "2023/11/16 18:15:46", "\0", "2023-11-16 18:15:46+99:00")
TABLES: dict[str, tuple[str, list[str], dict[int, tuple[str, ...]]]] = {
    # format -> header, a good row, column -> what is wrong in it
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        ["2023-11-16 18:15:46.6805900", "374", "44"],
        {0: WRONG_DATES, 1: WRONG_COUNTS, 2: WRONG_COUNTS},
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        ["5", "ChatGPT", "472", "18", "490", "Conversation log"],
        {0: WRONG_TIMES[:8], 2: WRONG_COUNTS, 3: WRONG_COUNTS},
    ),
    "token_counts": ("prompt_tokens,output_tokens", ["74", "918"], {0: WRONG_COUNTS, 1: WRONG_COUNTS}),
}


def csv_files(workload: str) -> Iterator[tuple[str, bytes]]:
    header, good, wrong = TABLES[workload]
    rows = [",".join(good)] * 3
    for at in range(3):
        for column, values in wrong.items():
            for value in values:
                bad = [*good[:column], value, *good[column + 1 :]]
                for end in ("\n", "\r\n"):
                    text = end.join([header, *rows[:at], ",".join(bad), *rows[at + 1 :]]) + end
                    yield f"row {at}, column {column}: {value[:20]!r}", text.encode()
        for said, bad_row in (("too few cells", good[0]), ("only a comma", ","), ("a quote too many", '"' + rows[0])):
            yield f"row {at}: {said}", "\n".join([header, *rows[:at], bad_row, *rows[at + 1 :]]).encode()
        for byte in (b"\xff", b"\xc3\x28", b"\xed\xa0\x80"):
            bad_line = byte + rows[0].encode()
            yield f"row {at}: {byte!r}", b"\n".join([header.encode(), *[rows[0].encode()] * at, bad_line])
        long = "\n".join([header, *rows[:at], rows[0] + "," + "x" * 3 * MOST_LINE])
        yield f"row {at} without end", long.encode()
    names = header.split(",")
    for column in wrong:
        for name in ("", "x", names[column].upper() + "S", names[column].replace("o", "0") + "_"):
            changed = ",".join([*names[:column], name, *names[column + 1 :]])
            yield f"no column {column}: {name!r}", "\n".join([changed, *rows]).encode()
    semicolons = header.replace(",", ";").encode()
    for head in (b"", b"\n\n", header.encode(), b"\x1f\x8b\x08\x00", b"\0\0", b"{}", b"[]", semicolons):
        yield f"only {head[:20]!r}", head
    yield "utf-16", "\n".join([header, *rows]).encode("utf-16")


# ---- config ---------------------------------------------------------------------------------------------------------


def config_values() -> Iterator[tuple[str, str]]:
    """(setting, a value that it cannot have), of every number and switch that a composed config has."""
    from pagedlab.config import load_settings
    from tests.config.composed import composed

    made = asdict(load_settings(composed()))  # of their own types: 80 of a YAML file may be a float

    def leaves(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield f"{prefix}{key}", value
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    for path, value in leaves(made, ""):
        if path.split(".")[-1] in ("provenance", "config") or ".provenance." in path or ".config." in path:
            continue
        if isinstance(value, dict):
            yield f"+{path}.no_such_setting", "1"
            yield path, "[1]"
        elif isinstance(value, bool):
            yield from ((path, bad) for bad in ("2", "maybe", "[true]", "{a: 1}", "null", "1.5"))
        elif isinstance(value, int):
            yield from ((path, bad) for bad in ("abc", "1.5", "nan", "[1]", "{a: 1}", "1e3", "-99"))
        elif isinstance(value, float):
            yield from ((path, bad) for bad in ("abc", "nan", "[1]", "{a: 1}", "-99"))


def bad_configs(found: Found) -> None:
    """Each refused in one line before anything is built, as `pagedlab plan` does."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from pagedlab.config import load_settings
    from pagedlab.launch import one_line
    from tests.config.composed import overridden

    for path, value in config_values():
        name = f"config {path}={value}"
        try:
            load_settings(overridden((), f"{path}={value}"))
        except PagedlabError as error:
            _is_one_line(found, name, str(error))
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            _is_one_line(found, name, one_line(error))
        except Exception as error:
            found.attempt(name, False, f"{type(error).__name__}: {error}")
        else:
            found.attempt(name, False, "was taken")


# ---- a run folder ---------------------------------------------------------------------------------------------------


def bad_run_folders(found: Found) -> None:
    """Cut off anywhere, or of another kind: a tracker says so in a line, and it is no completed run."""
    from pagedlab.recorder.folder import holds_completed_run
    from pagedlab.tracker import base, rundata
    from tests.recorder.writer import write

    class Reader:
        def __init__(self, settings: Any):
            pass

        def publish(self, run_dir: Path, name: str, group: str | None) -> None:
            rundata.summary(run_dir)
            rundata.timeline(run_dir, 50)
            rundata.requests(run_dir, 50)

    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made)
        write(folder, 3)
        patch.setattr(base, "TRACKERS", {"none": Reader})
        patch.setattr(base.log, "disabled", True)
        settings = OPTIONS["tracker"]["none"]("none")
        for file in ("summary.json", "timeline.parquet", "requests.parquet"):
            whole = (folder / file).read_bytes()
            cuts = sorted({at * len(whole) // 80 for at in range(80)} - {len(whole)})
            if file == "summary.json":
                cuts = list(range(whole.rstrip().rindex(b"}")))
            other = [(f"only {text!r}", text) for text in (b"null", b"3", b"[]", b"PAR1", b"PAR1PAR1", b"\0" * 64)]
            for said, content in [*((f"cut off at {at}", whole[:at]) for at in cuts), *other]:
                (folder / file).write_bytes(content)
                line = base.publish(settings, folder, "name", None)
                found.attempt(f"run folder: {file} {said}", line is not None and "\n" not in line, "was taken")
                if file == "summary.json":
                    found.attempt(f"{file} {said}: completed", not holds_completed_run(folder), "was taken")
            (folder / file).unlink()
            line = base.publish(settings, folder, "name", None)
            found.attempt(f"run folder: no {file}", line is not None and "\n" not in line, "was taken")
            (folder / file).write_bytes(whole)


# What Python's and Arrow's readers say, which is of no use to whoever looks for the file that is wrong.
FOREIGN = ("Arrow", "Thrift", "Expecting", "delimiter", "Traceback", "Parquet magic", "KeyError", "line 1 column")
READERS = {  # file -> the commands that read it
    "summary.json": ("results", "compare", "report", "trace"),
    "config.yaml": ("results", "compare", "report", "trace"),
    "requests.parquet": ("results --sql", "compare", "report", "trace"),
    "timeline.parquet": ("results --sql", "report", "trace"),
    "events.parquet": ("results --sql", "report", "trace"),
    "blocks.parquet": ("report",),
}


def damages(file: str, whole: bytes) -> Iterator[tuple[str, bytes | None]]:
    rng = random.Random(file)
    most = whole.rstrip().rindex(b"}") if file.endswith(".json") else len(whole)
    if file != "config.yaml":  # the first half of a YAML file may be one
        yield from ((f"cut off at {at}", whole[:at]) for at in sorted({at * most // 8 for at in range(8)}))
    yield from ((f"only {text!r}", text) for text in (b"null", b"3", b"[]", b"\0" * 64, b"PAR1PAR1", b"\xff\xfe{"))
    yield "noise", rng.randbytes(300)
    if file != "config.yaml":
        yield "gone", None
    if file.endswith(".parquet"):
        # In the pages, which have checksums: their headers and the footer have none, and bytes of no use to a reader.
        pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        for at in sorted(rng.sample(range(4, pages), 6)):
            yield f"byte {at} altered", whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
    if file == "summary.json":
        for name in ("seed", "status", "num_requests", "schema_version", "completed", "duration_s", "ttft_s"):
            values = json.loads(whole)
            yield f"{name}='x'", json.dumps(values | {name: "x"}).encode() if name != "status" else b'{"status": 3}'


def damaged_run_folders(found: Found) -> None:
    """Every command that reads finished runs, on a run with one file that is damaged: exit code 2 and one line of our
    words that names the file; where the damage is in what the command does not read, all that it makes is as before."""
    from tests.analysis.served_run import serve_run

    with tempfile.TemporaryDirectory() as made:
        sound, folder = Path(made) / "sound", Path(made) / "run"
        serve_run(sound, "prefix_cache=hash_chain", "record_blocks=true")
        shutil.copytree(sound, folder)
        words = {"results": [folder], "results --sql": [folder, "--sql", "select 1 from requests, timeline, events"]}
        words |= {"compare": [folder, sound], "report": [folder], "trace": [folder]}
        before = {command: run_command(command.partition(" ")[0], words[command], folder) for command in words}
        for command, (code, said, _) in before.items():
            found.attempt(f"{command} of the sound run", code == 0, said)
        for file, commands in READERS.items():
            whole = (sound / file).read_bytes()
            for said, content in damages(file, whole):
                (folder / file).unlink(missing_ok=True)
                if content is not None:
                    (folder / file).write_bytes(content)
                if file == "blocks.parquet" and content is None:
                    continue  # not every run has one
                for command in commands:
                    if (
                        said.endswith("='x'")
                        and command != "report"
                        and said.partition("=")[0] not in ("seed", "status")
                    ):
                        continue  # which looks at nothing of that
                    got = run_command(command.partition(" ")[0], words[command], folder)
                    code, line, _ = got
                    ours = line.startswith("error: ") and line.count("\n") == 1 and not any(w in line for w in FOREIGN)
                    # Without a summary it is no run, which is said of the folder.
                    named = file in line or (said == "gone" and str(folder) in line)
                    unseen = said.startswith("byte") and got == before[command]
                    refused = code == 2 and ours and named
                    found.attempt(f"{file} {said}: {command}", refused or unseen, f"{code}: {line[:300]!r}")
            (folder / file).write_bytes(whole)


def run_command(command: str, words: list[Any], folder: Path) -> tuple[int, str, dict[str, bytes]]:
    """Its exit code, what it says on stderr, and what it makes: its stdout and the files that it adds to the folder."""
    main = import_module(f"pagedlab.experiments.{command}").main
    made: dict[str, bytes] = {}
    before = set(folder.iterdir())
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()) as out:
        patch.setattr(sys, "argv", [command, *map(str, words)])
        try:
            code = int(main())
        except Exception as error:
            return 1, f"{type(error).__name__}: {error}", made
    for path in set(folder.iterdir()) - before:
        made[path.name] = path.read_bytes()
        path.unlink()
    return code, said.getvalue(), made | {"stdout": out.getvalue().encode()}


# ---- a checkpoint ---------------------------------------------------------------------------------------------------


def checkpoints(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Of a safetensors file: cut off anywhere, a header that lies, noise."""
    size = int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8 : 8 + size]), good[8 + size :]
    names = [name for name in header if name != "__metadata__"]

    def with_header(changed: Any) -> bytes:
        text = (changed if isinstance(changed, str) else json.dumps(changed)).encode()
        return len(text).to_bytes(8, "little") + text + data

    for at in range(0, len(good), max(1, len(good) // 60)):
        yield f"cut off at {at}", good[:at]
    for length in (0, 1, 7, size - 1, size + 1, 2**31, 2**62, 2**63, 2**64 - 1):
        yield f"header of {length} bytes", length.to_bytes(8, "little") + good[8:]
    for name in names[:6]:
        one = header[name]
        for field, values in {
            "dtype": ["F99", "", None, 3, "F64", "I8", "BOOL"],
            "shape": [None, [], [-1], [2**62, 2**62], ["a"], [1.5], [*one["shape"], 2], 3],
            "data_offsets": [None, [], [0], [-1, 4], [2**63, 2**63], [5, 1], ["a", "b"], [0, 2**40], [1, 5]],
        }.items():
            for value in values:
                yield f"{name} {field}={value}", with_header(header | {name: one | {field: value}})
        yield f"{name} without a field", with_header(header | {name: {"dtype": one["dtype"]}})
        yield f"{name} is no object", with_header(header | {name: [1]})
        yield f"{name} is gone", with_header({key: value for key, value in header.items() if key != name})
    for text in ("{]", "", "[]", "null", "3", '{"a": 5}', "[" * 3000, '{"a": NaN}', "\u00e9" * 9):
        yield f"header {text[:20]!r}", with_header(text)
    rng = random.Random(0)
    for number in range(20):
        yield f"noise {number}", rng.randbytes(200)


def bad_checkpoints(found: Found) -> None:
    from pagedlab.model.load import load_model
    from pagedlab.model.locate import model_folder
    from pagedlab.settings import ModelSettings
    from tests.model.conftest import TINY_LLAMA

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "tiny"
        tiny = ModelSettings(name="tiny", source="random", config=dict(TINY_LLAMA))
        load_model(tiny, None, "cpu").save_pretrained(folder)
        weights, settings = folder / "model.safetensors", ModelSettings(name="x", path=str(folder))
        for said, content in checkpoints(weights.read_bytes()):
            weights.write_bytes(content)
            _refused(found, f"checkpoint: {said}", lambda: load_model(settings, model_folder(settings), "cpu"))


# ---- what is tried --------------------------------------------------------------------------------------------------


def _is_one_line(found: Found, name: str, line: str) -> None:
    found.attempt(name, line.isprintable() and 0 < len(line) < 1000, f"said {line[:200]!r}")


def _refused(found: Found, name: str, attempt: Callable[[], object]) -> None:
    try:
        taken = attempt()
    except PagedlabError as error:
        _is_one_line(found, name, str(error))
    except Exception as error:
        found.attempt(name, False, f"{type(error).__name__}: {str(error)[:200]}")
    else:
        found.attempt(name, False, f"was taken: {taken}"[:200])


def bad_workloads(found: Found, workload: str, files: Iterator[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        for module, name in ((jsonfile, "LINE_LIMIT"), (request_lines, "LINE_LIMIT"), (trace_file, "CSV_LINE_LIMIT")):
            patch.setattr(module, name, MOST_LINE)
        path = Path(made) / "file"
        for said, content in files:
            path.write_bytes(content)
            _refused(found, f"{workload}: {said}", lambda: f"{read(workload, path)} requests")


FORMATS: dict[str, Callable[[Found], None]] = {
    "sharegpt": lambda found: bad_workloads(found, "sharegpt", json_files(TALK, array=True)),
    "openai messages": lambda found: bad_workloads(found, "sharegpt", json_files(CHAT, array=True)),
    "mooncake": lambda found: bad_workloads(found, "mooncake", json_files(HASHED, array=False)),
    "request lines": lambda found: bad_workloads(
        found, "request_lines", chain(json_files(COUNTED, array=False), json_files(TOGETHER, array=False))
    ),
    **{name: partial(lambda name, found: bad_workloads(found, name, csv_files(name)), name) for name in TABLES},
    "config": bad_configs,
    "run folder": bad_run_folders,
    "run folder, by command": damaged_run_folders,
    "checkpoint": bad_checkpoints,
}


def pieces(short: bool) -> list[str]:
    return [name for name in FORMATS if not short or name in ("token_counts", "mooncake")]


def attempt(name: str) -> Found:
    found = Found()
    before = _memory_mb()
    FORMATS[name](found)
    grown = _memory_mb() - before
    if name not in ("config", "checkpoint", "run folder, by command"):  # which import large libraries first
        found.attempt(f"{name}: memory", grown < MOST_MEMORY_MB, f"{grown:.0f} MB more than before")
        found.figures["most MB"] = round(grown, 1)
    found.figures["files"] = {name: found.tried}
    if found.tried < FEWEST:
        found.faults.append(f"{name}: only {found.tried} files")
    return found


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


CHECK = Check(
    "files that are wrong, each refused in one line, at least 200 a format", pieces, attempt, FEWEST * len(FORMATS)
)
