"""The settings that vary, the metric, and what a study refuses before anything runs."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("optuna")

from optuna import TrialPruned
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import PercentilePruner
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, Trial

from pipeline import TemperError
from pipeline.tuning.goal import Goal, Options
from pipeline.tuning.space import parsed, rounded, space_of, value_text

RESULTS = ("SFT", "DPO", "shuffled labels", "v1.5")
GOAL = Goal("DPO", "exact_match", minimize=False)


def test_settings_with_several_values_vary_and_others_do_not() -> None:
    space, fixed = parsed(
        ["seed=3", "loss.beta=0.1,0.3", "dpo/loss=choice(dpo,ipo)", "batch=int(interval(8,64))",
         "rate=tag(log,interval(1e-5,1e-3))", "epochs=range(1,4)", "data.path=a.jsonl"]
    )  # fmt: skip
    assert fixed == ["seed=3", "data.path=a.jsonl"]
    assert space == {
        "loss.beta": CategoricalDistribution(["0.1", "0.3"]),
        "dpo/loss": CategoricalDistribution(["dpo", "ipo"]),
        "epochs": CategoricalDistribution(["1", "2", "3"]),
        "batch": IntDistribution(8, 64),
        "rate": FloatDistribution(1e-5, 1e-3, log=True),
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("beta=interval(1,", "beta=interval\\(1, cannot be read"),
        ("beta=interval(2,1)", r"tune: beta=interval\(2,1\): .*low"),
        ("beta=interval(0,inf)", "both ends must be finite"),
        ("beta=tag(log,interval(0,1))", r"tune: beta=tag\(log,interval\(0,1\)\): .*log"),
        ("beta=1,1", "beta has 2 values, 1 of them different"),
        ("loss=glob(*)", r"tune: loss=glob\(\*\): list its values, as in loss=A,B,C"),
        ("beta=shuffle(1,2)", "list its values"),
    ],
)
def test_a_mistake_in_a_space_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(TemperError, match=message):
        parsed([override])


def test_drawn_numbers_are_the_same_on_every_machine_and_within_their_bounds() -> None:
    axis = FloatDistribution(1.00000049e-5, 1e-3)
    assert rounded(0.000123456789, axis) == 0.000123457
    assert rounded(1.00000049e-5, axis) == 1.00000049e-5
    assert rounded(0.12345678, CategoricalDistribution([0.12345678])) == 0.12345678
    assert value_text(0.000123457) == "0.000123457"
    assert value_text(0.12345671) == "0.12345671"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exact_match", r"--metric exact_match: name the metric as OWNER\.METRIC; known: SFT"),
        ("DPO", "name the metric as .* did you mean DPO"),
        ("DPOO.exact_match", "did you mean DPO"),
        ("DPO.loss:least", "it ends with :min or :max"),
    ],
)
def test_a_metric_whose_owner_is_not_clear_is_refused(text: str, message: str) -> None:
    with pytest.raises(TemperError, match=message):
        Goal.parse(text, RESULTS, "--metric")


@pytest.mark.parametrize(
    ("options", "space", "message"),
    [
        ({"sampler": "best"}, {"beta": [1]}, "--sampler best: known: tpe, random, grid"),
        ({"pruner": "medain"}, {"beta": [1]}, "--pruner medain: did you mean median"),
        ({"sampler": "grid"}, {"rate": FloatDistribution(0, 1)}, "--sampler grid: rate is an int"),
        ({"trials": 0}, {"beta": [1]}, "--trials and --batch: give whole numbers from 1"),
        ({"seed": -1}, {"beta": [1]}, "tune: Seed must be between 0 and"),
        ({"reduction": 1}, {"beta": [1]}, "tune: .*reduction_factor"),
        ({}, {}, "no setting varies"),
        ({"stop_on": "fit.loss"}, {"beta": [1]}, "--stop-on .* and --rungs .* belong together"),
        ({"rungs": [2]}, {"beta": [1]}, "--stop-on .* and --rungs .* belong together"),
        (
            {"stop_on": "fit.loss", "rungs": [5, 15]},
            {"beta": [1]},
            "--rungs 5,15: with --pruner halving and --reduction 2 they are 5,10; --pruner median",
        ),
        ({"stop_on": "fit.loss", "rungs": [0]}, {"beta": [1]}, "tune: .*min_resource"),
    ],
)
def test_what_is_no_study_is_refused(
    options: dict[str, Any], space: dict[str, Any], message: str
) -> None:
    def study() -> None:
        chosen = Options("DPO.exact_match", **{"trials": 3, **options})
        chosen.size(space_of(space))
        chosen.study(GOAL)

    with pytest.raises(TemperError, match=message):
        study()


def played(seed: int = 0, **options: Any) -> list[FrozenTrial]:
    """40 trials in which a smaller rate is better, and the better is known at 5 and 10 updates."""
    chosen = Options("DPO.loss", 40, seed=seed, stop_on="fit.loss", rungs=(5, 10), **options)

    def trial_of(trial: Trial) -> float:
        rate = trial.suggest_float("rate", 0, 1)
        for at in chosen.rungs:
            trial.report(rate, at)
            if trial.should_prune():
                raise TrialPruned
        return rate

    study = chosen.study(Goal("DPO", "loss", minimize=True))
    study.optimize(trial_of, n_trials=40)
    return study.trials


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": "random", "pruner": "hyperband"},
        {"pruner": "median"},
        {"sampler": RandomSampler(seed=1), "pruner": PercentilePruner(20.0)},
    ],
    ids=["tpe, halving", "random, hyperband", "tpe, median", "my own"],
)
def test_the_same_seed_gives_the_same_trials_and_the_best_is_never_stopped(
    options: dict[str, Any],
) -> None:
    trials, again = played(**options), played(**options)
    states = Counter(trial.state.name for trial in trials)
    assert states["PRUNED"] > 5
    assert states["COMPLETE"] > 5
    best = min(trials, key=lambda trial: trial.params["rate"])
    assert best.state.name == "COMPLETE"
    assert [(t.params, t.state) for t in trials] == [(t.params, t.state) for t in again]
    if options.get("sampler", "tpe") == "tpe":
        other = played(seed=1, **options)
        assert [t.params for t in trials] != [t.params for t in other]
        rates = [trial.params["rate"] for trial in trials]
        assert sum(rates[20:]) < sum(rates[:20])


def test_a_grid_has_every_combination_once_and_in_a_random_order_if_trials_stop_early() -> None:
    space = space_of({"beta": [1, 2, 3], "rate": [4, 5]})
    options = Options("DPO.loss", 9, "grid")
    assert options.size(space) == 6
    assert [*options.grid(space)] == [(1, 4), (1, 5), (2, 4), (2, 5), (3, 4), (3, 5)]
    stopping = Options("DPO.loss", 9, "grid", stop_on="fit.loss", rungs=[2])
    assert [*stopping.grid(space)] != [*options.grid(space)]
    assert sorted(stopping.grid(space)) == [*options.grid(space)]
