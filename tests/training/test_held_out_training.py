"""Evaluation while training: what is logged, which model is kept, when it stops."""

import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    llama,
    log_of,
    model_folder,
    pair_records,
)
from waiting import leaving_at

from steps.evaluation.preferences import preference_metrics
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.losses.base import PairLogps, PairLosses, ReferenceLoss
from steps.losses.dpo import Dpo
from steps.losses.reference_free.alphapo import AlphaPo
from steps.losses.simpo import Simpo
from steps.losses.whole_batch.aot import Aot
from steps.losses.with_reference.tdpo import Tdpo
from steps.losses.with_reference.wpo import Wpo
from steps.models.config import LoraConfig
from steps.models.folders import load_model
from steps.models.workplace import Left, Workplace
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import ReferenceConfig
from steps.scoring.examples import read_demonstrations, read_pairs
from steps.scoring.reference import run_reference
from steps.scoring.scorer import Scorer
from steps.training.config import (
    DpoConfig,
    OptimizerConfig,
    ReferenceFreeConfig,
    Schedule,
    TrainConfig,
)
from steps.training.held_out import best_step, evaluate, has_stopped
from steps.training.objectives import preference_objective, sft_objective
from steps.training.recipes import run_dpo, run_reference_free, run_sft

EAGER = OptimizerConfig(learning_rate=3e-2, schedule=Schedule.constant)
# One that is learnt and three that cannot be: their loss falls for some steps and then rises.
HELD_OUT = demonstration_records(1) + demonstration_records(3, seed=1)


@pytest.fixture
def init(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "init")


def sft(init: Path, work: Path, **settings: Any) -> tuple[dict, list[dict]]:
    config = TrainConfig(**{"batch_size": 4, "epochs": 6, "optimizer": EAGER, **settings})
    summary = run_sft(
        init,
        demonstration_records(8),
        config,
        Workplace(work / "out", work / "scratch"),
        held_out=HELD_OUT,
    )
    return summary, log_of(work / "out")


def test_held_out_examples_are_scored_every_few_steps_and_at_the_end(
    init: Path, tmp_path: Path
) -> None:
    _, log = sft(init, tmp_path, eval_every_steps=5)
    assert [m["step"] for m in log if "eval_loss" in m] == [5, 10, 12]
    _, alone = sft(init, tmp_path / "alone")
    shared = [{k: v for k, v in m.items() if not k.startswith("eval_")} for m in log]
    assert shared == alone  # looking changes nothing


def test_an_evaluation_is_what_training_on_those_examples_would_have_logged(
    init: Path, tmp_path: Path
) -> None:
    """The first step on the held-out pairs, from the model that was evaluated."""
    records, held_out = pair_records(6), pair_records(5, seed=1)
    for name, rows in (("r", records), ("h", held_out)):
        run_reference(
            init, rows, ReferenceConfig(), Workplace(tmp_path / name, tmp_path / f"{name}s")
        )
    config = DpoConfig(batch_size=3, max_steps=2, optimizer=EAGER, eval_every_steps=2)
    run_dpo(
        init,
        records,
        tmp_path / "r",
        config,
        Workplace(tmp_path / "one", tmp_path / "s1"),
        held_out=(held_out, tmp_path / "h"),
    )
    evaluated = log_of(tmp_path / "one")[-1]
    again = DpoConfig(batch_size=5, max_steps=1, check_start=False)
    run_dpo(
        tmp_path / "one",
        held_out,
        tmp_path / "h",
        again,
        Workplace(tmp_path / "two", tmp_path / "s2"),
    )
    first = log_of(tmp_path / "two")[0]
    names = ["loss", "rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/rejected"]
    assert [evaluated[f"eval_{name}"] for name in names] == [first[name] for name in names]
    assert evaluated["eval_rewards/margins"] != 0


def test_the_kept_weights_are_those_of_the_best_step(init: Path, tmp_path: Path) -> None:
    summary, log = sft(init, tmp_path, eval_every_steps=1, keep_best="eval_loss")
    losses = [m["eval_loss"] for m in log]
    best = summary["best_step"]
    assert best == losses.index(min(losses)) + 1
    assert 1 < best < len(log)
    assert summary["eval_loss"] == min(losses)
    sft(init, tmp_path / "shorter", max_steps=best)
    kept, ended = (folder_bytes(work / "out") for work in (tmp_path, tmp_path / "shorter"))
    assert kept["model.safetensors"] == ended["model.safetensors"]


