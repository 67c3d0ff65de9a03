"""A calibration as a file: constants with their provenance, what they were measured on, how far they can be trusted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pagedlab.core.errors import ConfigError
from pagedlab.hardware.calibration.key import asked, machine, mismatch
from pagedlab.hardware.constants import check_constants
from pagedlab.model.architecture import Architecture
from pagedlab.model.cache import cache_folder
from pagedlab.settings import HardwareSettings, Settings

_PARTS = {"key": dict, "data_sha256": str, "made_at": str, "hull": dict, "errors": dict, "hardware": dict}


@dataclass(frozen=True, slots=True)
class Calibration:
    """key: what it is valid for (`asked` and `machine`). data_sha256: of the observations. hull: the most of what was
    measured. errors: by kind of observation. file: where it was read from."""

    hardware: HardwareSettings
    key: dict[str, Any]
    data_sha256: str
    made_at: str
    hull: dict[str, int]
    errors: dict[str, Any]
    file: Path | None = None

    def text(self) -> str:
        parts = {name: getattr(self, name) for name in _PARTS if name != "hardware"}
        body = {**parts, "hardware": asdict(self.hardware)}
        dumped: str = yaml.safe_dump(body, sort_keys=False, width=120)
        return "# Made by `pagedlab calibrate`.\n" + dumped


def folder() -> Path:
    return cache_folder() / "calibration"


def file_name(key: dict[str, Any]) -> str:
    """One for each thing that a calibration can be of."""
    names = (Path(str(key["model"])).name, key["sizes"], key["dtype"], f"block{key['block_size']}", key["kernel"])
    plain = "" if key["optimize"] == "auto" else f"-optimize_{key['optimize']}"
    return "-".join(map(str, names)) + f"-{key['threads']}threads{plain}.yaml"


def read(file: Path) -> Calibration:
    """ConfigError in one line, naming the field, for what is no calibration."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"hardware.calibration={file}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"hardware.calibration={file}: no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"hardware.calibration={file}: expected what `pagedlab calibrate` writes")
    for name, kind in _PARTS.items():
        if not isinstance(found.get(name), kind):
            raise ConfigError(f"{file}: {name}={found.get(name)!r}, expected what `pagedlab calibrate` writes")
    for name in ("tokens", "sequences", "context"):
        if type(found["hull"].get(name)) is not int:
            raise ConfigError(f"{file}: hull.{name}={found['hull'].get(name)!r}, expected a whole number")
    hardware = _hardware(found["hardware"], file)
    return Calibration(hardware, **{name: found[name] for name in _PARTS if name != "hardware"}, file=file)


def calibration_of(settings: Settings, model: Architecture) -> Calibration | None:
    """What `hardware.calibration` of a simulation comes to, with the user's own constants in it; None where it is null,
    or auto and there is none.

    A file that is named must be of this model, dtype, block size and kernel, but may be of another machine. auto looks
    in the user's cache for one that is of this machine and of the libraries and the code that are installed; of several
    (kernels, numbers of threads) it takes the one made last.
    """
    choice, wanted = settings.hardware.calibration, asked(settings, model)
    if choice is None:
        return None
    if choice != "auto":
        chosen = read(Path(choice).expanduser())
        if (other := mismatch(chosen.key, wanted)) is not None:
            raise ConfigError(f"hardware.calibration={choice}: was made for {other}")
    else:
        pattern = f"{Path(str(wanted['model'])).name}-{wanted['sizes']}-*.yaml"
        found = [each for file in sorted(folder().glob(pattern)) if (each := _read_or_none(file)) is not None]
        here = wanted | machine() if found else wanted
        of_here = [each for each in found if mismatch(each.key, here) is None]
        if not of_here:
            return None
        chosen = max(of_here, key=lambda each: each.made_at)
    return replace(chosen, hardware=replace(chosen.hardware, **_own_constants(settings.hardware)))


def _read_or_none(file: Path) -> Calibration | None:
    """None for a file of the cache that is none of this code's: an older version had other constants in it."""
    try:
        return read(file)
    except ConfigError:
        return None


def _own_constants(given: HardwareSettings) -> dict[str, Any]:
    """What differs from the conf/hardware/local.yaml that is shipped: it was given by the user."""
    text = resources.files("pagedlab.conf").joinpath("hardware", "local.yaml").read_text(encoding="utf-8")
    shipped = yaml.safe_load(text)
    names = [field.name for field in fields(given) if field.name not in ("provenance", "calibration")]
    return {name: getattr(given, name) for name in names if name in shipped and getattr(given, name) != shipped[name]}


def _hardware(found: dict[str, Any], file: Path) -> HardwareSettings:
    for field in fields(HardwareSettings):
        value = found.get(field.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        right = {
            "str": isinstance(value, str),
            "int": type(value) is int,
            "float": number,
            "bool": isinstance(value, bool),
            "Optional[float]": value is None or number,
            "Optional[str]": value is None,
            "dict[str, str]": isinstance(value, dict),
        }[str(field.type)]
        if field.name not in found or not right:
            raise ConfigError(f"{file}: hardware.{field.name}={value!r}, expected {field.type}")
    unknown = sorted(set(found) - {field.name for field in fields(HardwareSettings)})
    if unknown:
        raise ConfigError(f"{file}: hardware.{unknown[0]}: no such constant")
    hardware = HardwareSettings(**found)
    check_constants(hardware, f"{file}: hardware.")
    return hardware
