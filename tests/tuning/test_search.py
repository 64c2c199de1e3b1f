"""Which trials are chosen, and which go on: by the values that trials came to, and by a seed."""

import pytest

pytest.importorskip("optuna")

from optuna.distributions import FloatDistribution, IntDistribution

from pipeline import TemperError
from pipeline.tuning.search import Goal, Halving, Study, Trial, ask, promote
from pipeline.tuning.space import parsed, space_of, value_text

RESULTS = ("SFT", "DPO", "shuffled labels", "v1.5")
GOAL = Goal("DPO", "exact_match", minimize=False)


# --- the space -----------------------------------------------------------------------------------


def test_settings_with_several_values_vary_and_others_do_not() -> None:
    space, fixed = parsed(
        ["seed=3", "loss.beta=0.1,0.3", "dpo/loss=choice(dpo,ipo)", "batch=int(interval(8,64))",
         "rate=tag(log,interval(1e-5,1e-3))", "epochs=range(1,4)", "data.path=a.jsonl"]
    )  # fmt: skip
    assert fixed == ["seed=3", "data.path=a.jsonl"]
    assert [*space["loss.beta"].choices] == ["0.1", "0.3"]
    assert [*space["dpo/loss"].choices] == ["dpo", "ipo"]
    assert [*space["epochs"].choices] == ["1", "2", "3"]
    assert space["batch"].distribution == IntDistribution(8, 64)
    assert space["rate"].distribution == FloatDistribution(1e-5, 1e-3, log=True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("beta=interval(1,", "beta=interval\\(1, cannot be read"),
        ("beta=interval(2,1)", "beta goes from 2.0 to 1.0; give two numbers, in order"),
        ("beta=tag(log,interval(0,1))", "give two numbers above 0, in order"),
        ("beta=1,1", "beta has 2 values, 1 of them different"),
        ("loss=glob(*)", r"tune: loss=glob\(\*\): list its values, as in loss=A,B,C"),
        ("beta=shuffle(1,2)", "list its values"),
    ],
)
def test_a_mistake_in_a_space_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(TemperError, match=message):
        parsed([override])


@pytest.mark.parametrize("other", ["beta=3", "++beta=3", "beta=3,4"])
def test_a_setting_is_given_once(other: str) -> None:
    with pytest.raises(TemperError, match="tune: beta stands there twice; leave one of them out"):
        parsed(["beta=1,2", other])


def test_in_python_an_axis_is_a_list_or_a_distribution() -> None:
    space = space_of({"beta": [0.1, 0.3], "rate": FloatDistribution(0.0, 1.0)})
    assert space["beta"].value("0.3") == 0.3
    assert space["rate"].value(0.25) == 0.25
    with pytest.raises(TemperError, match=r"tune: beta=0\.1; give a list of values, or a dist"):
        space_of({"beta": 0.1})


def test_drawn_numbers_are_the_same_on_every_machine_and_within_their_bounds() -> None:
    axis = space_of({"rate": FloatDistribution(1.00000049e-5, 1e-3)})["rate"]
    assert axis.rounded(0.000123456789) == 0.000123457
    assert axis.rounded(1.00000049e-5) == 1.00000049e-5
    assert value_text(0.000123457) == "0.000123457"


def test_numbers_that_differ_late_are_different_values() -> None:
    assert [*space_of({"rate": [0.12345671, 0.12345672]})["rate"].choices] == [
        "0.12345671",
        "0.12345672",
    ]


# --- the goal ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("DPO.exact_match", Goal("DPO", "exact_match", False)),
        ("DPO.exact_match:min", Goal("DPO", "exact_match", True)),
        ("shuffled labels.eval_loss", Goal("shuffled labels", "eval_loss", True)),
        ("DPO.eval_loss/chosen", Goal("DPO", "eval_loss/chosen", True)),
        ("SFT.kl:max", Goal("SFT", "kl", False)),
        ("v1.5.gain/eval_rewards/margins", Goal("v1.5", "gain/eval_rewards/margins", False)),
    ],
)
def test_of_a_loss_less_is_better_unless_somebody_says_otherwise(text: str, goal: Goal) -> None:
    assert Goal.parse(text, RESULTS, "--metric") == goal


