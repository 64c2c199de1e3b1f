"""The policy-gradient losses beside TRL's own, in float64: losses and gradients.

`TRL` holds what TRL 1.16.0 gave for the made-up completions; where TRL is installed it is asked
again, with a model's outputs that are made up, so that it is its arithmetic that is run.
"""

import importlib
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_up import made_up
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

TRL: dict[str, tuple[float, str]] = {
    "grpo": (
        -0.3948576393299983,
        """
        0.02168880039286 0.01969188757006 0 0 0.003283606966243 0.002654676874366
        0.002878503676692 0 0 0.01189556998773 -0.03549078190072 0 0 -0.05526823111325
        -0.1681494993205 0 -0.01678932505986 0 0 -0.01527475732202 -0.01908081084328
        """,
    ),
    "grpo with KL": (
        -0.38625781866388587,
        """
        0.02258357181641 0.0179690305109 -0.001559247152887 -0.005635697531558 0.004032734122617
        0.002458861206192 0.003107420107246 -0.0009057672799028 -0.001044145607123
        0.01404129352769 -0.0361231211369 9.461504954441e-05 0.0009810903150986 -0.0550408942774
        -0.1700829175577 0.0006301627388305 -0.01598732245961 0.0001274242000355
        -0.0002720511292451 -0.01608956003787 -0.01945249821471
        """,
    ),
    "grpo with unbiased KL": (
        -0.3867879525233096,
        """
        0.02315780465215 0.01820615101207 -0.0007472747226188 -0.001246594289165
        0.004468917201337 0.002495545616575 0.003115693684108 -0.0005197378896651
        -0.0006770420097881 0.01668998332872 -0.03591596749339 0.0001307403490716
        0.002268793043387 -0.05496635443609 -0.1700163498151 0.001323181874054 -0.01519739494124
        0.0001954158192523 -0.0003504728286413 -0.01589740891597 -0.01948887218883
        """,
    ),
    "dr_grpo": (
        -0.17138437108006896,
        """
        0.008133300147321 0.007384457838772 0 0 0.002052254353902 0.001659173046478
        0.001799064797932 0 0 0.002973892496932 -0.01774539095036 0 0 -0.02763411555663
        -0.02101868741507 0 -0.01259199379489 0 0 -0.01145606799151 -0.01431060813246
        """,
    ),
    "dapo": (
        -0.3917357053258719,
        """
        0.01859040033673 0.01687876077434 0 0 0.004690867094632 0.003792395534808
        0.00411214810956 0 0 0.006797468564417 -0.04056089360083 0 0 -0.06316369270086
        -0.04804271409158 0 -0.02878170010261 0 0 -0.02618529826631 -0.03270996144563
        """,
    ),
    "dapo from a sampler": (
        -0.28856134689893737,
        """
        0.01467120163401 0.02778581875287 0 0 0.003486672844392 0.004143924394912
        0.01078117349295 0 0 0.006168485671813 -0.02789468040318 0 0 -0.1002710973578
        -0.04262044958232 0 -0.01803975540633 0 0 -0.0159600702988 -0.0265017703008
        """,
    ),
    "cispo": (
        0.52696797779424,
        """
        0.01854722138658 0.01687876077434 0.009165848328534 0.002461587429518 0.004690867094632
        0.003792395534808 0.00411214810956 0.003274141843133 0.003635406134781 0.006242992470421
        -0.04056089360083 -0.06545952589108 -0.06545952589108 -0.06316369270086
        -0.04804271409158 -0.03289835614261 -0.02878170010261 -0.03289835614261
        -0.03289835614261 -0.02618529826631 -0.03270996144563
        """,
    ),
    "gspo": (
        -0.4163778804914841,
        """
        0.01659131384085 0.01659131384085 0.01659131384085 0.002507308031401 0.002507308031401
        0.002507308031401 0.002507308031401 0.002507308031401 0.008699376368032
        0.008699376368032 -0.05331290687286 -0.05331290687286 -0.05331290687286
        -0.05331290687286 -0.1681494993205 -0.01911433134919 -0.01911433134919 -0.01911433134919
        -0.01911433134919 -0.01911433134919 -0.01911433134919
        """,
    ),
}
"""Of each case the loss, and its gradient for each token's logp."""


def numbers(text: str) -> list[float]:
    return list(map(float, text.split()))


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


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_that_trl_gave(name: str) -> None:
    case, (loss, gradient) = CASES[name], TRL[name]
    found, own, _ = loss_and_gradient(case.ours, made_up(), case.weighted)
    assert found == pytest.approx(loss, rel=1e-10)
    assert own.tolist() == pytest.approx(numbers(gradient), rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_trl_still_gives_what_it_gave(name: str) -> None:
    pytest.importorskip("trl", minversion="1.16")
    loss, gradient = by_trl(CASES[name])
    assert loss == pytest.approx(TRL[name][0], rel=1e-10)
    assert gradient.tolist() == pytest.approx(numbers(TRL[name][1]), rel=1e-10, abs=1e-15)


if __name__ == "__main__":
    for name, case in CASES.items():
        loss, gradient = by_trl(case)
        print(f"    {name!r}: ({loss!r}, {' '.join(map(repr, gradient.tolist()))!r}),")
