"""mypy and import-linter over the package laid out as in a wheel: `python tests/static_checks.py mypy|layers`.

In a checkout kernels/ and experiments/ lie beside pagedlab/, joined to it by `__path__`, which neither tool follows.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAID_OUT = ROOT / ".mp"


def lay_out() -> None:
    shutil.rmtree(LAID_OUT / "pagedlab", ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "data")
    shutil.copytree(ROOT / "pagedlab", LAID_OUT / "pagedlab", ignore=ignore)
    for beside in ("kernels", "experiments"):
        shutil.copytree(ROOT / beside, LAID_OUT / "pagedlab" / beside, ignore=ignore)
        # import-linter takes only folders with this file for packages; the checkout must not have it (traps of the
        # name `kernels`), the copy may.
        (LAID_OUT / "pagedlab" / beside / "__init__.py").touch()


def main() -> int:
    lay_out()
    config = str(ROOT / "pyproject.toml")
    if sys.argv[1:] == ["mypy"]:
        command = ["mypy", f"--config-file={config}", f"--cache-dir={ROOT / '.mypy_cache'}", "-p", "pagedlab"]
        return subprocess.run([sys.executable, "-m", *command], cwd=LAID_OUT).returncode
    if sys.argv[1:] == ["layers"]:
        command = ["lint-imports", "--config", config, "--no-cache"]
        return subprocess.run([Path(sys.executable).parent / command[0], *command[1:]], cwd=LAID_OUT).returncode
    print("usage: python tests/static_checks.py mypy|layers", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
