"""What a workload is: a function from settings and a seed to requests. And what it needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pagedlab.core.registry import Registry
from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings


class PromptTokenizer(Protocol):
    """Text to token ids, all in [0, vocab_size). A chat is the concatenation of its messages' ids."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, with no marker added."""

    def message(self, role: str, content: str) -> list[int]:
        """The ids of one complete chat message with its markers. role: system, user or assistant."""

    def reply_header(self) -> list[int]:
        """The ids that open an assistant's reply, after which the model writes."""


# (the option's settings, sampling, tokenizer, seed) -> requests in order of arrival. Ids are 0..n-1, those of
# follow-ups included: what waits for the answer to another request is made by that one's `follow_up`.
Workload = Callable[[Any, SamplingSettings, PromptTokenizer, int], list[Request]]

WORKLOADS: Registry[Workload] = Registry(
    "workload",
    "pagedlab.workload",
    ("sharegpt", "synthetic", "dialogues", "azure", "burstgpt", "token_counts", "request_lines", "mooncake"),
)

_CHECKS: dict[str, Callable[[Any], None]] = {}


def checks(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorator: the function refuses (ConfigError) what settings of the workload `name` alone, no file read, say
    wrong. So a bad value is refused before any work begins; building checks it too, for whoever builds without."""

    def add(check: Callable[[Any], None]) -> Callable[[Any], None]:
        _CHECKS[name] = check
        return check

    return add


def check_workload(settings: Any) -> None:
    """ConfigError for a value that the workload would refuse when it is built. A plugin need not have a check."""
    WORKLOADS[settings.name]  # imports what registers its check
    if settings.name in _CHECKS:
        _CHECKS[settings.name](settings)
