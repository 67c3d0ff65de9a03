"""index.html: the report as one page, its plots inside, nothing fetched from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment

from pagedlab.paper.base import FIGURES
from pagedlab.paper.claims import findings
from pagedlab.paper.constants import constants
from pagedlab.paper.points import Point
from pagedlab.paper.report import CLAIMS, COLUMNS, OF_CONSTANTS, TITLE, about_claims, about_constants, head, row

if TYPE_CHECKING:
    from pagedlab.paper.study import Choice

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 sans-serif; max-width: 68em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { border-bottom: 1px solid #ddd; padding: 2px 8px; text-align: left; }
svg { max-width: 100%; height: auto; }
summary { cursor: pointer; }
</style></head><body>
{%- macro table(columns, rows) %}
<table><thead><tr>{% for name in columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead><tbody>
{%- for row in rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{%- endfor %}
</tbody></table>
{%- endmacro %}
<h1>{{ title }}</h1>
{% for paragraph in head %}<p>{{ paragraph }}</p>
{% endfor %}
{% if claims %}<h2>Claims of the text</h2><p>{{ about_claims }}</p>{{ table(claim_columns, claims) }}{% endif %}
{% for figure in figures %}<h2>{{ figure.title }}</h2>
<p>{{ figure.notes }}</p>
<ul>{% for line in figure.said %}<li>{{ line }}</li>{% endfor %}</ul>
<figure role="img" aria-label="{{ figure.title }}">{{ figure.svg | safe }}</figure>
<details><summary>{{ figure.rows | length }} points</summary>{{ table(columns, figure.rows) }}</details>
{% endfor %}
<h2>Constants</h2><p>{{ about_constants }}</p>{{ table(constant_columns, constants) }}
</body></html>
"""


def page(folder: Path, choice: Choice, done: dict[str, list[Point]]) -> str:
    """The page of these figures, whose plots lie in `folder`."""
    figures = []
    for number, points in done.items():
        figure = FIGURES[f"figure{number}"]()
        svg = (folder / f"figure{number}.svg").read_text("utf-8")
        figures.append(
            {
                "title": figure.title,
                "notes": figure.notes,
                "said": figure.said(points),
                "svg": svg[svg.index("<svg") :],
                "rows": [row(point) for point in points],
            }
        )
    found = findings([point for of in done.values() for point in of])
    text: str = (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            title=TITLE,
            head=head(choice),
            claim_columns=CLAIMS,
            claims=[(f.said, f.published, f.ours, f.verdict) for f in found],
            about_claims=about_claims(),
            figures=figures,
            columns=COLUMNS,
            about_constants=about_constants(),
            constant_columns=OF_CONSTANTS,
            constants=[(name, f"{value:g}", source) for name, value, source in constants()],
        )
    )
    return text
