"""Every constant of the device, with where it is from, as its config file says."""

from __future__ import annotations

from hydra import compose

from pagedlab.paper.bench import HARDWARE


def constants() -> list[tuple[str, float, str]]:
    """(name, value, source). To be called in a Hydra application."""
    hardware = compose(f"hardware/{HARDWARE}").hardware
    return [
        (name, float(hardware[name]), str(source))
        for name, source in hardware.provenance.items()
        if hardware[name] is not None
    ]
