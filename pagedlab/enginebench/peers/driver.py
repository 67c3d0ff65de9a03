"""What runs in a peer's own Python: `python driver.py NAME FILE`. Imports nothing of pagedlab, which is not there.

FILE: json of what to serve (see `peer.py`). The engine is loaded and warmed up, then a line "ready" goes to stdout; for
each line that comes on stdin the whole workload is served once and a line of json comes back: wall_s, output_tokens and
the tokens of each request. Whatever the engine itself prints goes to stderr.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    name, file = sys.argv[1:]
    work = json.loads(Path(file).read_text())
    # The folder of a script comes first in its path: there `import vllm` would find the file that imports it.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != HERE]
    spec = importlib.util.spec_from_file_location(f"peer_{name}", HERE / f"{name}.py")
    peer = importlib.util.module_from_spec(spec)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec.loader.exec_module(peer)
    serve = peer.load(work)
    serve([{"prompt": r["prompt"][:8], "output_tokens": 4} for r in work["requests"][:4]])
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        tokens = serve(work["requests"])
        seconds = time.perf_counter() - start
        answer = {"wall_s": seconds, "output_tokens": sum(map(len, tokens)), "tokens": tokens}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
