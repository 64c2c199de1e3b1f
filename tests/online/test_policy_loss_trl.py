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

from steps.online.methods.advantages import advantages
from steps.online.methods.policy_gradient import Advantage, Kl, Over, PolicyGradient, Ratio


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

TRL: dict[str, tuple[float, list[float]]] = {
    "grpo": (
        -0.3948576393299983,
        [
            0.021688800392856398,
            0.019691887570059116,
            0.0,
            0.0,
            0.0032836069662425986,
            0.002654676874365595,
            0.002878503676691886,
            0.0,
            0.0,
            0.011895569987729159,
            -0.03549078190072436,
            0.0,
            0.0,
            -0.05526823111325044,
            -0.16814949932053558,
            0.0,
            -0.016789325059856933,
            0.0,
            0.0,
            -0.015274757322015062,
            -0.019080810843283724,
        ],
    ),
    "grpo with KL": (
        -0.38625781866388587,
        [
            0.022583571816413284,
            0.017969030510903893,
            -0.0015592471528866102,
            -0.0056356975315577885,
            0.0040327341226171,
            0.0024588612061916663,
            0.003107420107245935,
            -0.000905767279902829,
            -0.001044145607122687,
            0.014041293527690894,
            -0.03612312113690431,
            9.461504954441169e-05,
            0.0009810903150985616,
            -0.05504089427740064,
            -0.170082917557669,
            0.0006301627388305205,
            -0.01598732245961247,
            0.00012742420003551604,
            -0.00027205112924505817,
            -0.016089560037868798,
            -0.019452498214707785,
        ],
    ),
    "grpo with unbiased KL": (
        -0.3867879525233096,
        [
            0.0231578046521454,
            0.01820615101207152,
            -0.0007472747226187556,
            -0.0012465942891651694,
            0.004468917201336948,
            0.002495545616575295,
            0.0031156936841076873,
            -0.0005197378896650762,
            -0.000677042009788148,
            0.016689983328716577,
            -0.03591596749338819,
            0.00013074034907155488,
            0.002268793043386579,
            -0.05496635443608632,
            -0.17001634981505218,
            0.001323181874053981,
            -0.015197394941237353,
            0.00019541581925230792,
            -0.0003504728286412644,
            -0.015897408915972917,
            -0.019488872188825206,
        ],
    ),
    "dr_grpo": (
        -0.17138437108006896,
        [
            0.00813330014732115,
            0.0073844578387721686,
            0.0,
            0.0,
            0.002052254353901624,
            0.001659173046478497,
            0.0017990647979324286,
            0.0,
            0.0,
            0.0029738924969322897,
            -0.01774539095036218,
            0.0,
            0.0,
            -0.02763411555662522,
            -0.021018687415066947,
            0.0,
            -0.0125919937948927,
            0.0,
            0.0,
            -0.011456067991511297,
            -0.014310608132462793,
        ],
    ),
    "dapo": (
        -0.3917357053258719,
        [
            0.018590400336734057,
            0.016878760774336386,
            0.0,
            0.0,
            0.004690867094632283,
            0.003792395534807993,
            0.004112148109559836,
            0.0,
            0.0,
            0.006797468564416661,
            -0.040560893600827846,
            0.0,
            0.0,
            -0.06316369270085764,
            -0.04804271409158159,
            0.0,
            -0.028781700102611885,
            0.0,
            0.0,
            -0.026185298266311535,
            -0.032709961445629245,
        ],
    ),
    "dapo from a sampler": (
        -0.28856134689893737,
        [
            0.014671201634005026,
            0.02778581875286854,
            0.0,
            0.0,
            0.0034866728443923327,
            0.0041439243949123435,
            0.010781173492950916,
            0.0,
            0.0,
            0.006168485671813271,
            -0.02789468040318468,
            0.0,
            0.0,
            -0.1002710973577869,
            -0.04262044958232144,
            0.0,
            -0.01803975540633359,
            0.0,
            0.0,
            -0.015960070298796515,
            -0.02650177030080052,
        ],
    ),
    "cispo": (
        0.52696797779424,
        [
            0.018547221386577217,
            0.016878760774336386,
            0.009165848328533783,
            0.0024615874295180686,
            0.004690867094632283,
            0.0037923955348079935,
            0.004112148109559836,
            0.003274141843132731,
            0.003635406134780562,
            0.006242992470421077,
            -0.040560893600827846,
            -0.06545952589107826,
            -0.06545952589107826,
            -0.06316369270085766,
            -0.04804271409158159,
            -0.032898356142606944,
            -0.028781700102611885,
            -0.032898356142606944,
            -0.032898356142606944,
            -0.026185298266311535,
            -0.03270996144562924,
        ],
    ),
    "gspo": (
        -0.4163778804914841,
        [
            0.016591313840849605,
            0.016591313840849605,
            0.016591313840849605,
            0.0025073080314005464,
            0.0025073080314005464,
            0.0025073080314005464,
            0.0025073080314005464,
            0.0025073080314005464,
            0.008699376368032292,
            0.008699376368032292,
            -0.053312906872860055,
            -0.053312906872860055,
            -0.053312906872860055,
            -0.053312906872860055,
            -0.16814949932053558,
            -0.019114331349187403,
            -0.019114331349187403,
            -0.019114331349187403,
            -0.019114331349187403,
            -0.019114331349187403,
            -0.019114331349187403,
        ],
    ),
}


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
    assert own.tolist() == pytest.approx(gradient, rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_trl_still_gives_what_it_gave(name: str) -> None:
    pytest.importorskip("trl", minversion="1.16")
    loss, gradient = by_trl(CASES[name])
    assert loss == pytest.approx(TRL[name][0], rel=1e-10)
    assert gradient.tolist() == pytest.approx(TRL[name][1], rel=1e-10, abs=1e-15)


def test_group_std_has_trls_standard_deviation_and_epsilon() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.5]], dtype=torch.float64)
    found = advantages(rewards, torch.ones_like(rewards, dtype=torch.bool), Advantage.group_std)
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


if __name__ == "__main__":
    for name, case in CASES.items():
        loss, gradient = by_trl(case)
        print(f"    {name!r}: ({loss!r}, {gradient.tolist()!r}),")
