"""A loss that needs the reference's whole distribution: a second model beside the policy, or the
policy without its adapters, beside a textbook that keeps the logits of both models."""

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import oracle
import pytest
import torch
from oracle import assert_same_gradients
from tiny_models import (
    ARCHITECTURES,
    folder_bytes,
    llama,
    log_of,
    model_folder,
    pair_records,
    token_files,
)
from token_groups import pairs, reference_logps
from torch import Tensor
from transformers import PreTrainedModel
from waiting import leaving_at

from pipeline import TemperError, adopt, run
from steps.data.tokens.token_tables import PAIR_TOKENS
from steps.evaluation.preferences import preference_metrics
from steps.jax_backend.config import InfluenceConfig
from steps.kinds import Model, PairTokens
from steps.losses.with_reference.tdpo import Tdpo
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.workplace import Left, Workplace
from steps.online.methods.online_dpo import OnlineDpo
from steps.reference_logprobs import reference_logprobs
from steps.scoring import logps as scoring
from steps.scoring.architectures.pack_layouts import Layout, read_batches
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import Attention
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import token_logps
from steps.scoring.packing import make_pack
from steps.scoring.reference import run_reference
from steps.scoring.scorer import Scorer
from steps.train_dpo import train_dpo
from steps.training.beside.live_reference import LiveReference
from steps.training.config import DpoConfig, OptimizerConfig, Schedule, TrainingBackend
from steps.training.objectives import preference_objective
from steps.training.recipes import run_dpo
from steps.training.schedule import batch_indices
from steps.training.trainer import TRAINED_LOGPS, TrainedReadout, Trainer

BETA, ALPHA, RATE = 0.3, 0.6, 1e-2
FIRST = Tdpo(BETA, alpha=1.0, stop_gradient=False)
SECOND = Tdpo(BETA, alpha=ALPHA)
LOSSES = {"TDPO1": FIRST, "TDPO2": SECOND}
CONFIG = DpoConfig(
    batch_size=4,
    epochs=3.0,
    tokens_per_forward=64,
    dtype=Dtype.float64,
    optimizer=OptimizerConfig(RATE, Schedule.constant, max_grad_norm=None),
    loss=SECOND,
)
LORA = LoraConfig(r=4, alpha=8.0)
SIDES = ("chosen", "rejected")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model")


def place(folder: Path) -> Workplace:
    return Workplace(folder, folder.with_name(f"{folder.name}-scratch"))


def trained(
    folder: Path, work: Path, config: DpoConfig, where: Workplace | None = None, **more: Any
) -> list[dict]:
    records, reference = pair_records(8), work / f"reference-{config.dtype}"
    if not reference.exists():
        run_reference(folder, records, config.reference(), place(reference))
    where = where or place(work / "out")
    run_dpo(folder, records, reference, config, where, **more)
    return log_of(where.output)


# --- the textbook --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """A response as two models read it. likely: the policy's log-probabilities of every token of
    the vocabulary [T, V]; theirs: the reference's; ids: the response's own tokens [T]."""

    likely: Tensor
    theirs: Tensor
    ids: Tensor

    def ratio(self) -> Tensor:
        """log(π / π_ref) of the response."""
        return (self.likely - self.theirs).gather(1, self.ids[:, None]).sum()

    def kl(self) -> Tensor:
        """Σ_t Σ_v π_ref log(π_ref / π)."""
        return (self.theirs.exp() * (self.theirs - self.likely)).sum()


def read_by(policy: PreTrainedModel, reference: PreTrainedModel, prompt: Any, ids: Any) -> Read:
    """From the whole logits of two plain forwards."""
    tokens, first = torch.tensor([[*prompt, *ids]]), max(len(prompt), 1)

    def likely(model: PreTrainedModel) -> Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits
        return logits[0, first - 1 : -1].log_softmax(-1)

    with torch.no_grad():
        theirs = likely(reference)
    return Read(likely(policy), theirs, tokens[0, first:])


def by_hand(loss: Tdpo, chosen: Read, rejected: Read) -> Tensor:
    """The authors' two losses of a pair, as the paper has them."""
    u = loss.beta * (chosen.ratio() - rejected.ratio())
    if loss == FIRST:
        delta = loss.beta * rejected.kl() - loss.beta * chosen.kl()
    else:
        delta = loss.alpha * (loss.beta * rejected.kl() - (loss.beta * chosen.kl()).detach())
    return -torch.nn.functional.logsigmoid(u - delta)


