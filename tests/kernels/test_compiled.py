"""Machine code is made once: the next process finds it on disk."""

import os
import subprocess
import sys

import pytest

BODIES = [
    "product_compiled.product_body(16)", "elementwise_compiled.rotate_body(16)", "elementwise_compiled.gate_body(32)",
    "elementwise_compiled.place_body(16)", "program_compiled.program_body()", "prefill_compiled.lay_out_body(16)",
]  # fmt: skip
CODE = "from pagedlab.kernels import elementwise_compiled, prefill_compiled, product_compiled, program_compiled\n"


@pytest.fixture(scope="module")
def hits(tmp_path_factory):
    """Of each body, by process: how often it was found."""
    code = CODE + f"print(*(body.cache_hits for body in [{', '.join(BODIES)}]))"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("numba"))}

    def process():
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    return process(), process()


@pytest.mark.parametrize("which", range(len(BODIES)), ids=BODIES)
def test_a_body_is_compiled_by_the_first_process_alone(hits, which):
    assert [of[which] for of in hits] == [0, 1]
