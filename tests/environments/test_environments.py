"""Environments reply to turns from processes that can be killed, and alike in any of them."""

import pytest
from worlds import Counter

from steps.checking.judges import Judges
from steps.checking.verdicts import Answered, Judgement, Verdict, judged
from steps.environments.calculator import Calculator
from steps.environments.environment import Environment, Observation, Turn, says
from steps.environments.environments import ENVIRONMENTS
from steps.environments.playing import Episode, Over, Played, Playing


def turn(text: str) -> Turn:
    return Turn((len(text), 2), text)


def episode(text: str, played: Played = (), k: int = 1, row: str = "r") -> Episode:
    return Episode(text, "4", (), row=row, k=k, played=played, ids=turn(text).ids)


def counted(*texts: str, k: int = 1) -> Played:
    """Earlier turns with what `Counter` has replied."""
    return tuple((turn(t), says(str(100 * k + n))) for n, t in enumerate(texts, start=1))


def reply(text: str, settings: Calculator | None = None) -> Observation | Judgement | None:
    calculator = settings or Calculator()
    return calculator.step(calculator.reset(Answered(""), 0), turn(text))


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ("27 + 35", "62"),
        (" 2*(3-4) / 8 ", "-0.25"),
        ("0.1 + 0.2", "0.3"),
        ("-3 + 3", "0"),
        ("1 / 0", "error"),
        ("2 +", "error"),
        ("2 ** 999999999", "error"),
        ("((" * 60 + "1+1" + "))" * 60, "error"),
        ("9*" * 120 + "9", "error"),
    ],
)
def test_a_calculator_works_out_sums_and_nothing_else(call: str, value: str) -> None:
    assert reply(call) == says(value)


@pytest.mark.parametrize("answer", ["\\boxed{62}", "62", "", "It is 2 + 2", "x + 1"])
def test_what_is_no_sum_is_the_answer_which_the_checker_judges(answer: str) -> None:
    assert reply(answer) is None


def test_a_calculator_can_be_told_how_it_is_called_and_how_much_it_does() -> None:
    settings = Calculator(r"<<(?P<sum>[^=]*)=$", most_operations=1, role="user", mistake="?")
    assert reply("so <<2+2=", settings) == says("4", "user")
    assert reply("<<2+2+2=", settings) == says("?", "user")
    with pytest.raises(ValueError, match="call must have a group named sum"):
        Calculator("x")
    with pytest.raises(ValueError, match="call must be a regular expression"):
        Calculator("(")


def test_every_environment_of_the_folder_has_a_name() -> None:
    assert "calculator" in ENVIRONMENTS


def test_an_observation_says_something_in_one_way() -> None:
    with pytest.raises(ValueError, match="either messages or ids"):
        Observation()
    with pytest.raises(TypeError):
        Observation(ids=("5",))  # pyright: ignore[reportArgumentType]


# --- in processes ---------------------------------------------------------------------------------


def played_by(environment: Environment) -> Playing:
    return Playing(environment.name, environment)


def test_replies_follow_from_the_turns_in_any_process_and_failures_are_no_verdict() -> None:
    asked = [
        episode("a"),
        episode("b", counted("a")),
        episode("die", counted("a")),
        episode("c", counted("a", "b")),  # another process, which plays it from the beginning
        episode("c", counted("a", k=3), k=3),
        episode("done", counted("a")),
        episode("right"),
        episode("half"),
        episode("raise"),
        episode("nothing"),
        episode("b", ((turn("a"), says("7")),)),
    ]
    with Judges(played_by(Counter())) as judges:
        found = judges.judge(asked)
        assert judges.name == "counter"
    assert found[0:2] == [says("101"), says("102")]
    assert found[3:5] == [says("103"), says("302")]
    assert found[5:7] == [Over(), judged(True)]
    assert (found[7].verdict, found[7].reward) == (Verdict.wrong, 0.5)
    reasons = [found[n].reason for n in (2, 8, 9, 10)]
    assert reasons[0] == "the checker's process ended (exit status 7)"
    assert reasons[1] == "KeyError: 'no such thing'"
    assert reasons[2] == "it says nothing"
    assert reasons[3].startswith("turn 1 got two different replies")
    assert all(found[n].verdict is Verdict.none for n in (2, 8, 9, 10))


def test_an_episode_that_two_processes_play_differently_has_no_verdict() -> None:
    playing = played_by(Counter())
    with Judges(playing) as first:
        (said,) = first.judge([episode("moody")])
    assert isinstance(said, Observation)
    with Judges(playing) as second:
        (again,) = second.judge([episode("b", ((turn("moody"), said),))])
    assert again.verdict is Verdict.none
    assert "two different replies" in again.reason