# --- one batch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if name in ("gemma2", "granite") else pytest.mark.attack)
        for name in ARCHITECTURES  # these two have logits that are capped, or scaled
    ],
)
def test_a_batch_has_the_textbook_s_loss_and_gradient_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Into forwards, in every layout, and within a forward into a few rows of logits at a time."""
    build = ARCHITECTURES[architecture]
    folders = [model_folder(tmp_path / str(seed), build, seed) for seed in (0, 1)]
    groups = pairs()
    with oracle.in_float64():
        expected, theirs = expected_of(folders, groups)
    whole, cut = 2**28, 1
    for layout, cuts in {
        Layout.packed: ((1, whole), (60, whole), (10**6, whole), (10**6, cut)),
        Layout.batched: ((60, whole), (60, cut)),
        Layout.alone: ((1, whole),),
    }.items():
        with oracle.in_float64():
            model, readout = compared(folders[0], folders[1], layout)
        for budget, logits in cuts:
            monkeypatch.setitem(scoring._LOGITS_BYTES, "cpu", logits)
            for name, (value, gradients) in expected.items():
                model.zero_grad(set_to_none=True)
                with oracle.in_float64():
                    trainer = Trainer(
                        Scorer(model, budget, readout), OptimizerConfig(), readout=readout
                    )
                    of_batch = preference_objective(groups, LOSSES[name], theirs)
                    batch = trainer.prepare(groups)
                    loss = of_batch.batch_loss(range(9), None)
                    result = trainer.forward_backward(batch, loss).result()
                    trainer.close()
                assert result.losses.sum().item() == pytest.approx(value, rel=1e-9)
                assert_same_gradients(model, gradients)


def expected_of(
    folders: list[Path], groups: list[TokenGroup]
) -> tuple[dict[str, tuple[float, dict[str, Tensor]]], Tensor]:
    """The textbook's losses with their gradients, and the logps of its reference [n, 2]."""
    slow, other = map(oracle.load, folders)
    sides = [[read_by(slow, other, g.prompt_ids, r.ids) for r in g.responses] for g in groups]
    names, parameters = zip(*slow.named_parameters(), strict=True)
    found = {}
    for name, loss in LOSSES.items():
        value = torch.stack([by_hand(loss, *pair) for pair in sides]).mean()
        gradients = torch.autograd.grad(value, parameters, retain_graph=True)
        found[name] = value.item(), dict(zip(names, gradients, strict=True))
    theirs = [[read.theirs.gather(1, read.ids[:, None]).sum() for read in pair] for pair in sides]
    return found, torch.tensor(theirs, dtype=torch.float64)


@pytest.mark.parametrize("name", LOSSES)
def test_at_the_reference_the_gradient_is_that_of_dpo(folder: Path, name: str) -> None:
    groups = pairs()
    with oracle.in_float64():
        slow = oracle.load(folder)
        sides = [(g.prompt_ids, [r.ids for r in g.responses]) for g in groups]
        each = [oracle.group_logps(slow, *side) for side in sides]
        losses = [oracle.dpo(w, l, w.detach(), l.detach(), BETA) for w, l in each]  # noqa: E741
        expected = oracle.gradients(slow, torch.stack(losses).mean())
        model, readout = compared(folder, folder)
        trainer = Trainer(Scorer(model, 60, readout), OptimizerConfig(), readout=readout)
        batch = trainer.prepare(groups)
        reference = trainer.logps(batch).result().of(groups).sums()
        of_batch = preference_objective(groups, LOSSES[name], reference)
        result = trainer.forward_backward(batch, of_batch.batch_loss(range(9), None)).result()
    assert result.losses.sum().item() == pytest.approx(math.log(2), rel=1e-15)
    assert all((result.metrics[f"kl/{side}"] == 0).all() for side in SIDES)
    assert_same_gradients(model, expected)


