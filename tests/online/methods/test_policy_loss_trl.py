"""The policy-gradient losses beside TRL's own, in float64: losses and gradients.

`golden/trl_policy_losses.json` holds what TRL 1.16.0 gave for the made-up completions (this file as
a program writes it anew); where TRL is installed it is asked again, with a model's outputs that are
made up, so that it is its arithmetic that is run.
"""

import importlib
import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_up import made_up
from places import GOLDEN
from test_policy_loss import LONGEST, loss_and_gradient
from torch import Tensor

from steps.online.methods.policy_gradient import Kl, Over, PolicyGradient, Ratio


@dataclass(frozen=True)
class Case:
    """What TRL calls it, and what we do."""

    trl: dict[str, Any]
    ours: PolicyGradient
    weighted: bool = False


_CLIPS: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28}
_GRPO = PolicyGradient(over=Over.response, **_CLIPS)
_K3: dict[str, Any] = {"kl": Kl.k3, "kl_weight": 0.04}

CASES = {
    "grpo": Case({"loss_type": "grpo"}, _GRPO),
    "grpo with KL": Case({"loss_type": "grpo", "beta": 0.04}, replace(_GRPO, **_K3)),
    "grpo with unbiased KL": Case(
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": True},
        replace(_GRPO, kl=Kl.k3_weighted, kl_weight=0.04),
    ),
    "dr_grpo": Case({"loss_type": "dr_grpo"}, replace(_GRPO, over=Over.constant)),
    "dapo": Case({"loss_type": "dapo"}, replace(_GRPO, over=Over.token)),
    "dapo from a sampler": Case({"loss_type": "dapo"}, replace(_GRPO, over=Over.token), True),
    "cispo": Case(  # whose epsilon_high is the bound itself
        {"loss_type": "cispo", "epsilon_high": 1.28},
        replace(_GRPO, over=Over.token, ratio=Ratio.detached, clip_low=None),
    ),
    "gspo": Case(
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        replace(_GRPO, ratio=Ratio.sequence),
    ),
}

RECORD = GOLDEN / "trl_policy_losses.json"
TRL: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
"""Of each case the loss, and its gradient for each token's logp."""


def padded(values: Tensor, lengths: Tensor) -> Tensor:
    """Tokens [S] as TRL has them, [responses, longest]."""
    return torch.nn.utils.rnn.pad_sequence(list(values.split(lengths.flatten().tolist())), True)


def by_trl(case: Case) -> tuple[float, Tensor]:
    """The loss, and its gradient for each token's logp, [S]."""
    trainer_type: Any = importlib.import_module("trl").GRPOTrainer

    data = made_up()
    mask = padded(torch.ones_like(data.old), data.lengths).bool()
    leaf = data.policy.clone().requires_grad_()
    logps = padded(leaf, data.lengths)
    settings: dict[str, Any] = {
        "importance_sampling_level": "token",
        "beta": 0.0,
        "use_bias_correction_kl": False,
        "epsilon_high": 0.28,
    } | case.trl
    args = SimpleNamespace(
        delta=None,
        use_bias_correction_kl=settings["use_bias_correction_kl"],
        steps_per_generation=1,
        report_to=[],
    )
    trainer: Any = SimpleNamespace(
        **{n: settings[n] for n in ("loss_type", "importance_sampling_level", "beta")},
        epsilon_low=0.2,
        epsilon_high=settings["epsilon_high"],
        args=args,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=case.weighted,
        vllm_importance_sampling_correction=case.weighted,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        _entropy_bonus_enabled=False,
        _metrics={"train": _Lists()},
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros_like(logps), None),
    )
    nothing = torch.zeros(mask.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": nothing[:, :1],
        "prompt_mask": nothing[:, :1] + 1,
        "completion_ids": nothing,
        "completion_mask": mask.double(),
        "advantages": data.advantages.flatten(),
        "old_per_token_logps": padded(data.old, data.lengths),
        "ref_per_token_logps": padded(data.reference, data.lengths),
        "importance_sampling_ratio": padded((data.old - data.sampler).exp(), data.lengths),
        "num_items_in_batch": mask.sum(),
    }
    loss = trainer_type._compute_loss(trainer, None, inputs)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad


class _Lists(dict[str, list[float]]):
    def __missing__(self, name: str) -> list[float]:
        return self.setdefault(name, [])


def assert_as_recorded(name: str, loss: float, gradient: Tensor) -> None:
    assert loss == pytest.approx(TRL[name]["loss"], rel=1e-10)
    assert gradient.tolist() == pytest.approx(TRL[name]["gradient"], rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_that_trl_gave(name: str) -> None:
    case = CASES[name]
    loss, gradient, _ = loss_and_gradient(case.ours, made_up(), case.weighted)
    assert_as_recorded(name, loss, gradient)


@pytest.mark.parametrize("name", CASES)
def test_trl_still_gives_what_it_gave(name: str) -> None:
    pytest.importorskip("trl", minversion="1.16")
    assert_as_recorded(name, *by_trl(CASES[name]))


if __name__ == "__main__":
    found = {name: by_trl(case) for name, case in CASES.items()}
    record = {name: {"loss": loss, "gradient": g.tolist()} for name, (loss, g) in found.items()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
