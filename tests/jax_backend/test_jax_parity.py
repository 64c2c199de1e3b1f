"""The JAX backend against torch's, in float64: logps, losses and gradients of every family."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from families import FAMILIES as ALL_FAMILIES
from families import _family, _with_vectors
from tiny_models import model_folder
from token_groups import pairs, unscored
from transformers import PreTrainedModel

from steps.jax_backend.architecture import FAMILIES as MODEL_TYPES
from steps.jax_backend.jax_scorer import JaxScorer
from steps.jax_backend.jax_trainer import JaxTrainer
from steps.jax_backend.param_tree import by_name
from steps.losses.base import ReferenceLoss
from steps.losses.dpo import Dpo
from steps.losses.kto import Kto
from steps.losses.simpo import Simpo
from steps.models.config import ActivationCheckpointing, Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps, forward_backward, sequence_logps, token_logps
from steps.scoring.packing import make_pack
from steps.training.config import OptimizerConfig
from steps.training.objectives import (
    Objective,
    preference_objective,
    sft_objective,
    unpaired_objective,
)

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
_PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


def _padded(model: PreTrainedModel) -> PreTrainedModel:
    """Token 7 fills; reading it gives its embedding no gradient."""
    model.config.pad_token_id = 7
    return model


FAMILIES = {
    **{name: ALL_FAMILIES[name] for name in ("mistral", "qwen2", "qwen3", "smollm3")},
    **{name: ALL_FAMILIES[name] for name in ("gemma2", "gemma3")},
    "gemma": _with_vectors(_family("gemma", head_dim=4)),
    "llama": _with_vectors(
        lambda: _padded(_family("llama", rope_parameters=_LLAMA3, tie_word_embeddings=True)())
    ),
    "llama-untied": _with_vectors(
        _family("llama", rope_parameters=_YARN, attention_bias=True, mlp_bias=True)
    ),
    "phi3": _with_vectors(_family("phi3", head_dim=8, rope_parameters=_PARTIAL)),
}
BUDGET = 256  # one round of all pairs: each further shape takes a second to compile


_ALIKE = ("mistral", "qwen2", "qwen3")
"""What these have, others have too."""


@pytest.fixture(
    params=[pytest.param(n, marks=[pytest.mark.attack] * (n in _ALIKE)) for n in FAMILIES]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return model_folder(tmp_path / request.param, FAMILIES[request.param])


def scorer_of(folder: Path, budget: int = BUDGET) -> JaxScorer:
    return JaxScorer(folder, Dtype.float64, budget, devices=1)


def oracle_model(folder: Path) -> Any:
    model = load_model(folder, Dtype.float64).eval()
    use_packed_attention(model)
    return model


def reference(groups: list[TokenGroup]) -> torch.Tensor:
    return 3 * torch.randn(len(groups), 2, dtype=torch.float64) - 20


def assert_same_step(
    trainer: JaxTrainer, model: Any, objective: Objective, backward: Any = forward_backward
) -> None:
    """Logps and losses to 1e-10, the gradient of each trained parameter to 1e-8 of its size."""
    groups = list(objective.groups)
    baseline = None
    if objective.baseline_groups is not None:
        nothing = torch.zeros(len(groups), dtype=torch.float64)
        baseline = TokenLogps(nothing, torch.ones(len(groups), 1, dtype=torch.int64))
    loss = objective.batch_loss(range(len(groups)), baseline)
    model.zero_grad(set_to_none=True)
    with oracle.in_float64():
        expected = backward(
            model, make_pack(groups), lambda logps, some: loss(logps, torch.arange(99)[some])
        )
    actual = trainer.forward_backward(trainer.prepare(groups), loss).result()
    torch.testing.assert_close(actual.logps, expected.logps, rtol=0, atol=1e-10)
    torch.testing.assert_close(actual.losses, expected.losses, rtol=0, atol=1e-10)
    gradients = dict(by_name(trainer.take_gradient()))
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert gradients.keys() == parameters.keys()
    largest = max(p.grad.norm() for p in parameters.values())
    assert largest > 1e-3
    for name, parameter in parameters.items():
        off = np.linalg.norm(gradients[name] - parameter.grad.numpy())
        assert off <= 1e-8 * max(parameter.grad.norm(), 1e-4 * largest), name


def test_logps_losses_and_gradients_equal_torch_s(folder: Path) -> None:
    """Whatever a layer computes again in its backward."""
    groups = pairs()
    ways = list(ActivationCheckpointing)
    recomputed = ways[list(FAMILIES).index(folder.name) % len(ways)]
    trainer = JaxTrainer(scorer_of(folder), OptimizerConfig(), recomputed=recomputed)
    objective = preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference(groups))
    assert_same_step(trainer, oracle_model(folder), objective)
    trainer.close()


def objectives() -> dict[str, Objective]:
    """Of SFT, DPO with likelihood, SimPO and KTO, with gaps in what is scored."""
    import random

    groups = [unscored(pair, random.Random(number)) for number, pair in enumerate(pairs())]
    singles = [
        TokenGroup(g.row, f"{g.group_id}{n}", g.prompt_ids, g.responses[:1], label=n % 3 > 0)
        for n, g in enumerate(groups)
    ]
    alone = reference(singles)[:, 0]
    losses = {"dpo": Dpo(beta=0.5, nll_weight=0.3), "simpo": Simpo()}
    return {
        "sft": sft_objective(singles),
        "kto": unpaired_objective(singles, Kto(), alone, singles, alone),
        **{
            name: preference_objective(
                groups, loss, reference(groups) if isinstance(loss, ReferenceLoss) else None
            )
            for name, loss in losses.items()
        },
    }


def test_every_kind_of_loss_has_torch_s_gradient(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, FAMILIES["qwen3"])
    trainer = JaxTrainer(scorer_of(folder), OptimizerConfig())
    model = oracle_model(folder)
    for objective in objectives().values():
        assert_same_step(trainer, model, objective)
    trainer.close()


@pytest.mark.parametrize(("budget", "longest"), [(32, 0), (700, 0), (700, 400)])
def test_a_batch_may_be_cut_in_any_way(tmp_path: Path, budget: int, longest: int) -> None:
    """Tokens that see far meet all keys, a few queries at a time; others those of two blocks."""
    folder = model_folder(tmp_path, FAMILIES["gemma3"])
    groups = pairs() * (4 if budget == 700 else 1)
    if longest:
        groups += [TokenGroup("long", "long", (5,) * longest, groups[0].responses)]
    scorer = scorer_of(folder, budget)
    actual = scorer.logps(scorer.prepare(groups)).result()
    with oracle.in_float64():
        expected = token_logps(oracle_model(folder), make_pack(groups))
    torch.testing.assert_close(torch.cat(actual.tokens), expected, rtol=0, atol=1e-10)
    sums = sequence_logps(expected, make_pack(groups))
    torch.testing.assert_close(actual.sequences, sums, rtol=0, atol=1e-10)
    scorer.close()


def test_a_large_vocabulary_and_a_long_pack_are_computed_in_parts(
    tmp_path: Path, monkeypatch: Any
) -> None:
    from steps.jax_backend import decoder
    from steps.jax_backend.attending import query_blocks

    monkeypatch.setattr(decoder, "_LOGITS_BYTES", 32 * 64 * 4)
    monkeypatch.setattr(query_blocks, "_SHORT", 128)
    monkeypatch.setattr(query_blocks, "_QUERY_BLOCK", 64)
    folder = model_folder(tmp_path, FAMILIES["gemma2"])
    trainer = JaxTrainer(scorer_of(folder, 256), OptimizerConfig())
    groups = pairs()
    objective = preference_objective(groups, Simpo())
    assert_same_step(trainer, oracle_model(folder), objective)
    trainer.close()


def test_a_missing_weight_and_an_unknown_setting_are_refused_by_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path / "a", FAMILIES["llama"])
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        scorer_of(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(ValueError, match="lacks the activation 'relu' of this llama model"):
        scorer_of(folder)


def test_every_family_is_tested() -> None:
    tested = {build().config.model_type for build in FAMILIES.values()}
    assert tested == set(MODEL_TYPES)
