"""Conversations in token ids, encoded message by message and no further than they are asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedlab.workload.base import PromptTokenizer
from pagedlab.workload.conversations import Conversation


class History:
    """The prompts and replies of one conversation, in which nothing is answered before it is asked (`alternate`).

    Ids are joined, never text: encoding the joined text anew would put other tokens at the seams, and the KV of
    one turn would not be a prefix of the next. header: the ids that open a reply.
    """

    def __init__(self, conversation: Conversation, tokenizer: PromptTokenizer, header: list[int]) -> None:
        self._messages = conversation.messages
        self._tokenizer = tokenizer
        self._header = np.asarray(header, dtype=np.int32)
        self._encoded: list[np.ndarray] = []
        self._ends = [0]  # tokens of the first i messages

    def replies(self) -> list[int]:
        """The positions of the assistant's messages."""
        return [i for i, message in enumerate(self._messages) if message.role == "assistant"]

    def prompt_tokens(self, reply: int) -> int:
        """How long `prompt(reply)` is."""
        for message in self._messages[len(self._encoded) : reply]:
            ids = np.asarray(self._tokenizer.message(message.role, message.text), dtype=np.int32)
            self._encoded.append(ids)
            self._ends.append(self._ends[-1] + len(ids))
        return self._ends[reply] + len(self._header)

    def prompt(self, reply: int) -> np.ndarray:
        """All messages before the one at position `reply`, then the header of a reply: int32."""
        self.prompt_tokens(reply)
        return np.concatenate([*self._encoded[:reply], self._header])

    def system_tokens(self) -> int:
        """Tokens of the system prompt with its markers; 0 without one."""
        has_one = bool(self._messages) and self._messages[0].role == "system"
        return self.prompt_tokens(1) - len(self._header) if has_one else 0

    def reply_tokens(self, reply: int) -> int:
        """Tokens of the recorded reply, without markers."""
        return len(self._tokenizer.encode(self._messages[reply].text))


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One recorded reply and what led to it. reply: its position among the messages of the conversation."""

    source: str
    history: History
    reply: int

    def prompt(self) -> np.ndarray:
        """The prompt, int32."""
        return self.history.prompt(self.reply)

    def sizes(self) -> tuple[int, int]:
        """Tokens of the prompt, and of the recorded reply."""
        return self.history.prompt_tokens(self.reply), self.history.reply_tokens(self.reply)
