"""The tokenizer of a model folder, with its chat template."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from pagedlab.core.errors import ModelError
from pagedlab.model.byte_tokenizer import ByteTokenizer
from pagedlab.model.chat_format import ChatFormat, PlainFormat
from pagedlab.model.chat_template import TemplateFormat, TemplateRefused
from pagedlab.model.chat_tokenizer import ChatTokenizer
from pagedlab.model.files import first_line, read_json

__all__ = ["ByteTokenizer", "ChatTokenizer", "load_tokenizer"]

_log = logging.getLogger(__name__)


def load_tokenizer(folder: Path | None, vocab_size: int) -> ChatTokenizer | ByteTokenizer:
    """The tokenizer in `folder`; for None, a model without one, bytes. vocab_size: of the model.

    A folder with a tokenizer of an older kind than tokenizer.json is left to transformers, which is imported only
    then. ModelError if there is no tokenizer or it cannot be read. Without a chat template that can be taken apart,
    messages are plain text, and a warning says so.
    """
    if folder is None:
        return ByteTokenizer(vocab_size)
    return ChatTokenizer(_tokenizer(folder), _chat_format(folder), vocab_size)


def _tokenizer(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        from pagedlab.model.slow_tokenizer import converted_tokenizer

        return converted_tokenizer(folder)
    try:
        return Tokenizer.from_file(str(file))
    # The library's errors are bare Exceptions.
    except Exception as error:
        raise ModelError(f"{file}: cannot be read as a tokenizer: {first_line(error)}") from error


def _chat_format(folder: Path) -> ChatFormat:
    settings = _read_if_there(folder / "tokenizer_config.json")
    source = _template_source(folder, settings)
    if source is None:
        _log.warning("%s: no chat template: messages are written as 'User: ...' and 'Assistant: ...'", folder)
        return PlainFormat()
    # Older models keep their special tokens in a file of their own.
    tokens = _read_if_there(folder / "special_tokens_map.json") | settings
    try:
        return TemplateFormat(source, _token_texts(tokens))
    except TemplateRefused as refusal:
        _log.warning("%s: its chat template cannot be used (%s): messages are written as 'User: ...'", folder, refusal)
        return PlainFormat()


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: cannot be read: {first_line(error)}") from error
    source = settings.get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = named[0].get("template") if named else None
    return source if isinstance(source, str) else None


def _token_texts(settings: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and so on as texts; files have them as texts or as objects with `content`."""
    found = {name: value for name, value in settings.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _read_if_there(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}
