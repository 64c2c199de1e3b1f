"""Plots: what lines, ticks and thinning do with the numbers that come."""

import itertools
import math
import re

import pytest

from pipeline.show.report.figures import (
    BOTTOM,
    HEIGHT,
    TOP,
    Estimate,
    estimates,
    lines,
    thinned,
)

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


def test_a_long_line_keeps_its_peaks() -> None:
    points = [(float(at), 1.0) for at in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    drawn = thinned(points)
    assert len(drawn) < 1000
    assert (54_321.0, 99.0) in drawn
    assert (drawn[0], drawn[-1]) == (points[0], points[-1])
    assert [at for at, _ in drawn] == sorted(at for at, _ in drawn)


def test_an_estimate_is_drawn_with_its_interval_inside_the_plot() -> None:
    drawn = estimates([[Estimate(0.0, 0.5, 0.4, 0.7, name="a")]], {0.0: "x"})
    assert "<title>a: 0.5 (0.4 to 0.7)</title>" in drawn
    whisker = re.findall(r'points="([^"]*)"', drawn)[-1]
    low, high = (float(point.partition(",")[2]) for point in whisker.split())
    assert TOP <= high < low <= HEIGHT - BOTTOM
