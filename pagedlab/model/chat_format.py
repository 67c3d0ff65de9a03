"""How one message of a conversation is written, as text."""

from __future__ import annotations

from typing import Protocol

from pagedlab.core.errors import ModelError

ROLES = ("system", "user", "assistant")


class ChatFormat(Protocol):
    """The text of single messages: written one after the other they are the conversation."""

    def message(self, role: str, content: str) -> str:
        """One complete message with its markers."""
        ...

    def reply_header(self) -> str:
        """What follows the last message when the model is to answer; may be empty."""
        ...


class PlainFormat:
    """`User: ...` and `Assistant: ...` on lines of their own: for models that were never taught a chat format."""

    def message(self, role: str, content: str) -> str:
        return f"{role.capitalize()}: {content}\n"

    def reply_header(self) -> str:
        # No space at the end: to most tokenizers the space belongs to the word that follows.
        return "Assistant:"


def check_role(role: str) -> None:
    """ModelError unless `role` is one of the three that chat formats know."""
    if role not in ROLES:
        raise ModelError(f"message role={role}: no such role, expected one of {', '.join(ROLES)}")
