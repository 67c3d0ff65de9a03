"""A JSON array read object by object: a whole ShareGPT file parsed at once would take gigabytes."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, BinaryIO

from pagedlab.core.errors import WorkloadError
from pagedlab.workload.checks import shown
from pagedlab.workload.strict_json import DECODER, Refused, located

ENTRY_LIMIT = 64 << 20  # characters
CHUNK = 1 << 20  # bytes
BLANKS = re.compile(r"[ \t\n\r]*")
LONGEST_TOKEN = len(r"\ud83d\ude00")  # of those that json reports by their start, strings apart


class Window:
    """The text of a file seen through a window. `_text[_at:]` lies ahead; what lies before is forgotten in time."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """The next character that is not blank, or nothing at the end of the file."""
        while True:
            blanks = BLANKS.match(self._text, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_on():
                return ""

    def take(self) -> str:
        """`peek`, and step over it."""
        mark = self.peek()
        self._at += len(mark)
        return mark

    def object(self, place: str) -> dict[str, Any]:
        """The JSON object that comes next, however far beyond the window it goes. Raises WorkloadError."""
        with located(self.name, place):
            if (mark := self.peek()) != "{":
                raise Refused(f"begins with {shown(mark)}, expected an object" if mark else "the file ends before it")
            value, end = self._decode()
            if end - self._at > ENTRY_LIMIT:
                raise Refused(f"longer than {ENTRY_LIMIT} characters")
            self._at = end
            return value

    def _decode(self) -> tuple[dict[str, Any], int]:
        while True:
            try:
                return DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # Only an error in the window's last token may be the window's fault and not the file's.
                cut_off = error.pos >= len(self._text) - LONGEST_TOKEN or error.msg.startswith("Unterminated string")
                if cut_off and len(self._text) - self._at > ENTRY_LIMIT:
                    raise Refused(f"longer than {ENTRY_LIMIT} characters") from error
                if not cut_off or not self._read_on():
                    raise

    def _read_on(self) -> bool:
        """Read as much again as lies ahead, so that a long entry is parsed few times. False at the file's end."""
        ahead = self._text[self._at :]
        start = self._file.tell() - len(self._decoder.getstate()[0])
        chunk = self._file.read(max(CHUNK, len(ahead)))
        try:
            self._text = ahead + self._decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise WorkloadError(f"{self.name}: byte {start + error.start}: not UTF-8 ({error.reason})") from error
        self._at = 0
        return bool(chunk)
