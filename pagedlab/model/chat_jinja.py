"""The jinja in which chat templates are written: what transformers gives them, without transformers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A run's tokens must not depend on the day it is run.
_NOW = datetime(2024, 7, 26)


def compile_template(source: str) -> Template:
    """The chat template, to be rendered in a sandbox: it comes with the weights and is nobody's trusted code."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _NOW.strftime
    return environment.from_string(source)


class _GenerationTag(Extension):
    """{% generation %} marks what the model wrote, for training. Here it only has to be understood."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **layout: Any) -> str:
    # Jinja's own escapes for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **layout)
