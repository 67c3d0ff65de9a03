"""The stacked area: where each kind begins and ends, at each time."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pagedlab.tracker.area import HEIGHT, WIDTH, stacked_area


def edges(svg: str) -> dict[str, str]:
    """Kind -> the path of its upper edge."""
    paths = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path")
    return {str(path[0].text): path.get("d", "") for path in paths}


def test_each_kind_lies_on_those_before_it_and_holds_until_the_next_time() -> None:
    drawn = edges(stacked_area([1.0, 2.0, 5.0], {"a": [0.5, 0.25, 0.0], "b": [0.25, 0.25, 0.5], "c": [0.25, 0.5, 0.5]}))
    assert drawn["a"] == "M0 300V150.0H225.0V225.0H900.0V300.0H900V300Z"
    assert drawn["b"] == "M0 300V75.0H225.0V150.0H900.0V150.0H900V300Z"
    assert drawn["c"] == "M0 300V0.0H225.0V0.0H900.0V0.0H900V300Z"  # all of them: the whole
    assert list(drawn) == ["c", "b", "a"]  # what is drawn later covers what lies below it


def test_one_point_fills_the_width() -> None:
    drawn = edges(stacked_area([3.0], {"a": [1.0]}))
    assert drawn["a"] == f"M0 {HEIGHT}V0.0H{WIDTH}V{HEIGHT}Z"


def test_a_name_is_text() -> None:
    svg = stacked_area([0.0, 1.0], {"<b>": [1.0, 1.0]})
    assert list(edges(svg)) == ["<b>"]
    assert not re.search("<b>", svg)
