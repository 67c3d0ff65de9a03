"""Hides secrets before anything is written to a run folder or sent to a tracker. Standard library only.

Three rules, for they catch different mistakes: by the name of a key (`hf_token: ...`), by the shape of a text
(`https://user:password@host`, `?api_key=...`), and by value: what a secret environment variable holds is hidden
wherever it turns up, for instance where a config has resolved `${oc.env:HF_TOKEN}`.
"""

from __future__ import annotations

import os
import re
from typing import Any

MASK = "***"

# Whatever such a key holds is hidden, a number too. "author" is not "authorization".
_SECRET_NAME = (
    r"api[_-]?key|(?:access|private|signing|encryption)[_-]?key|secret|passw|passphrase|credential|auth(?!or(?!i))"
)
# In this field most tokens are not secret: counts and ids (max_tokens, eos_token_id), a unit (latency_s_per_token),
# a time (token_s), a special token's text (eos_token: </s>), the tokenizer. Of the others only text is hidden.
_TOKEN_NAME = (
    r"(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!per_)"
    r"token(?!s|i[sz]|_?ids?(?![a-z])|_s(?![a-z])|_states)"
)
_SECRET = re.compile(_SECRET_NAME, re.IGNORECASE)
_TOKEN = re.compile(_TOKEN_NAME, re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
# "" and these say whether something is set, not what it is.
_PLAIN = re.compile(r"(?:true|false|null|none|\*\*\*)?", re.IGNORECASE)

_URL_USER = re.compile(r"""(?<=://)([^\s/?#@:'"]*)(:[^\s/?#'"]*)?@""")
_PAIR = re.compile(
    rf"(?<![\w.-])([\w.-]*(?:{_SECRET_NAME}|{_TOKEN_NAME})[\w.-]*)(\s?[=:]\s?)(?![=/])"
    r"""((?:bearer |basic )?(?:"[^"]*"|'[^']*'|[^\s,;&}\]"']+))""",
    re.IGNORECASE,
)
_ARGUMENT = re.compile(r"([+~-]*)([^=\s]+)=(.*)", re.DOTALL)

# A user name this long in a URL is an access token (https://ghp_...@github.com), not a person.
_LONG_USER = 16
# A shorter value of an environment variable would be found by chance in harmless text.
_MIN_VALUE = 8


def redact(config: dict[str, Any]) -> dict[str, Any]:
    """A copy of `config` (dicts, lists and scalars) with every secret replaced by ***."""
    return {key: _value(str(key), value) for key, value in config.items()}


def redact_argv(argv: list[str]) -> list[str]:
    """The words of a command line with every secret replaced: `key=value` by its key, any word by its text."""
    return [_word(word) for word in argv]


def redact_text(text: str) -> str:
    """`text` without values of secret environment variables, passwords in URLs, and `key=value` of a secret key."""
    for value in _environment():
        text = text.replace(value, MASK)
    return _PAIR.sub(_mask_pair, _URL_USER.sub(_mask_user, text))


def _value(path: str, value: Any) -> Any:
    """`path` is the whole dotted key, so that everything below `credentials:` is hidden."""
    if isinstance(value, dict):
        return {key: _value(f"{path}.{key}", below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(path, item) for item in value]
    if _hides(path, value):
        return MASK
    return redact_text(value) if isinstance(value, str) else value


def _word(word: str) -> str:
    match = _ARGUMENT.fullmatch(word)
    if match is None:
        return redact_text(word)
    dashes, key, value = match.groups()
    return f"{dashes}{key}={MASK if _hides(key, value) else redact_text(value)}"


def _hides(key: str, value: Any) -> bool:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and _PLAIN.fullmatch(value)):
        return False
    if _SECRET.search(key):
        return True
    return isinstance(value, str) and not _NUMBER.fullmatch(value) and _TOKEN.search(key) is not None


def _environment() -> list[str]:
    """The values to look for, longest first: one may be a part of another."""
    found = {value for name, value in os.environ.items() if _SECRET.search(name) or _TOKEN.search(name)}
    return sorted((value for value in found if len(value) >= _MIN_VALUE), key=len, reverse=True)


def _mask_user(match: re.Match[str]) -> str:
    user, password = match.groups()
    if password is not None:
        return f"{user}:{MASK}@"
    return f"{MASK}@" if len(user) >= _LONG_USER else f"{user}@"


def _mask_pair(match: re.Match[str]) -> str:
    key, separator, value = match.groups()
    return f"{key}{separator}{MASK}" if _hides(key, value) else match.group()
