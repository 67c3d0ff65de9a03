"""One HTML page that needs nothing but itself: no script, no font, no request, whatever its texts say."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from html import escape

from matplotlib.figure import Figure

from pagedlab.analysis.drawing import inline

# The browser is told to run and to fetch nothing: a text that got past the escaping would still be no more than text.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; color: #111;
  background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #999; }
p, figcaption { max-width: 46rem; }
nav a { margin-right: 1rem; color: #036; }
.wide { overflow-x: auto; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; min-width: 36rem; height: auto; }
figcaption { font-size: 0.9rem; color: #444; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ccc; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: #f3f3f3; padding: 0.7rem; overflow-x: auto; font-size: 0.8rem; }
""".strip()


class Page:
    """Grows section by section. Every text is escaped here; what comes in is never taken for HTML."""

    def __init__(self, title: str):
        self._title = title
        self._sections: list[tuple[str, list[str]]] = []

    def section(self, title: str) -> None:
        self._sections.append((title, []))

    def text(self, text: str) -> None:
        self._add(f"<p>{escape(text)}</p>")

    def figure(self, figure: Figure, title: str, caption: str) -> None:
        """title: what somebody hears who does not see it."""
        drawn = inline(figure).replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
        self._add(f'<figure><div class="wide">{drawn}</div><figcaption>{escape(caption)}</figcaption></figure>')

    def table(self, head: Seq[str], rows: Iterable[Seq[object]], numbers: Seq[bool] = ()) -> None:
        """numbers: which columns stand to the right."""
        right = [*numbers, *[False] * (len(head) - len(numbers))]

        def line(tag: str, cells: Seq[object]) -> str:
            kinds = [' class="number"' if is_number else "" for is_number in right]
            return "".join(f"<{tag}{kind}>{escape(str(c))}</{tag}>" for kind, c in zip(kinds, cells, strict=True))

        body = "".join(f"<tr>{line('td', cells)}</tr>" for cells in rows)
        self._add(f'<div class="wide"><table><tr>{line("th", head)}</tr>{body}</table></div>')

    def listing(self, text: str) -> None:
        self._add(f"<pre>{escape(text)}</pre>")

    def _add(self, html: str) -> None:
        self._sections[-1][1].append(html)

    def html(self) -> str:
        links = " ".join(f'<a href="#s{i}">{escape(title)}</a>' for i, (title, _) in enumerate(self._sections))
        parts = [
            f'<section id="s{i}"><h2>{escape(title)}</h2>\n{chr(10).join(body)}</section>'
            for i, (title, body) in enumerate(self._sections)
        ]
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self._title)}</title>\n<style>\n{_STYLE}\n</style></head>\n"
            f"<body><h1>{escape(self._title)}</h1>\n<nav>{links}</nav>\n{chr(10).join(parts)}\n</body></html>\n"
        )
