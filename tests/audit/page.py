"""An HTML report whose run, prompts' sources, config and axes carry script: nothing unescaped, and in a browser, where
there is one, nothing runs and nothing is fetched."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.audit.harness import Check, Found

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
RAN = "pagedlab-script-ran"
SCRIPT = f"document.documentElement.setAttribute('data-ran', '{RAN}')"
EVIL = [  # {script} is replaced; {port}: of a server that must never be asked
    "<script>{script}</script>",
    "</title><script>{script}</script>",
    "</pre></td></tr></table><script>{script}</script>",
    "</svg></style><script>{script}</script>",
    '<img src=x onerror="{script}">',
    '"><img src=x onerror="{script}">',
    "' onmouseover='{script}' autofocus onfocus='{script}",
    '<svg onload="{script}"></svg>',
    '<iframe srcdoc="<script>parent.{script}</script>"></iframe>',
    '<a href="javascript:{script}" id=a>x</a>',
    '<meta http-equiv=refresh content="0;url=http://127.0.0.1:{port}/">',
    "<link rel=stylesheet href=http://127.0.0.1:{port}/>",
    "<style>body{{background:url(http://127.0.0.1:{port}/)}}</style>",
    "<base href=http://127.0.0.1:{port}/>",
    "<object data=http://127.0.0.1:{port}/></object>",
    "<!--<script>{script}//--></script>",
    "]]><script>{script}</script><![CDATA[",
    "&lt;script&gt;{script}&lt;/script&gt;",
    "\ufeff<script>{script}</script>\u2028",
    "$x^2$ \\<script>{script}</script>",
]


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A port of this machine, and what has come in there."""
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                asked.append(connection.recv(200).decode(errors="replace"))
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1], asked
        server.shutdown(socket.SHUT_RDWR)


def poisoned(sound: Path, folder: Path, text: str) -> None:
    """The run with `text` wherever a run says something of itself."""
    shutil.copytree(sound, folder)
    requests = pq.read_table(folder / "requests.parquet")
    for column in ("source", "client", "status", "finish_reason"):
        place = requests.column_names.index(column)
        requests = requests.set_column(place, column, pa.array([text] * len(requests)))
    pq.write_table(requests, folder / "requests.parquet")
    (folder / "config.yaml").write_text(f"seed: 0\nnote: {json.dumps(text)}\n{json.dumps(text)}: 1\n")
    (folder / "env.json").write_text(json.dumps({"argv": [text], text: text}))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"allocator": text, "clock": text, "model": text}))


def browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def opened(found: Found, name: str, page: Path, asked: list[str]) -> None:
    program = browser()
    if program is None:
        return
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
        command += ["--disable-background-networking", "--virtual-time-budget=2000", page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, errors="replace")
    shown = done.returncode == 0 and "<h2>" in done.stdout
    found.attempt(f"{name}: opens in a browser", shown, done.stderr[-300:])
    found.attempt(f"{name}: no script runs", f'data-ran="{RAN}"' not in done.stdout, "it did")
    found.attempt(f"{name}: nothing is fetched", not asked, asked)
    found.figures["opened in a browser"] = found.figures.get("opened in a browser", 0) + 1


def attempt(every: int) -> Found:
    from pagedlab.analysis.report.report import report
    from pagedlab.analysis.runs import find_runs
    from tests.analysis.made import make_run
    from tests.analysis.served_run import serve_run
    from tests.analysis.test_report import check_closed, sweep_summary

    found = Found()
    with tempfile.TemporaryDirectory() as made, listening() as (port, asked):
        sound = serve_run(Path(made) / "sound", "prefix_cache=hash_chain", "record_blocks=true")
        # Its own script, or that of the page, would say so: the check of the check.
        control = Path(made) / "control.html"
        control.write_text(f"<h2></h2><script>{SCRIPT}</script><img src=http://127.0.0.1:{port}/>")
        if browser():
            seen = Found()
            opened(seen, "control", control, asked)
            found.attempt("a page that does run script is seen to", len(seen.faults) == 2, seen.faults)
            asked.clear()
        for number, template in list(enumerate(EVIL))[::every]:
            text = template.format(script=SCRIPT, port=port)
            name = "".join(c for c in text if c not in "/\0")[:200]
            folder = Path(made) / str(number) / name
            folder.parent.mkdir()
            poisoned(sound, folder, text)
            sweep = Path(made) / f"sweep{number}" / name
            for place, value in enumerate((text, "paged")):
                settings = {"allocator": value, "block_size": 8 << place}
                make_run(sweep / f"{place}{name}", settings=settings, **sweep_summary(place))
            for kind, root in (("run", folder), ("sweep", sweep)):
                said = f"{kind} {text[:40]!r}"
                try:
                    html = report(root, find_runs(root).runs)
                    # As text it may say what no style may.
                    check_closed(html.replace(escape(text), "").replace(escape(name), ""))
                except Exception as error:
                    found.attempt(f"{said}: by its tags", False, f"{type(error).__name__}: {str(error)[:300]}")
                    continue
                found.attempt(f"{said}: by its tags", True)
                page = Path(made) / f"{kind}{number}.html"
                page.write_text(html, encoding="utf-8", errors="surrogatepass")
                opened(found, said, page, asked)
        if not browser():
            found.figures["opened in a browser"] = 0
    return found


def pieces(short: bool) -> list[int]:
    return [10] if short else [1]


CHECK = Check(
    "a report of runs that carry script: nothing unescaped, nothing runs, nothing is fetched", pieces, attempt, 40
)
