"""A comparison of preference losses: one run for each, from the same data and the same model.

Every variant is a complete ``dpo_ultrafeedback``. Steps that do not depend on the loss (data,
tokens, SFT, the evaluation before, and the reference if a loss needs one) are the same in all
variants and run only once. Each loss has its default settings, and its evaluation uses the same
loss: compare accuracies and answers, not values of the losses.

python experiments/preference_losses.py                    dpo, ipo, simpo, orpo and cpo
python experiments/preference_losses.py losses=[dpo,hinge] others; see steps/losses
python experiments/preference_losses.py scale=smoke        does everything run?
"""

from dataclasses import dataclass, field, replace

from experiments.dpo_ultrafeedback import CHOICES, dpo_ultrafeedback
from experiments.dpo_ultrafeedback import Config as OneLoss
from pipeline import Step, TemperError
from pipeline.experiment import main
from steps.losses.registry import PAIR_LOSSES
from steps.report import report


@dataclass
class Config(OneLoss):
    """One run for each of several losses.

    Args:
        losses: the names of the losses, each with its default settings.
    """

    losses: list[str] = field(default_factory=lambda: ["dpo", "ipo", "simpo", "orpo", "cpo"])


def preference_losses(cfg: Config) -> dict[str, Step]:
    """The evaluation before preference training, one evaluation after it for each loss, and a
    report of them."""
    if unknown := [name for name in cfg.losses if name not in PAIR_LOSSES]:
        raise TemperError(
            f"losses: there is no loss {', '.join(unknown)}; there are {', '.join(PAIR_LOSSES)}"
        )
    results = {"before": dpo_ultrafeedback(cfg)["before DPO"]}
    for name in cfg.losses:
        variant = replace(cfg, dpo=replace(cfg.dpo, loss=PAIR_LOSSES[name]()))
        results[name] = dpo_ultrafeedback(variant)["after DPO"]
    results["comparison"] = report(dict(results), title="Preference losses")
    return results


if __name__ == "__main__":
    main(preference_losses, CHOICES)
