"""A trainer as a loop uses it: futures in order, one gradient whatever the forwards, poison."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from tiny_models import VOCABULARY, demonstration_records, llama, model_folder, pair_records
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from steps.losses.dpo import Dpo
from steps.models.call_queue import PoisonedError
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import read_demonstrations, read_pairs
from steps.scoring.logps import TokenLogps
from steps.scoring.scorer import Scorer
from steps.training.config import OptimizerConfig
from steps.training.objectives import Objective, preference_objective, sft_objective
from steps.training.trainer import GroupLosses, Trainer

RATE = OptimizerConfig(learning_rate=1e-2)
BUDGETS = (1, 48, 96, 10**6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def packed(folder: Path, dtype: Dtype = Dtype.float32) -> PreTrainedModel:
    model = load_model(folder, dtype)
    use_packed_attention(model)
    return model


def trainer(folder: Path, tokens_per_forward: int = 64, **settings: Any) -> Trainer:
    return Trainer(Scorer(packed(folder), tokens_per_forward), RATE, **settings)


def pairs(count: int) -> Objective:
    groups = read_pairs(pair_records(count), VOCABULARY)
    reference = torch.linspace(-30, -10, 2 * count, dtype=torch.float64).view(count, 2)
    return preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference)


def demonstrations(count: int) -> Objective:
    return sft_objective(read_demonstrations(demonstration_records(count), VOCABULARY))


@pytest.mark.parametrize("objective", [pairs(9), demonstrations(9)], ids=["dpo+nll", "sft"])
@pytest.mark.parametrize("dtype", [Dtype.float32, Dtype.float64])
def test_one_batch_has_one_loss_and_one_gradient_however_many_forwards_it_takes(
    folder: Path, objective: Objective, dtype: Dtype
) -> None:
    forwards, values, gradients = [], [], []
    for budget in BUDGETS:
        model = packed(folder, dtype)
        trained = Trainer(Scorer(model, budget), RATE)
        batch = trained.prepare(objective.groups)
        loss = objective.batch_loss(range(9), None)
        result = trained.forward_backward(batch, loss).result()
        forwards.append(len(batch.packs))
        values.append(torch.stack([result.losses, *result.metrics.values()]))
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    assert forwards[0] == 9
    assert len(set(forwards)) == len(BUDGETS)
    assert forwards[-1] == 1
    for other in values[1:]:
        assert torch.equal(other, values[0])  # to the last bit, group by group
    assert gradients[0].norm() > 1e-2
    tolerance = 1e-6 if dtype is Dtype.float32 else 1e-14
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=tolerance, atol=tolerance)


def test_scores_come_in_the_order_of_the_batch_and_equal_those_alone(folder: Path) -> None:
    scorer = Scorer(packed(folder), 64)
    groups = pairs(9).groups
    together = scorer.logps(scorer.prepare(groups)).result()
    assert len(together.tokens) == len(together.sequences) == 18
    for number, group in enumerate(groups):
        alone = scorer.logps(scorer.prepare([group])).result()
        for side in range(2):
            tokens = together.tokens[2 * number + side]
            assert torch.equal(tokens, alone.tokens[side])
            assert len(tokens) == group.responses[side].num_scored
            assert together.sequences[2 * number + side] == alone.sequences[side]
            assert tokens.double().sum().item() == pytest.approx(alone.sequences[side].item())


def test_calls_take_effect_in_order(folder: Path) -> None:
    trained = trainer(folder)
    objective = pairs(4)
    batch, loss = trained.prepare(objective.groups), objective.batch_loss(range(4), None)
    before = trained.logps(batch)
    trained.forward_backward(batch, loss)
    norm = trained.optim_step(1e-2)
    after = trained.logps(batch)
    weights = trained.get_weights()
    assert norm.result() > 0
    assert not torch.equal(before.result().sequences, after.result().sequences)
    trained.forward_backward(batch, loss)
    trained.optim_step(1e-2)
    trained.load_weights(weights.result()).result()
    assert torch.equal(trained.logps(batch).result().sequences, after.result().sequences)


def test_a_checkpoint_holds_the_state_as_of_its_call(folder: Path, tmp_path: Path) -> None:
    trained, objective = trainer(folder), pairs(4)
    batch, loss = trained.prepare(objective.groups), objective.batch_loss(range(4), None)

    def step() -> None:
        trained.forward_backward(batch, loss)
        trained.optim_step(1e-2)

    step()
    stepped = threading.Event()
    trained._writer.submit(stepped.wait)  # a disk so slow that the next step is over before it
    saved = trained.save_checkpoint(tmp_path / "state")
    step()
    expected = trained.logps(batch).result().sequences
    stepped.set()
    saved.result()
    trained.load_checkpoint([tmp_path / "state"]).result()
    step()
    assert torch.equal(trained.logps(batch).result().sequences, expected)


@dataclass(frozen=True)
class Faulty:
    """A loss that fails, or is not a number, or has a metric that is none."""

    value: float | None = None
    metric: float = 0.0

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        if self.value is None:
            raise MemoryError("no room for these logits")
        sums = logps.sums().sum(dim=1)
        return sums * self.value, {"ratio": torch.full_like(sums.detach(), self.metric)}

    def to(self, device: torch.device) -> Self:
        return self


def test_the_first_error_poisons_everything_after_it(folder: Path, tmp_path: Path) -> None:
    trained, objective = trainer(folder), pairs(4)
    batch, loss = trained.prepare(objective.groups), objective.batch_loss(range(4), None)
    before = trained.get_weights().result()
    fault = trained.forward_backward(batch, Faulty())
    queued = trained.optim_step(1e-2)
    with pytest.raises(MemoryError):
        fault.result()
    calls: list[Callable[[], Any]] = [
        lambda: queued,
        lambda: trained.forward_backward(batch, loss),
        lambda: trained.logps(batch),
        lambda: trained.get_weights(),
        lambda: trained.save_checkpoint(tmp_path / "state"),
    ]
    for call in calls:
        with pytest.raises(PoisonedError, match="MemoryError: no room for these logits"):
            call().result()
    assert not (tmp_path / "state").exists()
    again = trainer(folder)
    again.load_weights(before).result()
    again.forward_backward(batch, loss).result()


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (Faulty(torch.nan), "the loss of"),
        (Faulty(1.0, torch.nan), "the metric ratio of"),
        (Faulty(1.0, -torch.inf), "the metric ratio of"),
    ],
)
def test_a_loss_or_a_metric_that_is_not_finite_names_its_rows_and_changes_nothing(
    folder: Path, loss: Faulty, what: str
) -> None:
    trained, objective = trainer(folder), pairs(3)
    batch = trained.prepare(objective.groups)
    result, norm = trained.forward_backward(batch, loss), trained.optim_step(1e-2)
    with pytest.raises(FloatingPointError, match=rf"{what} .*data:0.*data:1.*data:2"):
        result.result()
    with pytest.raises(PoisonedError):
        norm.result()


def test_a_gradient_that_is_not_finite_changes_no_weight(folder: Path) -> None:
    model = packed(folder)
    trained, objective = Trainer(Scorer(model, 64), RATE), pairs(3)
    before = trained.get_weights().result()
    trained.forward_backward(
        trained.prepare(objective.groups), objective.batch_loss(range(3), None)
    ).result()
    next(iter(model.parameters())).grad.fill_(torch.inf)  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(FloatingPointError, match="gradient norm is"):
        trained.optim_step(1e-2).result()
    after = dict(model.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)


class HostReads(TorchDispatchMode):
    """Counts what makes a host wait for its device: values read, shapes that depend on them."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indexed = name in ("index", "index_put_") and any(
            i is not None and i.dtype is torch.bool for i in args[1]
        )
        self.count += indexed or name in self.WAITS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [pairs, demonstrations])