def test_the_most_accurate_weights_are_kept_by_a_run_that_was_interrupted_too(
    init: Path, tmp_path: Path
) -> None:
    settings = {"eval_every_steps": 1, "keep_best": "eval_mean_token_accuracy"}
    summary, log = sft(init, tmp_path, **settings, epochs=9)
    accuracies = [m["eval_mean_token_accuracy"] for m in log]
    best = summary["best_step"]
    assert best == accuracies.index(max(accuracies)) + 1 < len(log)
    assert summary["eval_mean_token_accuracy"] == max(accuracies) > 0
    place = Workplace(tmp_path / "o", tmp_path / "s", stopping=leaving_at(best + 1))
    config = TrainConfig(batch_size=4, epochs=9, optimizer=EAGER, **settings)
    for each in (place, replace(place, stopping=lambda: False)):
        with pytest.raises(Left) if each is place else nullcontext():
            run_sft(init, demonstration_records(8), config, each, held_out=HELD_OUT)
    assert folder_bytes(tmp_path / "o") == folder_bytes(tmp_path / "out")


@pytest.mark.parametrize(
    ("values", "best", "stopped"),
    [
        ([], None, False),
        ([3.0, 2.0, 2.0], 2, False),
        ([3.0, 2.0, 2.0, 2.5], 2, True),
        ([0.5, 0.1 + 0.2, 0.3, 0.4], 2, True),
        ([1.0, 2.0, 3.0], 1, True),
        ([3.0, 2.0, 1.0], 3, False),
    ],
)
def test_best_and_over_follow_from_the_log(
    values: list[float], best: int | None, stopped: bool
) -> None:
    config = TrainConfig(eval_every_steps=1, keep_best="eval_loss", early_stop_patience=2)
    log = [{"step": i + 1, "eval_loss": value} for i, value in enumerate(values)]
    assert best_step(log, config) == best
    assert has_stopped(log, config) is stopped
    for metric, sign in {
        "eval_nll_loss": 1,
        "eval_loss/dpo": 1,
        "eval_mine/loss/dpo": 1,
        "eval_kl": 1,
        "eval_my_loss/log_odds_chosen": -1,
        "eval_rewards/margins": -1,
        "eval_logps/chosen": -1,
    }.items():
        config = TrainConfig(eval_every_steps=1, keep_best=metric)
        log = [{"step": i + 1, metric: sign * value} for i, value in enumerate(values)]
        assert best_step(log, config) == best, metric


def test_weights_of_held_out_pairs_count_alike_during_training_and_after(
    init: Path, tmp_path: Path
) -> None:
    records = pair_records(4)
    held_out = [{**r, "weight": 0.5 + i} for i, r in enumerate(pair_records(5, seed=1))]
    for name, rows in (("r", records), ("h", held_out)):
        place = Workplace(tmp_path / name, tmp_path / f"{name}s")
        run_reference(init, rows, ReferenceConfig(), place)
    config = DpoConfig(max_steps=1, optimizer=EAGER, eval_every_steps=1)
    place = Workplace(tmp_path / "out", tmp_path / "s")
    run_dpo(init, records, tmp_path / "r", config, place, (held_out, tmp_path / "h"))
    place = Workplace(tmp_path / "after", tmp_path / "afters")
    run_reference(tmp_path / "out", held_out, ReferenceConfig(), place)
    found = preference_metrics(held_out, tmp_path / "after", tmp_path / "h", config.loss)
    (step,) = log_of(tmp_path / "out")
    assert found["eval_loss"] == pytest.approx(step["eval_loss"], rel=1e-6)
    unweighted = [{**row, "weight": 1.0} for row in held_out]
    plain = preference_metrics(unweighted, tmp_path / "after", tmp_path / "h", config.loss)
    assert plain["eval_loss"] != pytest.approx(step["eval_loss"], rel=1e-2)


def test_a_model_is_evaluated_without_a_loss_by_what_it_finds_likelier(tmp_path: Path) -> None:
    held_out = pair_records(6)
    for seed, name in enumerate(("one", "other")):
        model = model_folder(tmp_path / f"model {name}", seed=seed)
        place = Workplace(tmp_path / name, tmp_path / f"{name}s")
        run_reference(model, held_out, ReferenceConfig(), place)
    one, other = tmp_path / "one", tmp_path / "other"
    alone, compared = (preference_metrics(held_out, one, beside, None) for beside in (one, other))
    with_loss = preference_metrics(held_out, one, other, Dpo())
    own_reference = preference_metrics(held_out, one, one, Dpo())
    for metrics in (alone, compared):
        assert not [name for name in metrics if "loss" in name or "rewards" in name]
    assert not [name for name in own_reference if "rewards" in name]
    assert compared.items() <= with_loss.items()
    assert compared.keys() >= {"eval_logps/accuracies", "gain/logps/margins", "pairs"}
    assert alone["eval_logps/accuracies"] == compared["eval_logps/accuracies"]
    with pytest.raises(FloatingPointError, match=r"AlphaPo gives to \['.*drop the rows"):
        preference_metrics(held_out, one, other, AlphaPo(alpha=1e4))


