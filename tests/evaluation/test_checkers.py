"""Rules that judge texts, and the intervals around what they find."""

import pytest

from steps.checking.boxed import boxed_answer
from steps.evaluation.answer_checks import compile_checks, passed
from steps.evaluation.config import EvaluateConfig
from steps.evaluation.intervals import mean, proportion
from steps.generation.config import SamplingConfig


def test_boxes_in_boxes_are_read_once_however_many_they_are() -> None:
    count = 20_000  # read once for each of them, they would take minutes
    assert boxed_answer(r"\boxed{ " * count + "4" + " }" * count) == "4"


def test_a_style_check_is_a_regular_expression() -> None:
    with pytest.raises(ValueError, match="check 'open' is no regular expression"):
        compile_checks({"open": "("})


def test_a_style_check_that_never_ends_is_an_error_that_names_it() -> None:
    checks = {"ends": r"\.$", "all a": "(a+)+$"}
    assert passed(["one"], ["aaaa."], checks) == [{"ends": True, "all a": False}]
    del checks["ends"]
    with pytest.raises(ValueError, match=r"'all a' on the answer to row 'two': no verdict within"):
        passed(["two"], ["a" * 60 + "b"], checks, time_limit=0.2)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (0, 20, 0, 0.1611), (20, 20, 0.8389, 1)],
)
def test_a_proportion_has_the_published_score_interval(
    successes: int, n: int, low: float, high: float
) -> None:
    """Newcombe (1998), table I."""
    expected = {"value": successes / n, "low": low, "high": high}
    assert proportion(successes, n) == pytest.approx(expected, abs=5e-5)


def test_a_mean_has_the_interval_of_its_standard_error() -> None:
    values = [float(i % 10) for i in range(400)]  # mean 4.5, standard error 0.1436
    found = mean(values)
    assert found["value"] == 4.5
    assert found["low"] == pytest.approx(4.5 - 1.96 * 0.1436, abs=0.03)
    assert found["high"] == pytest.approx(4.5 + 1.96 * 0.1436, abs=0.03)
    assert mean(values) == found
    assert mean([2.0, 2.0]) == {"value": 2, "low": 2, "high": 2}


def test_an_evaluation_looks_at_one_answer_to_each_prompt_and_refuses_others() -> None:
    with pytest.raises(ValueError, match="num_completions must be 1: of several"):
        EvaluateConfig(sampling=SamplingConfig(temperature=1.0, num_completions=4))
    with pytest.raises(ValueError, match="max_prompt_length must be null: evaluations answer"):
        EvaluateConfig(sampling=SamplingConfig(max_prompt_length=4))
