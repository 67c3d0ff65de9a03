"""`pagedlab report`: all of a run on one page; nothing on it reaches out or runs, whatever the run is called."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pagedlab.analysis.report.page import Page
from pagedlab.analysis.report.report import report
from pagedlab.analysis.runs import find_runs
from tests.analysis.made import make_run
from tests.analysis.served_run import serve_run

ROOT = Path(__file__).resolve().parents[2]
EVIL = "<script>alert(1)</script><img src=http://x.example/a onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text += data


def check_closed(html):
    """Nothing that runs, nothing that is fetched: links go to the page itself, pictures are in it."""
    read = Reader(html)
    assert not {"script", "link", "iframe", "object", "embed", "form", "base", "foreignobject"} & set(read.tags)
    for tag, name, value in read.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ("href", "xlink:href", "src", "action", "srcset"):
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:80])
        if name == "style":
            assert "url(" not in value or "url(#" in value
    for place in re.findall(r"url\(([^)]*)\)", html):
        assert place.startswith("#"), place
    assert "@import" not in html
    policy = next(value for tag, name, value in read.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    return read


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    words = ["prefix_cache=hash_chain", "preemption=swap", "kv_num_blocks=14", "workload.num_requests=12"]
    return serve_run(tmp_path_factory.mktemp("run") / "run", *words, "record_blocks=true")


def test_a_run_has_every_section_and_reaches_nowhere(run_folder):
    html = report(run_folder, find_runs(run_folder).runs)
    read = check_closed(html)
    for title in ("Summary", "Memory", "Batch", "Preemptions and evictions", "Latency", "Config", "Environment"):
        assert f"<h2>{title}</h2>" in html
    assert read.tags.count("svg") == 5
    labels = [value for tag, name, value in read.attributes if (tag, name) == ("svg", "aria-label")]
    assert labels[:2] == ["split of the KV memory over time", "map of the blocks over time"]
    assert "kv_num_blocks: 14" in read.text
    assert "git_sha" in read.text


def test_the_same_run_gives_the_same_page(run_folder):
    runs = find_runs(run_folder).runs
    assert report(run_folder, runs) == report(run_folder, runs)


def test_what_a_run_says_of_itself_is_text_wherever_it_stands(run_folder, tmp_path):
    evil = tmp_path / "<b>run"
    evil.mkdir()
    for path in run_folder.iterdir():
        (evil / path.name).write_bytes(path.read_bytes())
    requests = pq.read_table(evil / "requests.parquet")
    for column in ("source", "client"):
        place = requests.column_names.index(column)
        requests = requests.set_column(place, column, pa.array([EVIL] * len(requests)))
    pq.write_table(requests, evil / "requests.parquet")
    (evil / "config.yaml").write_text(f"seed: 0\nnote: |\n  {EVIL}\n")
    (evil / "env.json").write_text(json.dumps({"argv": [EVIL], EVIL: 1}))
    summary = json.loads((evil / "summary.json").read_text())
    (evil / "summary.json").write_text(json.dumps(summary | {"allocator": EVIL, "clock": EVIL}))
    read = check_closed(report(evil, find_runs(evil).runs))
    assert read.text.count(EVIL) >= 5
    assert "pagedlab run <b>run" in read.text


def test_axis_values_are_text_in_pictures_too(tmp_path):
    for i, value in enumerate((EVIL, "]]>&lt;$x^2$")):
        make_run(tmp_path / str(i), settings={"allocator": value, "block_size": 8 << i}, **sweep_summary(i))
    read = check_closed(report(tmp_path, find_runs(tmp_path).runs))
    assert EVIL in read.text


def sweep_summary(i):
    from pagedlab.recorder.metrics import SPLIT

    shares = {f"kv_{kind}_fraction": 1 / len(SPLIT) for kind in SPLIT}
    return shares | {"output_tokens_per_s": 100.0 + i, "normalized_latency_s_per_token": {"mean": 0.1 * (i + 1)}}


def test_a_sweep_has_bars_a_scatter_and_a_map_of_each_two_axes(tmp_path):
    for i in range(12):
        settings = {"allocator": ("paged", "oracle")[i % 2], "block_size": (8, 16, 32)[i // 2 % 3]}
        make_run(tmp_path / str(i), seed=i // 6, settings=settings, **sweep_summary(i))
    make_run(tmp_path / "stopped", seed=9, status="interrupted", **sweep_summary(0))
    html = report(tmp_path, find_runs(tmp_path).runs)
    read = check_closed(html)
    assert "13 runs, 12 of them completed, over block_size, allocator; seeds: 3." in read.text
    assert read.tags.count("svg") == 3
    assert "block_size x allocator: means over all other settings" in read.text
    assert "interrupted" in read.text


def test_a_run_that_served_nothing_has_a_page(tmp_path):
    folder = serve_run(tmp_path / "run", "kv_num_blocks=1", "workload.prompt.low=40")
    read = check_closed(report(folder, find_runs(folder).runs))
    assert "No request was served" in read.text


def test_a_page_escapes_all_that_it_is_given():
    page = Page(EVIL)
    page.section(EVIL)
    page.text(EVIL)
    page.table([EVIL], [[EVIL], [None], [np.float64(1.5)]], [True])
    page.listing(EVIL)
    read = check_closed(page.html())
    assert read.text.count(EVIL) == 8  # the title twice, the section and its link


def test_the_command_writes_beside_the_run(run_folder, tmp_path):
    command = [sys.executable, "-m", "experiments.report", str(run_folder), "--out", str(tmp_path / "page.html")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"1 run: {tmp_path / 'page.html'}\n"), done.stderr
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
