"""The loss of normalisers, (log Σ exp z)² (PaLM), on every engine against autograd in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from families import FAMILIES
from oracle import assert_same_gradients
from tiny_models import demonstration_records, folder_bytes, log_of, model_folder, pair_records
from token_groups import pairs
from waiting import leaving_at

from steps.functional_backend.functional_choice import FunctionalTraining
from steps.functional_backend.functional_trainer import gradient_of
from steps.jax_backend.config import JaxTraining
from steps.jax_backend.torchax_engine.torchax_choice import TorchaxTraining
from steps.losses.with_reference.tdpo import Tdpo
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.workplace import Left, Workplace
from steps.scoring.architectures.pack_layouts import read_alone
from steps.scoring.attention import use_packed_attention
from steps.scoring.logps import forward_backward
from steps.scoring.packing import make_pack
from steps.training.config import DpoConfig, OptimizerConfig, ReferenceFreeConfig, TrainConfig
from steps.training.objectives import NormalisedBatch, sft_objective
from steps.training.recipes import run_reference_free, run_sft

COEFFICIENT = 0.03
GROUPS = [
    replace(pair, responses=pair.responses[:1], weight=0.5 + n)
    for n, pair in enumerate(pairs())
    if pair.prompt_ids
]


@pytest.mark.parametrize("engine", ["packed", "alone", "functional"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_loss_and_gradients_are_those_of_autograd(tmp_path: Path, family: str, engine: str) -> None:
    folder = model_folder(tmp_path, FAMILIES[family])
    slow, tokens = oracle.load(folder), sum(len(g.responses[0].ids) for g in GROUPS)
    expected, squares = torch.zeros((), dtype=torch.float64), 0.0
    with oracle.in_float64():
        for group in GROUPS:
            (response,), start = group.responses, len(group.prompt_ids) - 1
            ids = torch.tensor([[*group.prompt_ids, *response.ids]])
            logits = slow(input_ids=ids).logits[0, start:-1]
            log_z = logits.logsumexp(dim=1)
            logps = logits.gather(1, torch.tensor(response.ids)[:, None])[:, 0] - log_z
            expected = expected + group.weight * (COEFFICIENT * log_z.square() - logps).sum()
            squares += log_z.square().sum().item() / tokens
        wanted = oracle.gradients(slow, expected / tokens)

        model = load_model(folder, Dtype.float64).eval()
        (read_alone if engine == "alone" else use_packed_attention)(model)
        batch = sft_objective(GROUPS).batch_loss(range(len(GROUPS)), None)
        whole, every = NormalisedBatch.of(batch, COEFFICIENT, GROUPS), torch.arange(len(GROUPS))

        def loss(logps: Any, some: slice) -> Any:
            return whole(logps, every[some])

        pack = make_pack(GROUPS)
        if engine == "functional":
            weights = {name: p.detach() for name, p in model.named_parameters()}
            scored, gradient = gradient_of(model, weights, pack, loss, normalised=True)
            for name, parameter in model.named_parameters():
                parameter.grad = gradient[name]
        else:
            scored = forward_backward(model, pack, loss, normalised=True)
    assert scored.losses.sum().item() == pytest.approx(expected.item() / tokens, abs=1e-10)
    assert scored.metrics["z_loss"].sum().item() == pytest.approx(squares, abs=1e-10)
    assert_same_gradients(model, wanted)


@pytest.mark.parametrize("backend", [FunctionalTraining(), JaxTraining(devices=1)])
def test_a_run_over_pairs_goes_as_with_torch(tmp_path: Path, backend: Any) -> None:
    if isinstance(backend, JaxTraining):
        pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")
    policy, records, logs = model_folder(tmp_path / "policy"), pair_records(16), []
    for each in (None, backend):
        config = ReferenceFreeConfig(
            batch_size=8,
            epochs=10,
            dtype=Dtype.float64,
            optimizer=OptimizerConfig(learning_rate=1e-3),
            backend=each,
            z_loss_coef=COEFFICIENT,
        )
        place = Workplace(tmp_path / f"{each and each.name}", tmp_path / f"s-{each and each.name}")
        run_reference_free(policy, records, config, place)
        logs.append(log_of(place.output))
    assert len(logs[0]) == 20
    assert logs[0][-1]["z_loss"] < logs[0][0]["z_loss"]
    for theirs, ours in zip(*logs, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)


def test_a_run_that_was_stopped_ends_with_the_same_bytes_and_held_out_loss_is_plain(
    tmp_path: Path,
) -> None:
    policy, records = model_folder(tmp_path / "policy"), demonstration_records(6)
    config = TrainConfig(
        batch_size=3,
        epochs=2,
        eval_every_steps=1,
        z_loss_coef=COEFFICIENT,
        batch_sizes={1: 1, 3: 6},
    )
    place = Workplace(tmp_path / "model", tmp_path / "scratch", stopping=leaving_at(2))
    with pytest.raises(Left):
        run_sft(policy, records, config, place, records)
    run_sft(policy, records, config, replace(place, stopping=lambda: False), records)
    run_sft(policy, records, config, Workplace(tmp_path / "whole", tmp_path / "other"), records)
    assert folder_bytes(tmp_path / "model") == folder_bytes(tmp_path / "whole")
    assert [line["epoch"] for line in log_of(tmp_path / "whole")] == [3 / 6, 4 / 6, 5 / 6, 1, 2]
    line = log_of(tmp_path / "whole")[0]
    assert line["loss"] > line["eval_loss"] + COEFFICIENT * line["z_loss"] / 2


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TrainConfig(z_loss_coef=1e-4, backend=TorchaxTraining()), "functional or jax"),
        (lambda: TrainConfig(z_loss_coef=-1.0), "must not be negative"),
        (lambda: DpoConfig(z_loss_coef=1e-4, loss=Tdpo()), "needs z_loss_coef=0"),
    ],
)
def test_what_has_no_normalisers_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