def compared(
    policy: Path, reference: Path, layout: Layout = Layout.packed
) -> tuple[PreTrainedModel, TrainedReadout]:
    """One folder's model, and how it is read with another one's as its frozen reference."""
    model, other = (load_model(each, Dtype.float64) for each in (policy, reference))
    if layout is Layout.packed:
        use_packed_attention(model)
    elif layout is Layout.batched:
        read_batches(model)
    live = LiveReference(other, is_policy=False)
    live.read_like(model)
    return model, live.beside(TRAINED_LOGPS)


@pytest.mark.parametrize("dtype", [Dtype.float32, Dtype.bfloat16])
def test_a_pair_has_the_same_bits_whatever_it_is_packed_with(tmp_path: Path, dtype: Dtype) -> None:
    """And logps have the bits of the cached reference's code."""
    model, other = (load_model(model_folder(tmp_path / f"{n}", llama, n), dtype) for n in (0, 1))
    use_packed_attention(model)
    live = LiveReference(other, is_policy=False)
    live.read_like(model)
    seen: list[Tensor] = []

    def loss(logps: Any, _: slice) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(torch.stack([logps.tokens, logps.divergences]).detach())
        return logps.sums().sum(dim=1) + logps.divergence_sums().sum(dim=1), {}

    def read(groups: list[TokenGroup]) -> Tensor:
        live.beside(TRAINED_LOGPS).backward(model, make_pack(groups), loss, None)
        return seen.pop()

    together = read(pairs())
    assert torch.equal(together, torch.cat([read([group]) for group in pairs()], dim=1))
    assert torch.equal(together[0], token_logps(model, make_pack(pairs())).double())


def test_tokens_that_neither_model_can_give_do_not_count(tmp_path: Path) -> None:
    def bans_a_token() -> PreTrainedModel:
        model = llama(tied=False)
        head: Any = model.lm_head
        head.bias = torch.nn.Parameter(torch.zeros(64))
        return model

    model, other = (bans_a_token().double() for _ in range(2))
    each: Any
    for each in (model, other):
        with torch.no_grad():
            each.lm_head.bias[7] = -math.inf
    use_packed_attention(model)
    live = LiveReference(other, is_policy=False)
    live.read_like(model)
    without = [g for g in pairs() if not any(7 in r.ids for r in g.responses)]
    pack = make_pack(without)
    divergences = live.beside(TRAINED_LOGPS).divergences
    assert divergences is not None
    found = divergences.read(model, pack)
    assert found.isfinite().all()
    assert (found > 0).all()


# --- whole runs ----------------------------------------------------------------------------------


PACKED, PADDED = Attention.packed, Attention.padded


@pytest.mark.parametrize("name", LOSSES)
def test_a_run_is_the_textbook_s_with_two_models(folder: Path, tmp_path: Path, name: str) -> None:
    loss = LOSSES[name]
    records, reference = pair_records(8), tmp_path / "reference-float64"
    run_reference(folder, records, CONFIG.reference(), place(reference))
    config = replace(CONFIG, loss=loss, eval_every_steps=6, keep_best="eval_kl/rejected")
    log = trained(folder, tmp_path, config, held_out=(records, reference))
    losses, after, kls = textbook(folder, loss, steps=6)
    assert [step["loss"] for step in log] == pytest.approx(losses, rel=2e-6)
    assert log[-1]["eval_loss"] == pytest.approx(after, rel=2e-6)
    found = [log[-1][f"eval_kl/{side}"] for side in SIDES]
    assert found == pytest.approx(kls, rel=2e-6)
    out = tmp_path / "after"
    run_reference(tmp_path / "out", records, config.reference(), place(out))
    evaluated = preference_metrics(records, out, reference, loss)
    assert evaluated["eval_rewards/margins"]["value"] == pytest.approx(
        log[-1]["eval_rewards/margins"]
    )
    assert "eval_loss" not in evaluated  # as logps alone do not give it


def textbook(folder: Path, loss: Tdpo, steps: int) -> tuple[list[float], float, list[float]]:
    """The loss of each step; afterwards that of all pairs, and their mean distances."""
    records, policy = pair_records(8), oracle.load(folder)
    other = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), RATE, weight_decay=0.0)

    def of(rows: list[dict]) -> Tensor:
        each = [
            [read_by(policy, other, row["prompt_ids"], row[f"{side}_ids"]) for side in SIDES]
            for row in rows
        ]
        return torch.stack([by_hand(loss, *pair) for pair in each]).mean()

    losses = []
    for step in range(steps):
        value = of([records[i] for i in batch_indices(len(records), 4, step, CONFIG.seed)])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    with torch.no_grad():
        kls = [mean_kl(policy, other, side) for side in SIDES]
        return losses, of(records).item(), kls


