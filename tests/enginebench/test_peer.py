"""Another engine in a process of its own: started once, asked as often as one likes, and one line where it fails."""

import sys

import pytest

from pagedlab.core.errors import ConfigError, PagedlabError
from pagedlab.enginebench import peer as peers
from pagedlab.enginebench.peer import PEERS, Peer
from pagedlab.model.load import load_model
from tests.torch_lab import generate, small_model

ENGINE = """
import sys
from colorsys import rgb_to_hsv  # a folder of drivers must not hide what a driver imports
def load(work):
    print("noise of the engine")
    def serve(requests):
        return [[sum(r["prompt"])] * r["output_tokens"] for r in requests]
    return serve
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of drivers with one more, `colorsys`, named as what it imports."""
    there = tmp_path / "peers"
    there.mkdir()
    (there / "driver.py").write_text((peers.FOLDER / "driver.py").read_text())
    (there / "colorsys.py").write_text(ENGINE)
    (there / "broken.py").write_text("raise ImportError('no such engine')")
    (there / "dying.py").write_text(
        "def load(work):\n    return lambda requests: exit() if len(requests) > 4 else []\n"
    )
    monkeypatch.setattr(peers, "FOLDER", there)
    monkeypatch.setattr(peers, "PEERS", ("colorsys", "broken", "dying"))
    return tmp_path


def work(count=5):
    return {"requests": [{"prompt": [i, 1], "output_tokens": 3} for i in range(count)]}


def test_it_answers_each_time_with_tokens_and_what_they_cost(folder):
    peer = Peer("colorsys", sys.executable, work(), folder / "work.json")
    try:
        for _ in range(2):
            answer = peer.run()
            assert answer["tokens"] == [[i + 1] * 3 for i in range(5)]
            assert answer["output_tokens"] == 15
            assert answer["output_tokens_per_s"] == pytest.approx(15 / answer["wall_s"])
            assert answer["peak_rss_bytes"] > 1e6
            assert answer["cpu_s"] >= 0
    finally:
        peer.close()


def test_what_it_said_last_is_said_where_it_does_not_start(folder):
    with pytest.raises(PagedlabError, match="broken did not start: ImportError: no such engine"):
        Peer("broken", sys.executable, work(), folder / "work.json")


def test_one_that_ends_in_a_run_says_so(folder):
    peer = Peer("dying", sys.executable, work(), folder / "work.json")
    with pytest.raises(PagedlabError, match="dying ended in a run"):
        peer.run()


def test_an_unknown_peer_and_an_interpreter_that_is_none(folder):
    with pytest.raises(ConfigError, match=r"bench\.against=tgi: no such peer, expected one of colorsys, broken"):
        Peer("tgi", sys.executable, work(), folder / "work.json")
    with pytest.raises(ConfigError, match=r"bench\.python=/nowhere: cannot be run"):
        Peer("colorsys", "/nowhere", work(), folder / "work.json")


def test_every_peer_is_a_file():
    assert PEERS == ("openvino", "transformers", "vllm")


def test_transformers_in_static_batches_is_generate(tmp_path):
    """Left padding, answers of several lengths in one batch, each cut to its own: the tokens of each request alone."""
    model = load_model(small_model("llama"), None, "cpu")
    model.save_pretrained(tmp_path / "model")
    requests = [{"prompt": list(range(5, 5 + p)), "output_tokens": g} for p, g in [(3, 9), (17, 4), (8, 12)]]
    of = {"model": str(tmp_path / "model"), "dtype": "float32", "threads": 2, "requests": requests}
    peer = Peer("transformers", sys.executable, of, tmp_path / "work.json")
    try:
        tokens = peer.run()["tokens"]
    finally:
        peer.close()
    import numpy as np

    assert tokens == [generate(model, np.array(r["prompt"], dtype=np.int32), r["output_tokens"]) for r in requests]