@pytest.mark.parametrize(
    "loss", [Dpo(), Aot(), Tdpo(), Wpo(align=True)], ids=lambda loss: loss.name
)
def test_a_metric_that_no_evaluation_gives_is_told_before_the_first_step(
    init: Path, tmp_path: Path, loss: ReferenceLoss
) -> None:
    """Not at the first evaluation, when many steps have been paid for."""
    records, held_out = pair_records(4), pair_records(3, seed=1)
    config = DpoConfig(loss=loss, eval_every_steps=9, keep_best="eval_rewards/margin")
    for name, rows in (("r", records), ("h", held_out)):
        place = Workplace(tmp_path / name, tmp_path / f"{name}s")
        run_reference(init, rows, config.reference(), place)
    steps: list[int] = []
    place = Workplace(
        tmp_path / "out", tmp_path / "s", on_progress=lambda done, *_: steps.append(done)
    )
    for keep_best, is_there in (("eval_rewards/margin", False), ("eval_rewards/margins", True)):
        config = replace(config, keep_best=keep_best)
        told = (
            nullcontext() if is_there else pytest.raises(ValueError, match=r"eval_rewards/margin'")
        )
        with told:
            run_dpo(init, records, tmp_path / "r", config, place, (held_out, tmp_path / "h"))
        assert bool(steps) is is_there


