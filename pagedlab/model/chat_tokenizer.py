"""Text to token ids and back, and conversations message by message. Needs neither torch nor transformers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from tokenizers import Tokenizer

from pagedlab.core.errors import ModelError
from pagedlab.model.chat_format import ChatFormat, PlainFormat, check_role
from pagedlab.model.chat_template import TemplateRefused

_log = logging.getLogger(__name__)

# Stands for a special token that a message's content spells out, while the template writes around it.
_STAND_IN = "\ue000"


class ChatTokenizer:
    """The tokenizer of a model, with its chat template.

    vocab_size: of the model; every id is below it. chat: how messages are written; where a `TemplateFormat` refuses
    a message, that message is written as `User: ...`, and a warning says so once.
    """

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat, vocab_size: int):
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        # A tokenizer file may ask for them; a prompt is neither cut nor filled up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._chat = chat
        self._warned = False
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        # The longest first: one may begin with another.
        spelled = sorted([*special, _STAND_IN], key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, spelled)))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`: no bos or eos is added. A special token spelled out in it becomes that token.

        ModelError if the tokenizer gives an id that the model does not have.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if ids and max(ids) >= self.vocab_size:
            raise ModelError(
                f"tokenizer: gives the token id {max(ids)}, expected less than vocab_size={self.vocab_size}"
            )
        return ids

    def message(self, role: str, content: str) -> list[int]:
        """Token ids of one complete message with its markers, as it stands between other messages.

        role: system, user or assistant, else ModelError. A special token spelled out in `content` stays text: only
        the template's own markers become control tokens.
        """
        check_role(role)
        spelled = self._special.findall(content)
        if not spelled:
            return self.encode(self._text(role, content))
        pieces = self._text(role, self._special.sub(_STAND_IN, content)).split(_STAND_IN)
        ids = self.encode(pieces[0])
        # A template may drop a part of the content, so there may be fewer pieces.
        for text, piece in zip(spelled, pieces[1:], strict=False):
            ids += self._encode_as_text(text) + self.encode(piece)
        return ids

    def reply_header(self) -> list[int]:
        """Token ids of what follows the last message when the model is to answer; may be empty."""
        return self.encode(self._chat.reply_header())

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens spelled out. Ids that stand for nothing give nothing."""
        text: str = self._tokenizer.decode([int(id_) for id_ in ids], skip_special_tokens=False)
        return text

    def _text(self, role: str, content: str) -> str:
        try:
            return self._chat.message(role, content)
        except TemplateRefused as refusal:
            if not self._warned:
                self._warned = True
                _log.warning("the chat template refuses a %s message (%s): written as plain text", role, refusal)
            return PlainFormat().message(role, content)

    def _encode_as_text(self, text: str) -> list[int]:
        self._tokenizer.encode_special_tokens = True
        try:
            return self.encode(text)
        finally:
            self._tokenizer.encode_special_tokens = False
