"""Plots: what lines, ticks and thinning do with the numbers that come."""

import itertools
import json
import math
import re

import pytest

from pipeline.show.report.figures import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    MOST_TOLD_APART,
    TOP,
    Axis,
    Estimate,
    bars,
    estimates,
    key,
    lines,
    thinned,
)
from pipeline.show.report.graph import draw
from pipeline.show.report.texts import difference

EXTREMES = (
    0.0, 1.0, -1.0, 1e308, -1e308, 1e-308, 5e-324, 1e15, 1e15 + 0.125, 0.1 + 0.2, 0.3,
    math.inf, -math.inf, math.nan,
)  # fmt: skip


@pytest.mark.parametrize("points", itertools.combinations(EXTREMES, 2))
def test_any_two_numbers_can_be_drawn(points: tuple[float, float]) -> None:
    drawn = lines([list(enumerate(points)), [(at, at) for at in points]])
    places = " ".join(re.findall(r'points="([^"]*)"', drawn)).replace(",", " ").split()
    assert all(math.isfinite(float(place)) for place in places)
    finite = [value for value in points if math.isfinite(value)]
    estimates([[Estimate(at, at, at, at) for at in finite]], {at: str(at) for at in finite})


def test_nothing_to_draw_is_an_empty_plot() -> None:
    assert "<polyline" not in lines([[], [(math.nan, 1.0)]])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.66, 0.7, ["0.66", "0.67", "0.68", "0.69", "0.7"]),
        (-0.3, 0.3, ["-0.2", "0", "0.2"]),
        (0, 50_000, ["0", "20000", "40000"]),
        (1e-6, 3e-6, ["1e-06", "1.5e-06", "2e-06", "2.5e-06", "3e-06"]),
    ],
)
def test_ticks_are_round(low: float, high: float, ticks: list[str]) -> None:
    axis = Axis.over([low, high], 0, 100)
    assert [label for _, label in axis.ticks()] == ticks
    assert all(0 <= axis(at) <= 100 for at, _ in axis.ticks())


def test_a_logarithmic_axis_has_decades_and_is_for_what_lies_above_zero() -> None:
    axis = Axis.over([0.001, 10.0], 0, 100)
    logarithmic = axis.as_logarithm([0.001, 10.0])
    assert logarithmic is not None
    assert [label for _, label in logarithmic.ticks()] == ["0.001", "0.01", "0.1", "1", "10"]
    assert logarithmic(0.1) == pytest.approx(50)
    assert axis.as_logarithm([0.0, 10.0]) is None


def test_a_long_line_keeps_its_peaks() -> None:
    points = [(float(at), 1.0) for at in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    drawn = thinned(points)
    assert len(drawn) < 1000
    assert (54_321.0, 99.0) in drawn
    assert (drawn[0], drawn[-1]) == (points[0], points[-1])
    assert [at for at, _ in drawn] == sorted(at for at, _ in drawn)


def test_bars_are_told_apart_and_counted() -> None:
    drawn = bars({1: 3, 2: 5, 1000: 1})
    assert "1 to 42: 8" in drawn
    assert drawn.count("<rect") == 2


def test_labels_are_text() -> None:
    drawn = estimates([[Estimate(0.0, 1.0, name="<i>x</i>")]], {0.0: "<b>"})
    assert "<i>" not in drawn
    assert "<b>" not in drawn


def test_an_estimate_is_drawn_with_its_interval_inside_the_plot() -> None:
    drawn = estimates([[Estimate(0.0, 0.5, 0.4, 0.7, name="a")]], {0.0: "x"})
    assert "<title>a: 0.5 (0.4 to 0.7)</title>" in drawn
    whisker = re.findall(r'points="([^"]*)"', drawn)[-1]
    low, high = (float(point.partition(",")[2]) for point in whisker.split())
    assert TOP <= high < low <= HEIGHT - BOTTOM


def test_lines_have_a_colour_and_a_dash_of_their_own_as_long_as_there_are_any() -> None:
    assert len({key(index) for index in range(MOST_TOLD_APART + 1)}) == MOST_TOLD_APART
    few, many = (
        estimates([[Estimate(0.0, at)] for at in range(count)], {0.0: "0"})
        for count in (COLOURS, COLOURS + 1)
    )
    across = re.findall(r'cx="([\d.]+)"', few)
    assert len(set(across)) == COLOURS  # none hides another
    colours = r"fill:var\((--series-\d)\)"
    assert len(set(re.findall(colours, few))) == COLOURS
    assert set(re.findall(colours, many)) == {"--series-0"}


def test_only_what_differs_is_marked() -> None:
    assert difference("It is three.", "It is four.") == "It is <mark>four</mark>."
    assert difference("same", "same") == "same"
    assert difference("a b c d", "w x y z") == "w x y z"  # nothing in common: no marks
    hostile = difference("<b>one</b> two", "<b>one</b> <i>two</i>")
    assert "<i>" not in hostile
    assert "<b>" not in hostile
    assert difference("word " * 2000, "other " * 2000) == "other " * 2000
    assert json.dumps(difference("", "new words")) == '"new words"'


def test_an_answer_of_which_nothing_can_be_seen_is_told_in_words() -> None:
    assert difference("words", " \n") == '<i class="muted">only white space</i>'
    assert difference("", "") == '<i class="muted">empty</i>'


def test_steps_of_which_many_stand_side_by_side_are_drawn_from_left_to_right() -> None:
    """A report scrolls down, and boxes are wider than they are high."""
    few = draw({"a": [], "b": ["a"], "c": ["b"]})
    many = draw({"a": [], **{f"b{n}": ["a"] for n in range(20)}})
    assert len({box.x for box in few.boxes}) == 1
    assert [box.y for box in few.boxes] == sorted(box.y for box in few.boxes)
    source, *others = many.boxes
    assert len({box.x for box in others}) == 1
    assert others[0].x > source.x
    assert len({box.y for box in others}) == 20
    assert max(box.x for box in many.boxes) < many.width < many.height
