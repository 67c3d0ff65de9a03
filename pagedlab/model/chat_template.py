"""A model's own chat template, taken apart into single messages.

A template only renders whole conversations, and some put a token or a default system prompt in front. What one
message contributes is the difference between a conversation with it and the same one without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagedlab.model.chat_jinja import compile_template
from pagedlab.model.files import first_line

Messages = list[dict[str, str]]

_PROBE = "some content"
_QUESTION = {"role": "user", "content": "a question"}
_ANSWER = {"role": "assistant", "content": "an answer"}

# Where a message of a role can stand, as (what comes before, what comes after). The first place that works is used.
# User: in a later turn. Templates that write the last answer unlike earlier ones need the place without an answer.
# Assistant: an answer of the history, with a question after it. System: the only place it has.
_PLACES: dict[str, tuple[tuple[Messages, Messages], ...]] = {
    "user": (([_QUESTION, _ANSWER], []), ([_QUESTION], [])),
    "assistant": (([_QUESTION], [_QUESTION]), ([_QUESTION], [])),
    "system": (([], [_QUESTION]),),
}


class TemplateRefused(Exception):
    """The template cannot render this, or the message is not to be found in what it renders."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a message is put to be cut out again, and the texts to be cut off: one of `heads`, and `tail`."""

    before: Messages
    after: Messages
    heads: tuple[str, ...]
    tail: str


class TemplateFormat:
    """The `ChatFormat` of a jinja chat template.

    Its messages leave out what the template puts before the first one: a bos token, a default system prompt.
    """

    def __init__(self, source: str, variables: Mapping[str, str]):
        """source: the template. variables: what it may print besides the messages: bos_token and the like.

        TemplateRefused if it is no template, or messages of users and assistants are not found in what it writes.
        """
        self._variables = dict(variables)
        try:
            self._template = compile_template(source)
        except Exception as error:
            raise TemplateRefused(first_line(error)) from error
        question = self._render([_QUESTION])
        self._header = _cut_head(self._render([_QUESTION], header=True), (question,))
        self._places: dict[str, _Place] = {}
        self._question = ""
        self._fronts: tuple[str, ...] = ()
        self._find_place("user")
        self._question = self.message(**_QUESTION)
        self._find_place("assistant")
        self._system_refusal = ""
        try:
            self._fronts = self._system_fronts(_cut_tail(question, self._question))
            self._find_place("system")
        except TemplateRefused as refusal:
            # Many a template knows no system role, and is good for all the rest.
            self._system_refusal = str(refusal)

    def message(self, role: str, content: str) -> str:
        """The part of one message. TemplateRefused if the template has no such role, or refuses this content."""
        if role not in self._places:
            raise TemplateRefused(self._system_refusal)
        return self._part(self._places[role], role, content)

    def reply_header(self) -> str:
        return self._header

    def _system_fronts(self, front: str) -> tuple[str, ...]:
        """What can stand before a system message: `front`, as before a question, or less where that is a default
        system prompt."""
        bos = self._variables.get("bos_token", "")
        # Some models, SmolLM2 for one, call the marker that begins every message their bos token.
        return (front, "") if self._question.startswith(bos) else (front, bos, "")

    def _find_place(self, role: str) -> None:
        refusal = ""
        for before, after in _PLACES[role]:
            try:
                heads = (self._render(before),) if before else self._fronts
                place = _Place(before, after, heads, self._question if after else "")
                # A template can also pass over a message in silence.
                if _PROBE in self._part(place, role, _PROBE):
                    self._places[role] = place
                    return
                refusal = f"it leaves out messages of the role {role}"
            except TemplateRefused as error:
                refusal = str(error)
        raise TemplateRefused(refusal)

    def _part(self, place: _Place, role: str, content: str) -> str:
        text = self._render([*place.before, {"role": role, "content": content}, *place.after])
        return _cut_tail(_cut_head(text, place.heads), place.tail)

    def _render(self, messages: Messages, header: bool = False) -> str:
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=header, tools=None, documents=None, **self._variables
            )
        # The template is somebody's program: besides its own refusals it can fail in any way.
        except Exception as error:
            raise TemplateRefused(first_line(error)) from error


def _cut_head(text: str, heads: tuple[str, ...]) -> str:
    for head in heads:
        if text.startswith(head):
            return text[len(head) :]
    raise TemplateRefused("it writes the beginning of a conversation differently when a message follows")


def _cut_tail(text: str, tail: str) -> str:
    if not text.endswith(tail):
        raise TemplateRefused("it writes a message differently when another stands before it")
    return text[: len(text) - len(tail)]