def test_no_forward_waits_for_the_device(folder: Path, make: Callable[[int], Objective]) -> None:
    objective = make(6)
    loss = objective.batch_loss(range(6), None)
    reads = []
    for budget in (1, 10**6):
        trained = trainer(folder, budget)
        batch = trained.prepare(objective.groups)
        with HostReads() as mode:
            trained._forward_backward(batch, loss)
        reads.append(mode.count)
        assert len(batch.packs) == (6 if budget == 1 else 1)
    assert reads[0] == reads[1]  # none of them is a forward's
    assert reads[0] <= 2  # the check that the losses are finite, on the host


def test_dropout_acts_in_training_alone_and_follows_from_the_noise(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", lambda: llama(dropout=0.3))
    objective = demonstrations(4)
    loss = objective.batch_loss(range(4), None)

    def losses(noise: int, dropout: bool) -> Tensor:
        trained = trainer(folder, dropout=dropout)
        return (
            trained.forward_backward(trained.prepare(objective.groups, noise), loss).result().losses
        )

    assert torch.equal(losses(1, True), losses(1, True))
    assert not torch.equal(losses(1, True), losses(2, True))
    assert torch.equal(losses(1, False), losses(2, False))
    scorer = trainer(folder, dropout=True)
    batch = scorer.prepare(objective.groups)
    scores = scorer.logps(batch).result().sequences, scorer.logps(batch).result().sequences
    assert torch.equal(*scores)
    assert not torch.equal(losses(1, True), losses(1, False))
