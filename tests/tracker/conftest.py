"""A small run folder, a local stand-in for the W&B server, and an environment that can reach nothing else."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pagedlab.settings import WandbSettings

SHARES = ("token_states", "reserved", "internal", "block_tail", "cached_idle", "free", "external")
SUMMARY = {
    "status": "completed",
    "output_tokens_per_s": 125.5,
    "kv_waste_fraction": 0.04,
    "preemptions": 3,
    "kv_waste_fraction_when_full": None,
    "broken": math.nan,
    "ttft_s": {"mean": 0.25, "p50": 0.2, "p90": 0.4, "p99": 0.5},
}
CONFIG = """\
seed: 7
max_model_len: 2048
hf_token: hf_planted_in_config
model: {name: tiny, path: 'https://user:planted-password@host/model', revision: planted-in-environment}
scheduler: {max_num_batched_tokens: 512}
tracker: {name: wandb, note: '${oc.env:PLANTED_TOKEN}'}
"""


@pytest.fixture(autouse=True)
def _no_real_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address in the environment is a closed port of this machine."""
    # WANDB_SERVICE is wandb's own: how it finds the service that an earlier test started in this process.
    for name in [name for name in os.environ if name.startswith("WANDB_") and name != "WANDB_SERVICE"]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("WANDB_BASE_URL", closed)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("HTTPS_PROXY", closed)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PLANTED_TOKEN", "planted-in-environment")


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Builds a run folder; step i lasts from i/4 to (i+1)/4 s and holds i+1 token states of a pool of 64 slots."""

    def build(steps: int = 40, requests: int = 6) -> Path:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        (run_dir / "config.yaml").write_text(CONFIG.replace("planted-in-environment", "main"))
        (run_dir / "summary.json").write_text(json.dumps(SUMMARY))
        (run_dir / "env.json").write_text("{}")
        held = [min(i + 1, 64) for i in range(steps)]
        timeline: dict[str, Any] = {
            "step": list(range(steps)),
            "start_s": [i / 4 for i in range(steps)],
            "end_s": [(i + 1) / 4 for i in range(steps)],
            "running": held,
            "waiting": [0] * steps,
            "preemptions": [i // 10 for i in range(steps)],
            **{f"kv_{share}": [0] * steps for share in SHARES},
        }
        timeline |= {"kv_token_states": held, "kv_free": [64 - n for n in held]}
        pq.write_table(pa.table(timeline), run_dir / "timeline.parquet")
        rows = {
            "id": list(range(requests)),
            "ttft_s": [0.5 * i for i in range(requests)],
            "tpot_s": pa.array([math.nan, *[0.01] * (requests - 1)]),
            "finish_reason": ["length"] * requests,
            "output_token_ids": [[1, 2, 3]] * requests,
        }
        pq.write_table(pa.table(rows), run_dir / "requests.parquet")
        pq.write_table(pa.table({"time_s": pa.array([], pa.float64())}), run_dir / "events.parquet")
        return run_dir

    return build


@pytest.fixture
def settings() -> Callable[..., WandbSettings]:
    def build(mode: str = "offline", group: str | None = None, timeout_s: float = 20) -> WandbSettings:
        return WandbSettings("wandb", mode, "lab", None, group, "serve", ["a", "b"], timeout_s)

    return build


@pytest.fixture
def recorded() -> Callable[[Path], dict[str, str]]:
    """What the recorder wrote, as name -> digest: a tracker must leave it alone."""

    def digests(run_dir: Path) -> dict[str, str]:
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in run_dir.glob("*.*")}

    return digests


class Server:
    """What wandb 0.31 asks of a server, answered; what it sends, kept. behaviour: ok, error or silent."""

    def __init__(self, behaviour: str = "ok"):
        self.behaviour = behaviour
        self.requests: list[str] = []
        self.runs: list[dict[str, Any]] = []  # the variables of every UpsertBucket
        self.views: list[dict[str, Any]] = []  # the variables of every UpsertView2
        self.artifacts: list[dict[str, Any]] = []  # the input of every CreateArtifact
        self.history: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def receive(self, path: str, body: bytes) -> dict[str, Any]:
        if path == "/graphql":
            message = json.loads(body)
            operation = re.search(r"(?:query|mutation)\s+(\w+)", message["query"])
            return {"data": self._answer(operation[1] if operation else "", message.get("variables") or {})}
        if path.endswith("/file_stream"):
            chunk = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
            self.history += [json.loads(line) for line in chunk.get("content", [])]
        elif path.startswith("/upload/"):
            self.files[path.removeprefix("/upload/")] = body
        return {}

    def _answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        def file(name: str) -> dict[str, Any]:
            return {"id": "f", "name": name, "uploadUrl": f"{self.url}/upload/{name}", "uploadHeaders": []}

        if operation == "UpsertBucket":
            self.runs.append(variables)
            project = {"id": "p", "name": "lab", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": variables["name"], "displayName": "", "config": "{}", "historyLineCount": 0}
            return {"upsertBucket": {"bucket": {**bucket, "project": project}, "inserted": True}}
        if operation == "Viewer":
            return {"viewer": {"id": "u", "username": "me", "entity": "me", "flags": "{}", "teams": {"edges": []}}}
        if operation == "UpsertView2":
            self.views.append(variables)
            return {"upsertView": {"view": {"id": "v", "name": variables["name"]}, "inserted": True}}
        if operation == "CreateRunFiles":
            names = variables["files"]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": [file(name) for name in names]}}
        if operation == "CreateArtifact":
            self.artifacts.append(variables["input"])
            artifact = {"id": "a", "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
            return {"createArtifact": {"artifact": artifact}}
        if operation == "CreateArtifactManifest":
            return {"createArtifactManifest": {"artifactManifest": {"id": "m", "file": file("manifest")}}}
        if operation == "CreateArtifactFiles":
            names = [spec["name"] for spec in variables["input"]["artifactFiles"]]
            edges = [{"node": {**file(f"artifact/{name}"), "artifact": {"id": "a"}}} for name in names]
            return {"createArtifactFiles": {"files": {"edges": edges}}}
        if operation == "CommitArtifact":
            return {"commitArtifact": {"artifact": {"id": "a", "digest": "d"}}}
        return {"serverInfo": {"features": []}} if operation == "ServerFeaturesQuery" else {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.requests.append(self.path)
                if server.behaviour == "silent":
                    time.sleep(60)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                # An empty answer to a query crashes wandb's service, hence a whole answer or an error.
                answer = json.dumps(server.receive(self.path, body) if server.behaviour == "ok" else {}).encode()
                self.send_response(200 if server.behaviour == "ok" else 500)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_PUT = do_POST

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Server]]:
    """Starts a server that behaves as told, and makes it the W&B server of this test."""
    started = []

    def start(behaviour: str) -> Server:
        server = Server(behaviour)
        started.append(server)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        return server

    yield start
    for server in started:
        server.http.shutdown()
        # Not server_close(): it would wait for the answers that a silent server never gives.
        server.http.socket.close()
