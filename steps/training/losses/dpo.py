"""Direct preference optimisation (Rafailov et al. 2023, https://arxiv.org/abs/2305.18290)."""

from torch import Tensor
from torch.nn import functional

from steps.training.config import DpoLoss


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    config: DpoLoss,
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, chosen rewards and rejected rewards of n pairs, each [n], from summed logps [n].

    A response's implicit reward is r = beta (log pi(y|x) - log pi_ref(y|x)): equation 5 without the
    term that depends on the prompt alone and cancels in a pair. The loss is equation 7,
    -log sigmoid(m) with m = r_chosen - r_rejected. With label smoothing e it is
    -(1 - e) log sigmoid(m) - e log sigmoid(-m), the conservative DPO of Mitchell's note
    (https://ericmitchell.ai/cdpo.pdf). The rewards are detached.
    """
    chosen_rewards = config.beta * (policy_chosen - reference_chosen)
    rejected_rewards = config.beta * (policy_rejected - reference_rejected)
    margins = chosen_rewards - rejected_rewards
    losses = -(1 - config.label_smoothing) * functional.logsigmoid(
        margins
    ) - config.label_smoothing * functional.logsigmoid(-margins)
    return losses, chosen_rewards.detach(), rejected_rewards.detach()


def dpo_metrics(
    chosen_logps: Tensor, rejected_logps: Tensor, chosen_rewards: Tensor, rejected_rewards: Tensor
) -> dict[str, Tensor]:
    """What is logged of each pair, under the names TRL uses; every value detached, [n].

    A pair counts as accurate when its chosen reward is strictly the greater one, so a policy that
    equals its reference has an accuracy of 0.
    """
    return {
        "rewards/chosen": chosen_rewards,
        "rewards/rejected": rejected_rewards,
        "rewards/margins": chosen_rewards - rejected_rewards,
        "rewards/accuracies": (chosen_rewards > rejected_rewards).to(chosen_rewards.dtype),
        "logps/chosen": chosen_logps.detach(),
        "logps/rejected": rejected_logps.detach(),
    }