@torch.no_grad()
def mean_kl(policy: PreTrainedModel, reference: PreTrainedModel, side: str) -> float:
    """Of the responses of a side, the mean of their distances."""
    rows = [(row["prompt_ids"], row[f"{side}_ids"]) for row in pair_records(8)]
    return torch.stack([read_by(policy, reference, *row).kl() for row in rows]).mean().item()


@pytest.mark.parametrize(
    "lora", [None, replace(LORA, dropout=0.2)], ids=["all weights", "adapters"]
)
def test_a_run_goes_on_to_the_bit(folder: Path, tmp_path: Path, lora: LoraConfig | None) -> None:
    config = replace(CONFIG, dtype=Dtype.bfloat16, lora=lora)
    whole, parts = place(tmp_path / "whole"), place(tmp_path / "parts")
    trained(folder, tmp_path, config, whole)
    with pytest.raises(Left):
        trained(folder, tmp_path, config, replace(parts, stopping=leaving_at(3)))
    trained(folder, tmp_path, config, parts)
    assert folder_bytes(parts.output) == folder_bytes(whole.output)


def test_adapters_are_compared_with_their_base(tmp_path: Path) -> None:
    """Also those of the head."""
    untied = model_folder(tmp_path / "untied", lambda: llama(tied=False))
    lora = replace(LORA, target_modules=("q_proj", "lm_head"))
    config = replace(CONFIG, lora=lora, max_steps=3, eval_every_steps=3)
    records, reference = pair_records(8), tmp_path / "reference-float64"
    run_reference(untied, records, config.reference(), place(reference))
    log = trained(untied, tmp_path, config, held_out=(records, reference))
    base, policy = oracle.load(untied), oracle.load(tmp_path / "out")
    expected = mean_kl(policy, base, "rejected")
    assert log[-1]["eval_kl/rejected"] == pytest.approx(expected, rel=1e-5)


def test_what_cannot_run_a_reference_beside_the_policy_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    for fault, setting in {
        "backend=null": {"backend": TrainingBackend()},
        "compile_layers=false": {"compile_layers": True},
        "follow_every=null": {"follow_every": 2},
        "check_start=true": {"check_start": False},
    }.items():
        with pytest.raises(ValueError, match=f"tdpo runs a frozen reference .*{fault}"):
            DpoConfig(loss=SECOND, **setting)
    with pytest.raises(ValueError, match="looks at tokens or at whole batches"):
        OnlineDpo(loss=SECOND)
    with pytest.raises(ValueError, match="no influence is computed"):
        InfluenceConfig(loss=SECOND)
    ranks = cast("Any", SimpleNamespace(count=2))
    with pytest.raises(ValueError, match="on one device; use one process"):
        run_dpo(folder, [], folder, CONFIG, replace(place(tmp_path / "two"), ranks=ranks))
    with pytest.raises(ValueError, match="alpha must be above 0"):
        Tdpo(alpha=0)
    with pytest.raises(ValueError, match="whole distribution, which is missing"):
        preference_objective(pairs(), SECOND, reference_logps(9)).batch_loss(range(9), None)(
            scoring.TokenLogps(
                torch.zeros(18, dtype=torch.float64), torch.ones(9, 2, dtype=torch.int64)
            ),
            torch.arange(9),
        )


def test_a_run_refuses_several_processes_before_anything_runs(folder: Path, tmp_path: Path) -> None:
    """After SFT and the computation of the reference it would come too late."""
    tokens = token_files(tmp_path / "tokens", PAIR_TOKENS, pair_records(4))
    pairs, model = adopt(str(tokens), PairTokens), adopt(str(folder), Model)
    config = DpoConfig(loss=SECOND)
    reference = reference_logprobs(pairs, model, config.reference())
    trained = train_dpo(pairs, model, reference, config).on(processes=2)
    store = tmp_path / "store"
    with pytest.raises(TemperError, match=r"train_dpo would run in 2 processes .* use one process"):
        run({"model": trained}, store=str(store))
    assert not [*store.glob("artifacts/*")]
