"""A tokenizer for models that have none: random weights, for tests and simulations."""

from __future__ import annotations

from collections.abc import Iterable

from pagedlab.core.errors import ModelError
from pagedlab.model.chat_format import PlainFormat, check_role

# The ids below are left to what configs call bos, eos and pad, so that no text holds them.
_FIRST = 4


class ByteTokenizer:
    """One token a byte of UTF-8, with the interface of `ChatTokenizer`; messages are written as `User: ...`.

    Byte b is the id 4 + b. A vocabulary under 260 has no room for that: there byte b is the id b % vocab_size, which
    serves to fill a cache and cannot be decoded. ModelError for a vocab_size below 1.
    """

    def __init__(self, vocab_size: int):
        if vocab_size < 1:
            raise ModelError(f"tokenizer: vocab_size={vocab_size}, expected at least 1")
        self.vocab_size = vocab_size
        self._whole = vocab_size >= _FIRST + 256
        self._chat = PlainFormat()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, one a byte."""
        # JSON can hold half of a surrogate pair, which UTF-8 cannot.
        data = text.encode("utf-8", errors="replace")
        return [_FIRST + byte for byte in data] if self._whole else [byte % self.vocab_size for byte in data]

    def message(self, role: str, content: str) -> list[int]:
        """Token ids of one complete message. role: system, user or assistant, else ModelError."""
        check_role(role)
        return self.encode(self._chat.message(role, content))

    def reply_header(self) -> list[int]:
        """Token ids of what follows the last message when the model is to answer."""
        return self.encode(self._chat.reply_header())

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Ids that stand for no byte give nothing, bytes that are no UTF-8 the sign U+FFFD."""
        if not self._whole:
            raise ModelError(
                f"tokenizer: vocab_size={self.vocab_size} cannot be decoded, expected at least {_FIRST + 256}"
            )
        return bytes(id_ - _FIRST for id_ in map(int, ids) if 0 <= id_ - _FIRST < 256).decode("utf-8", errors="replace")
