"""Tokenizers without a tokenizer.json, converted by transformers. Imports transformers."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

from pagedlab.core.errors import ModelError
from pagedlab.model.files import first_line
from pagedlab.model.quiet import quiet_transformers


def converted_tokenizer(folder: Path) -> Tokenizer:
    """What transformers makes of the tokenizer files in `folder`. ModelError if they give no tokenizer."""
    try:
        with quiet_transformers():
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        tokenizer = getattr(loaded, "backend_tokenizer", None)
    # A converter can fail in any way on files it was not written for.
    except Exception as error:
        raise ModelError(f"{folder}: no tokenizer.json, and no other tokenizer: {first_line(error)}") from error
    # Without any file transformers gives some classes a vocabulary of their special tokens alone.
    if not isinstance(tokenizer, Tokenizer) or tokenizer.get_vocab_size(with_added_tokens=False) < 16:
        raise ModelError(f"{folder}: no tokenizer.json, and no other files that make a fast tokenizer")
    return tokenizer
