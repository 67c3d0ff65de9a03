"""Another engine, in its own Python environment, over the same requests: started once, run as often as asked."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import psutil

from pagedlab.core.errors import ConfigError, PagedlabError

FOLDER = Path(__file__).resolve().parent / "peers"
PEERS = tuple(sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "driver"))
_START_S, _RUN_S = 900, 3600


class Peer:
    """name: one of PEERS. python: an interpreter that can import it. work: what to serve, written to `file`: model (a
    folder), dtype, block_size, kv_bytes, kv_bytes_per_token, max_model_len, max_num_seqs, max_num_batched_tokens,
    threads, requests. PagedlabError in one line where it does not answer; what it said is in `file`.log."""

    def __init__(self, name: str, python: str, work: dict[str, Any], file: Path):
        if name not in PEERS:
            raise ConfigError(f"bench.against={name}: no such peer, expected one of {', '.join(PEERS)}")
        self.name = name
        file.write_text(json.dumps(work))
        self._log = file.with_name(f"{file.name}.log")
        command = [python, "-u", str(FOLDER / "driver.py"), name, str(file)]
        with self._log.open("w") as log:
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            except OSError as error:
                raise ConfigError(f"bench.python={python}: cannot be run: {error.strerror}") from None
        if self._answer(_START_S).strip() != "ready":
            raise self._silent("did not start")

    def run(self) -> dict[str, Any]:
        """Serve once. wall_s, output_tokens, tokens; cpu_s and peak_rss_bytes of all its processes."""
        before = self._cpu_s()
        if self._process.stdin is None:
            raise self._silent("takes no orders")
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        line = self._answer(_RUN_S)
        if not line:
            raise self._silent("ended in a run")
        answer: dict[str, Any] = json.loads(line)
        answer["cpu_s"] = self._cpu_s() - before
        answer["peak_rss_bytes"] = sum(_peak_rss(process) for process in self._processes())
        answer["output_tokens_per_s"] = answer["output_tokens"] / answer["wall_s"]
        return answer

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self, seconds: float) -> str:
        """The next line, empty where the process ends or takes longer."""
        if self._process.stdout is None:
            return ""
        watchdog = threading.Timer(seconds, self._process.kill)
        watchdog.start()
        try:
            return self._process.stdout.readline()
        finally:
            watchdog.cancel()

    def _silent(self, what: str) -> PagedlabError:
        self.close()
        lines = self._log.read_text().strip().splitlines()
        return PagedlabError(f"{self.name} {what}: {lines[-1] if lines else 'no word of why'} ({self._log})")

    def _processes(self) -> list[psutil.Process]:
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in self._processes()]
        return sum(time.user + time.system for time in times)


def _peak_rss(process: psutil.Process) -> int:
    """VmHWM of Linux, else what is resident now."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return int(process.memory_info().rss)