def test_a_metric_whose_owner_is_not_clear_is_refused() -> None:
    assert Goal.parse("eval_loss", ["only"], "--metric") == Goal("only", "eval_loss", True)
    with pytest.raises(TemperError, match="--metric exact_match: name its owner, as in"):
        Goal.parse("exact_match", RESULTS, "--metric")
    with pytest.raises(TemperError, match=r"--metric DPO: name the metric too: DPO\.METRIC"):
        Goal.parse("DPO", RESULTS, "--metric")
    with pytest.raises(TemperError, match=r"did you mean DPO"):
        Goal.parse("DPOO.exact_match", RESULTS, "--metric")
    with pytest.raises(TemperError, match="it ends with :min or :max"):
        Goal.parse("DPO.loss:least", RESULTS, "--metric")


# --- what comes next -----------------------------------------------------------------------------


def study(sampler: str, trials: int = 12, batch: int | None = None, seed: int = 0) -> Study:
    axes = {"beta": [0.1, 0.3, 1.0]}
    axes |= {"rate": [1, 2] if sampler == "grid" else FloatDistribution(1e-5, 1e-3, log=True)}
    return Study(space_of(axes), GOAL, trials, sampler, seed, batch)


def played(study: Study) -> list[dict]:
    """All trials of a study in which a smaller rate is better."""
    trials: list[Trial] = []
    while points := ask(study, trials):
        for point in points:
            trials.append(Trial(len(trials), point, point, value=-float(point["rate"])))
    return [dict(trial.drawn) for trial in trials]


def test_a_grid_is_every_combination_once() -> None:
    assert len(played(study("grid"))) == 6
    assert len({tuple(point.items()) for point in played(study("grid"))}) == 6
    assert played(study("grid", trials=4)) == played(study("grid", batch=1))[:4]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_gives_the_same_trials(sampler: str) -> None:
    assert played(study(sampler)) == played(study(sampler))
    assert played(study(sampler)) != played(study(sampler, seed=1))
    assert len(played(study(sampler))) == 12


def test_the_last_seed_is_a_seed_too() -> None:
    assert len(played(study("tpe", seed=2**32 - 1))) == 12


def test_a_sampler_that_learns_comes_closer() -> None:
    rates = [point["rate"] for point in played(study("tpe", trials=40))]
    assert sum(rates[20:]) < sum(rates[:20])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampler": "best"}, "--sampler best: known: tpe, random, grid"),
        ({"sampler": "grid"}, "--sampler grid: rate is an interval"),
        ({"trials": 0}, "--trials 0: give a whole number from 1"),
        ({"batch": 0}, "--batch 0: give a whole number from 1"),
        ({"space": {}}, "no setting varies"),
        ({"trials": 2.5}, r"--trials 2\.5: give a whole number"),
        ({"seed": -1}, "--seed -1: give a whole number from 0 to 4294967295"),
    ],
)
def test_what_is_no_study_is_refused(change: dict, message: str) -> None:
    space = space_of({"rate": FloatDistribution(0.1, 1.0)})
    with pytest.raises(TemperError, match=message):
        Study(**{"space": space, "goal": GOAL, "trials": 3} | change)


# --- who goes on ---------------------------------------------------------------------------------

STOP = Goal("train_dpo", "eval_loss", minimize=True)


def at_rung(*values: float) -> list[Trial]:
    return [Trial(number, {}, {}, {5: value}) for number, value in enumerate(values)]


def test_the_best_half_goes_on_and_of_equals_the_first() -> None:
    trials = at_rung(0.4, 0.2, 0.3, 0.2, 0.9)
    promote(Halving(STOP, (5, 10)), trials, 0)
    assert [trial.number for trial in trials if trial.rung == 1] == [1, 3]


def test_one_goes_on_at_least_and_who_went_on_stays() -> None:
    halving = Halving(STOP, (5,), reduction=3)
    trials = at_rung(0.4)
    promote(halving, trials, 0)
    trials += [Trial(n, {}, {}, {5: 0.1}) for n in (1, 2)]
    promote(halving, trials, 0)
    assert [trial.rung for trial in trials] == [1, 1, 0]


def test_an_earlier_trial_goes_on_once_it_is_among_the_best() -> None:
    halving = Halving(STOP, (5,))
    trials = at_rung(0.4, 0.2)
    promote(halving, trials, 0)
    assert [trial.rung for trial in trials] == [0, 1]
    trials += [Trial(n, {}, {}, {5: 0.9}) for n in (2, 3)]
    promote(halving, trials, 0)
    assert [trial.rung for trial in trials] == [1, 1, 0, 0]


@pytest.mark.parametrize("rungs", [(), (0,), (5, 5), (10, 5)])
def test_rungs_rise(rungs: tuple[int, ...]) -> None:
    with pytest.raises(TemperError, match=r"--rungs .*Give rising numbers"):
        Halving(STOP, rungs)
