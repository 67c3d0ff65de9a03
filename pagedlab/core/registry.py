"""Names to classes: how a configured name (`allocator=paged`) finds its class, with no `_target_` in any config."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Generic, TypeVar

from pagedlab.core.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """The options of one choice. An option lives in the module `<package>.<name>` and registers itself there.

    Options are imported on first use, so that `--help` and a simulation never load torch.
    """

    def __init__(self, kind: str, package: str, names: tuple[str, ...]):
        self.kind = kind
        self.package = package
        self._names = names
        self._options: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator: make the class the option `name`. A name can be taken once."""

        def add(option: T) -> T:
            own = name in self._names and getattr(option, "__module__", None) == f"{self.package}.{name}"
            if name in self._options or (name in self._names and not own):
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._options[name] = option
            return option

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise ConfigError(f"{self.kind}={name}: no such option, expected one of {', '.join(self)}")
        if name not in self._options:
            import_module(f"{self.package}.{name}")
        return self._options[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._options

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._names, *self._options)))
