"""The functional torch backend beside the module backend, and the gradient noise scale."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from families import FAMILIES, UNLIKE
from tiny_models import (
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    log_of,
    model_folder,
    pair_records,
)
from token_groups import pairs, reference_logps
from waiting import leaving_at

from steps.functional_backend.functional_choice import FunctionalTraining
from steps.functional_backend.functional_trainer import FunctionalTrainer, gradient_of
from steps.losses.dpo import Dpo
from steps.losses.imitation.dft import Dft
from steps.losses.kto import Kto
from steps.losses.simpo import Simpo
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.ranks import Ranks
from steps.models.workplace import Left, Workplace
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, read_pairs
from steps.scoring.logps import TokenLogps, forward_backward
from steps.scoring.packing import make_pack
from steps.scoring.scorer import Scorer
from steps.training.config import OptimizerConfig, ReferenceFreeConfig, TrainConfig
from steps.training.objectives import (
    Objective,
    preference_objective,
    sft_objective,
    unpaired_objective,
)
from steps.training.policy import LANGUAGE_MODEL
from steps.training.recipes import run_reference_free, run_sft

FUNCTIONAL = FunctionalTraining()


def objectives() -> list[Objective]:
    groups = pairs()
    singles = [TokenGroup(g.row, g.group_id, g.prompt_ids, g.responses[:1]) for g in groups]
    reference = reference_logps(len(groups))
    dpo = preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference)
    rated = [replace(single, label=number % 3 > 0) for number, single in enumerate(singles)]
    kto = unpaired_objective(rated, Kto(), reference[:, 0], rated, reference[:, 0])
    imitated = [sft_objective(singles), sft_objective(singles, Dft())]
    return [dpo, preference_objective(groups, Simpo()), *imitated, kto]


@pytest.mark.parametrize("family", UNLIKE)
def test_losses_and_gradients_are_those_of_the_module(tmp_path: Path, family: str) -> None:
    model = load_model(model_folder(tmp_path, FAMILIES[family]), Dtype.float64).eval()
    use_packed_attention(model)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    for objective in objectives()[:: 1 if family == "gemma2" else 4]:
        count, pack = len(objective.groups), make_pack(objective.groups)
        baseline = None
        if objective.baseline_groups is not None:
            ones = torch.ones(count, 1, dtype=torch.int64)
            baseline = TokenLogps(torch.zeros(count, dtype=torch.float64), ones)
        batch_loss = objective.batch_loss(range(count), baseline)

        def loss(logps: TokenLogps, some: slice, batch_loss: Any = batch_loss) -> Any:
            return batch_loss(logps, torch.arange(99)[some])

        model.zero_grad(set_to_none=True)
        with oracle.in_float64():
            expected = forward_backward(model, pack, loss)
            actual, gradient = gradient_of(model, weights, pack, loss)
        torch.testing.assert_close(actual.logps, expected.logps, rtol=0, atol=1e-10)
        torch.testing.assert_close(actual.losses, expected.losses, rtol=0, atol=1e-10)
        largest = max(p.grad.norm() for p in model.parameters() if p.grad is not None)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            off = (gradient[name] - parameter.grad).norm()
            assert off <= 1e-8 * max(parameter.grad.norm(), 1e-4 * largest), name


@pytest.mark.parametrize("dtype", [Dtype.float32, Dtype.bfloat16])
def test_steps_go_as_with_modules(tmp_path: Path, dtype: Dtype) -> None:
    policy, records = model_folder(tmp_path / "policy"), pair_records(16)
    optimizer = OptimizerConfig(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1)
    logs = []
    for backend in (None, FUNCTIONAL):
        config = ReferenceFreeConfig(
            batch_size=8, epochs=4, dtype=dtype, optimizer=optimizer, backend=backend
        )
        work = tmp_path / str(backend)
        run_reference_free(policy, records, config, Workplace(work / "model", work / "scratch"))
        logs.append(log_of(work / "model"))
    assert len(logs[0]) == 8
    losses, norms = (1e-5, 1e-4) if dtype == Dtype.float32 else (3e-2, 1e-1)
    for theirs, ours in zip(*logs, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=losses)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=norms)


def test_a_run_with_adapters_dropout_and_noise_that_was_stopped_ends_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    policy, records = model_folder(tmp_path / "policy"), demonstration_records(6)
    config = TrainConfig(
        batch_size=3,
        epochs=2,
        optimizer=OptimizerConfig(learning_rate=3e-2),
        lora=LoraConfig(r=4, dropout=0.3),
        backend=FunctionalTraining(noise_scale=True),
    )
    place = Workplace(tmp_path / "model", tmp_path / "scratch", stopping=leaving_at(2))
    with pytest.raises(Left):
        run_sft(policy, records, config, place)
    run_sft(policy, records, config, replace(place, stopping=lambda: False))
    run_sft(policy, records, config, Workplace(tmp_path / "whole", tmp_path / "other"))
    assert folder_bytes(tmp_path / "model") == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("first", [None, FUNCTIONAL])
def test_a_run_begun_with_one_backend_goes_on_with_the_other(tmp_path: Path, first: Any) -> None:
    policy, records = model_folder(tmp_path / "policy"), demonstration_records(8)
    config = TrainConfig(batch_size=4, epochs=3, optimizer=OptimizerConfig(learning_rate=1e-3))
    second = FUNCTIONAL if first is None else None
    place = Workplace(tmp_path / "model", tmp_path / "scratch", stopping=leaving_at(3))
    with pytest.raises(Left):
        run_sft(policy, records, replace(config, backend=first), place)
    mixed = replace(place, stopping=lambda: False)
    run_sft(policy, records, replace(config, backend=second), mixed)
    run_sft(policy, records, config, Workplace(tmp_path / "whole", tmp_path / "other"))
    for ours, theirs in zip(log_of(tmp_path / "model"), log_of(tmp_path / "whole"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


def test_the_noise_scale_is_that_of_the_gradients_of_single_examples(tmp_path: Path) -> None:
    """Of two steps, beside the sample variance of gradients that are formed one by one."""
    folder, groups = model_folder(tmp_path), read_pairs(pair_records(5), VOCABULARY)
    model = load_model(folder, Dtype.float64)
    use_packed_attention(model)
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def gradient(some: list[TokenGroup]) -> torch.Tensor:
        loss = preference_objective(some, Simpo()).batch_loss(range(len(some)), None)
        _, found = gradient_of(
            model, weights, make_pack(some), lambda logps, n: loss(logps, torch.arange(99)[n])
        )
        return torch.cat([g.flatten() for g in found.values()])

    rows = torch.stack([gradient([group]) for group in groups])
    variance = rows.var(dim=0).sum()
    signal = rows.mean(dim=0).square().sum() - variance / len(rows)

    trainer = FunctionalTrainer(Scorer(model, 512), OptimizerConfig(), noise_scale=True)
    loss = preference_objective(groups, Simpo()).batch_loss(range(5), None)
    trainer.forward_backward(trainer.prepare(groups), loss).result()
    model.zero_grad()  # the weights stay, so the means are those of a step
    metrics = trainer.forward_backward(trainer.prepare(groups), loss).result().metrics
    actual = {name: value.sum().item() for name, value in metrics.items()}
    expected = {"gradient_variance": variance, "gradient_signal": signal}
    expected |= {"noise_scale": variance / signal} if signal > 0 else {}
    actual = {name: value for name, value in actual.items() if name in (*expected, "noise_scale")}
    # The model computes its norms in float32 (see `oracle.in_float64`).
    assert actual == pytest.approx({n: v.item() for n, v in expected.items()}, rel=1e-6)
    trainer.close()


def test_several_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="backend=functional trains on one device"):
        FUNCTIONAL.open_policy(tmp_path, TrainConfig(), Ranks(0, 2), False, LANGUAGE_MODEL)
