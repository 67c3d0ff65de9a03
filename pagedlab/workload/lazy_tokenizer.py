"""A tokenizer that is loaded when a workload first has text for it: drawn lengths and traces of counts never do."""

from __future__ import annotations

from collections.abc import Callable

from pagedlab.workload.base import PromptTokenizer


class LazyTokenizer:
    """vocab_size is known from the model's sizes; for all else `load` is called, once."""

    def __init__(self, vocab_size: int, load: Callable[[], PromptTokenizer]):
        self.vocab_size = vocab_size
        self._load = load
        self._loaded: PromptTokenizer | None = None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer().encode(text)

    def message(self, role: str, content: str) -> list[int]:
        return self._tokenizer().message(role, content)

    def reply_header(self) -> list[int]:
        return self._tokenizer().reply_header()

    def _tokenizer(self) -> PromptTokenizer:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded
