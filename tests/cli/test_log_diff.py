"""Where two logs part: the first step and metric, and the largest differences."""

import math
from typing import Any

import pytest

from pipeline.cli.differences.log_diff import Flip, LogDiff, Parting, diff_logs, flips

LOG = [{"step": n, "loss": 1 / n, "state": "fine", "margin": 0.0} for n in (1, 2, 3, 4)]


def changed(**at: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**record, **at.get(f"at_{record['step']}", {})} for record in LOG]


@pytest.mark.parametrize(
    ("new", "partings"),
    [
        (changed(), []),
        (
            changed(at_2={"loss": 0.6}, at_4={"loss": 0.0, "margin": 2.0}),
            [
                Parting("loss", 2, 0.5, 0.6, 0.25, 1.0),
                Parting("margin", 4, 0.0, 2.0, 2.0, 1.0),
            ],
        ),
        (changed(at_3={"state": "harmed"}), [Parting("state", 3, "fine", "harmed")]),
        (changed(at_3={"extra": 1}), [Parting("extra", 3, None, 1)]),
        (
            changed(at_3={"margin": math.inf}),
            [Parting("margin", 3, 0.0, math.inf, math.inf, math.inf)],
        ),
    ],
)
def test_the_first_step_and_the_largest_differences_are_found(
    new: list[dict[str, Any]], partings: list[Parting]
) -> None:
    assert diff_logs(LOG, new) == LogDiff("step", 4, (4, 4), partings)


def test_a_log_that_goes_on_differs_in_its_end_alone() -> None:
    assert diff_logs(LOG[:2], LOG) == LogDiff("step", 2, (2, 4), [])


def test_a_value_that_is_no_number_in_both_logs_is_no_difference() -> None:
    nan = [{"step": 1, "loss": math.nan}]
    assert diff_logs(nan, [{"step": 1, "loss": math.nan}]) == LogDiff("step", 1, (1, 1), [])


@pytest.mark.parametrize("other", [[], [{"iteration": 1, "loss": 1.0}]])
def test_logs_of_different_things_are_not_compared(other: list[dict[str, Any]]) -> None:
    assert diff_logs(LOG, other) is None


def test_items_with_other_scores_are_listed_by_row() -> None:
    old = [{"row": f"task:{n}", "answer": "a", "acc": 1.0, "f1": 0.5} for n in range(4)]
    new = [{**item, "acc": float(n % 2), "answer": "b"} for n, item in enumerate(old)]
    flipped = [Flip("task:0", "acc", 1.0, 0.0), Flip("task:2", "acc", 1.0, 0.0)]
    assert flips(old, new[::-1]) == flipped
    assert flips(old, new[1:2]) == flips([{"step": 1, "acc": 1.0}], new) == []