def test_a_run_whose_best_weights_are_damaged_makes_them_again(init: Path, tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    config = TrainConfig(
        batch_size=4,
        epochs=6,
        optimizer=OptimizerConfig(learning_rate=0.3),
        eval_every_steps=1,
        keep_best="eval_loss",
        checkpoint_every_steps=1,
    )

    def interrupt(done: int, total: int, metrics: object) -> None:
        if done == 8:
            raise Interrupted

    held_out = demonstration_records(5, seed=1)
    place = Workplace(tmp_path / "out", tmp_path)
    interrupted = replace(place, on_progress=interrupt)
    with pytest.raises(Interrupted):
        run_sft(init, demonstration_records(8), config, interrupted, held_out)
    (best,) = (tmp_path / "checkpoints").glob("best-*")
    os.truncate(best / "weights.safetensors", 10)
    run_sft(init, demonstration_records(8), config, place, held_out)
    undisturbed = Workplace(tmp_path / "other" / "out", tmp_path / "other")
    run_sft(init, demonstration_records(8), config, undisturbed, held_out)
    resumed, whole = (load_file(w.output / "model.safetensors") for w in (place, undisturbed))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_held_out_loss_that_is_not_finite_is_an_error_that_names_the_row(
    tmp_path: Path,
) -> None:
    model = load_model(model_folder(tmp_path, lambda: llama(tied=False)))
    with torch.no_grad():  # only one held-out example has this token
        model.get_parameter("model.embed_tokens.weight")[0] = torch.nan
    use_packed_attention(model)
    records = [{"row": f"r:{i}", "prompt_ids": [i, 5], "response_ids": [4, 5]} for i in range(3)]
    scorer = Scorer(model, tokens_per_forward=1)
    with pytest.raises(FloatingPointError, match=r"held-out \['r:0'\] is not finite"):
        evaluate(scorer, sft_objective(read_demonstrations(records, VOCABULARY)), TrainConfig())


class Undefined(Simpo):
    """A loss of one's own, with a metric that is not defined for every pair."""

    def per_pair(self, logps: PairLogps) -> PairLosses:
        found = super().per_pair(logps)
        nothing = torch.zeros_like(found.losses)
        return replace(found, metrics={"ratio": nothing / nothing})


def test_a_held_out_metric_that_is_no_number_is_an_error_and_never_the_best(init: Path) -> None:
    model = load_model(init)
    use_packed_attention(model)
    objective = preference_objective(read_pairs(pair_records(2), VOCABULARY), Undefined())
    with pytest.raises(FloatingPointError, match=r"the metric ratio of the held-out \['data:0', "):
        evaluate(
            Scorer(model, 64), objective, TrainConfig(keep_best="eval_ratio", eval_every_steps=1)
        )


@pytest.mark.parametrize("lora", [None, LoraConfig(r=2)])
def test_snapshots_are_the_models_of_shorter_runs_also_after_a_kill(
    init: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    settings: dict[str, Any] = {"epochs": 1e6, "checkpoint_every_steps": 3, "lora": lora}
    sft(init, tmp_path / "whole", max_steps=5, snapshot_every_steps=2, **settings)
    whole = tmp_path / "whole" / "out"
    assert sorted(folder.name for folder in whole.glob("step-*")) == ["step-2", "step-4"]
    for steps, made in ((2, whole / "step-2"), (4, whole / "step-4"), (5, whole)):
        sft(init, tmp_path / f"{steps}", max_steps=steps, **settings)
        alone = folder_bytes(tmp_path / f"{steps}" / "out")
        same = [n for n in alone if not n.endswith(("metrics.jsonl", "summary.md"))]
        assert "model.safetensors" in same
        assert [n for n in same if alone[n] != (made / n).read_bytes()] == []
    config = TrainConfig(
        batch_size=4, optimizer=EAGER, max_steps=5, snapshot_every_steps=2, **settings
    )
    place = Workplace(tmp_path / "o", tmp_path / "s", stopping=leaving_at(3))
    with pytest.raises(Left):
        run_sft(init, demonstration_records(8), config, place, HELD_OUT)
    run_sft(
        init, demonstration_records(8), config, replace(place, stopping=lambda: False), HELD_OUT
    )
    assert folder_bytes(tmp_path / "o") == folder_bytes(whole)


@pytest.mark.parametrize(
    "settings",
    [{}, {"dtype": "bfloat16"}, {"backend": FunctionalTraining()}],
    ids=str,
)
def test_the_model_is_the_average_of_the_weights_of_all_steps(
    init: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    settings = {"epochs": 1e6, "max_steps": 4, "eval_every_steps": 4, **settings}
    _, plain = sft(init, tmp_path / "plain", snapshot_every_steps=1, **settings)
    one = settings | {"snapshot_every_steps": 2, "checkpoint_every_steps": 1, "ema_decay": 0.75}
    _, log = sft(init, tmp_path / "average", **one)
    made, out = tmp_path / "plain" / "out", tmp_path / "average" / "out"
    average = load_file(init / "model.safetensors")
    for folder in (made / "step-1", made / "step-2", made / "step-3", made):
        weights = load_file(folder / "model.safetensors")
        average = {n: 0.75 * a + 0.25 * weights[n].float() for n, a in average.items()}
        if folder.name == "step-2":
            _assert_near(load_file(out / "step-2" / "model.safetensors"), average)
    _assert_near(load_file(out / "model.safetensors"), average)
    assert [m["loss"] for m in log] == [m["loss"] for m in plain]  # the updates are the same
    assert log[-1]["eval_loss"] != plain[-1]["eval_loss"]
    config = TrainConfig(**{"batch_size": 4, "optimizer": EAGER, **one})
    place = Workplace(tmp_path / "o", tmp_path / "s", stopping=leaving_at(3))
    with pytest.raises(Left):
        run_sft(init, demonstration_records(8), config, place, HELD_OUT)
    going = replace(place, stopping=lambda: False)
    run_sft(init, demonstration_records(8), config, going, HELD_OUT)
    assert folder_bytes(tmp_path / "o") == folder_bytes(out)


def _assert_near(made: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    tolerance = 1e-2 if made["model.norm.weight"].dtype is torch.bfloat16 else 1e-6
    for name, weight in made.items():
        torch.testing.assert_close(weight.float(), expected[name], rtol=tolerance, atol=tolerance)


@dataclass(frozen=True)
class Annealed(Simpo):
    """β rises over the run from one to two times that of the settings."""

    name: ClassVar[str] = "annealed"

    def at(self, step: int, steps: int) -> "Annealed":
        return replace(self, beta=self.beta * (1 + step / (steps - 1)))


def test_a_loss_may_change_with_the_step_of_the_run(init: Path, tmp_path: Path) -> None:
    for name, loss in (("moves", Annealed(beta=1.0)), ("stays", Simpo(beta=1.0))):
        config = ReferenceFreeConfig(batch_size=4, epochs=1, loss=loss)
        run_reference_free(
            init, pair_records(8), config, Workplace(tmp_path / name, tmp_path / f"{name}-s")
        )
    moves, stays = log_of(tmp_path / "moves"), log_of(tmp_path / "stays")
    assert moves[0]["loss"] == stays[0]["loss"]
    assert moves[1]["rewards/chosen"] == pytest.approx(2 * stays[1]["rewards/chosen"], rel=1e-6)
