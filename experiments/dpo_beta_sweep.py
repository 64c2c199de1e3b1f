"""How far may DPO move from its reference? One run of DPO for each of several betas.

Every variant is a complete ``dpo_ultrafeedback``. Steps that do not depend on beta (data, tokens,
SFT, reference logprobs, the evaluation before DPO) are the same in all variants and run only once.

python experiments/dpo_beta_sweep.py                       the embedded demo
python experiments/dpo_beta_sweep.py betas=[0.02,0.1,0.5]  betas of your own
python experiments/dpo_beta_sweep.py scale=smoke           does everything run?
"""

from dataclasses import dataclass, field

from experiments.dpo_ultrafeedback import CHOICES, dpo_ultrafeedback
from experiments.dpo_ultrafeedback import Config as OneBeta
from pipeline import Step
from pipeline.dag.grid import grid
from pipeline.experiment import main
from steps.report import report


@dataclass
class Config(OneBeta):
    """DPO at several betas.

    Args:
        betas: the values of ``dpo.loss.beta``, each a run of DPO.
    """

    betas: list[float] = field(default_factory=lambda: [0.05, 0.1, 0.5])

    def __post_init__(self) -> None:
        if not self.betas or len({*self.betas}) < len(self.betas):
            raise ValueError(f"betas must be different numbers, as in [0.05,0.1]; got {self.betas}")


def dpo_beta_sweep(cfg: Config) -> dict[str, Step]:
    """The evaluation before DPO, one evaluation after DPO for each beta, and a report of them."""
    results = {"before DPO": dpo_ultrafeedback(cfg)["before DPO"]}
    for name, variant in grid(cfg, {"dpo.loss.beta": cfg.betas}).items():
        results[name] = dpo_ultrafeedback(variant)["after DPO"]
    results["comparison"] = report(dict(results), title="DPO at several betas")
    return results


if __name__ == "__main__":
    main(dpo_beta_sweep, CHOICES)
