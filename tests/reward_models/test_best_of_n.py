"""Best of n and held-out pairs: small cases whose answers one can count."""

import math
from typing import Any

import pytest

from steps.evaluation.best_of_n import Sampled, best_of_n, one_right_of_four, over_optimised
from steps.evaluation.reward_pairs import pair_metrics


def sampled(answer: str, *samples: tuple[str, float | None]) -> Sampled:
    texts = [text if text == "" else rf"\boxed{{{text}}}" for text, _ in samples]
    scores = [score for _, score in samples]
    record = {"row": f"q{answer}", "answer": answer, "completions": texts, "scores": scores}
    return Sampled.of(record)


# The first two samples of a: right, wrong; the reward model prefers the wrong one of the last two.
A = sampled("7", ("7", 1.0), ("5", 0.5), ("5", 3.0), ("7", 2.0))
B = sampled("9", ("1", 0.1), ("9", 0.2), ("9", 0.3), ("9", 0.0))


def curve(*prompts: Sampled, sizes: list[int]) -> dict[int, dict[str, float]]:
    return {
        point.n: {
            "reward_model": point.reward_model["value"],
            "majority": point.majority["value"],
            "checker": point.checker["value"],
        }
        for point in best_of_n(prompts, sizes)
    }


def test_each_picker_takes_its_best_of_disjoint_runs_of_samples() -> None:
    found = curve(A, B, sizes=[1, 2, 4])
    one = {"reward_model": 5 / 8, "majority": 5 / 8, "checker": 5 / 8}
    assert found[1] == one
    # A: 7 of (7, 5), 5 of (5, 7); B: 9 both times. Of equal votes the first counts.
    assert found[2] == {"reward_model": 3 / 4, "majority": 1 / 4 + 0 + 0 + 1 / 4, "checker": 1.0}
    # A: the wrong 5 has the highest score; 7 and 5 have two votes each, and 7 was first.
    assert found[4] == {"reward_model": 0.5, "majority": 1.0, "checker": 1.0}


def test_samples_vote_for_one_answer_however_its_digits_are_spelled() -> None:
    votes = [(text, 0.0) for text in ("5", "5", "7", "\N{ARABIC-INDIC DIGIT SEVEN}", "\uff17")]
    (point,) = best_of_n([sampled("7", *votes)], [5])
    assert point.majority["value"] == 1


def test_a_sample_without_a_score_is_never_preferred_and_one_without_an_answer_never_votes() -> (
    None
):
    prompt = sampled("7", ("5", None), ("", -9.0), ("", -9.5), ("7", -10.0))
    (point,) = best_of_n([prompt], [4])
    assert point.reward_model["value"] == 0
    assert point.majority["value"] == 0  # 5 and 7 have one vote each, and 5 was first
    assert point.score == -9
    (one,) = best_of_n([prompt], [1])
    assert one.score is None
    assert one.reward_model["value"] == 0.25
    (silent,) = best_of_n([sampled("7", ("", 1.0))], [1])
    assert silent.majority["value"] == 0


def test_one_right_of_four_needs_a_strictly_highest_score() -> None:
    wins = sampled("7", ("1", 0.0), ("2", 0.1), ("2", 0.1), ("3", 0.2), ("7", 0.3), ("4", 9.0))
    ties = sampled("7", ("1", 0.0), ("2", 0.1), ("3", 0.2), ("7", 0.2))
    share = one_right_of_four([wins, ties, A])
    assert share is not None
    assert share["value"] == 0.5  # A has only one different wrong answer
    assert one_right_of_four([A]) is None


def test_over_optimisation_is_told_where_intervals_part() -> None:
    worse = [sampled("7", ("7", 0.1), ("5", 0.2), ("7", 0.1), ("7", 0.1)) for _ in range(30)]
    told = over_optimised(best_of_n(worse, [1, 4]))
    assert told is not None
    assert "the best of 4 is right in 0.000, the best of 1 in 0.750" in told
    better = [sampled("7", ("5", 0.1), ("7", 0.2)) for _ in range(30)]
    assert over_optimised(best_of_n(better, [1, 2])) is None


def test_pairs_are_counted_and_a_tie_is_no_hit() -> None:
    scores = [(1.0, 0.0), (0.5, 0.5), (2.0, -1.0), (0.0, 1.0)]
    records: list[dict[str, Any]] = [{"scores": list(s), "tokens": [3, 4]} for s in scores]
    metrics = pair_metrics(records)
    assert metrics["pairs"] == 4
    assert metrics["pairs/accuracy"]["value"] == 0.5
    assert metrics["pairs/margin"]["value"] == (1 + 0 + 3 - 1) / 4
    expected = sum(math.log1p(math.exp(-(c - r))) for c, r in scores) / 4
    assert metrics["pairs/loss"]["value"] == pytest.approx(expected, rel=1e-12)
