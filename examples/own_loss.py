"""A loss of your own beside one that ships, on the same pairs.

    python examples/own_loss.py

You learn that a loss is settings and a pure function of log-probabilities. This one needs no
reference, so none is computed: see the plan. One that compares with a reference, and its name on
the command line, are in ``experiments/template/own_loss.py``.
"""

from dataclasses import dataclass
from typing import ClassVar

from pipeline import run
from steps.evaluate import evaluate
from steps.losses.base import PairLogps, PairLosses, ReferenceFreeLoss
from steps.losses.simpo import Simpo
from steps.train_on_pairs import train_on_pairs
from steps.training.config import OptimizerConfig, PreferenceConfig


@dataclass(frozen=True)
class MeanHinge(ReferenceFreeLoss):
    """max(0, margin − log π(w)/|w| + log π(l)/|l|): pairs that are far apart teach nothing.

    Args:
        margin: how much likelier, in nats a token, the chosen response is to be.
    """

    name: ClassVar[str] = "mean_hinge"

    margin: float = 1.0

    def per_pair(self, logps: PairLogps) -> PairLosses:
        """The loss and both rewards of each pair: nothing is reduced."""
        chosen = logps.chosen / logps.chosen_tokens
        rejected = logps.rejected / logps.rejected_tokens
        return PairLosses((self.margin - chosen + rejected).clamp(min=0), chosen, rejected)


if __name__ == "__main__":
    # Imported here: above, what these modules run would be part of the loss's code.
    from dpo_on_my_rows import before, tokens
    from sums import model

    results = {"before": before}
    for loss in (MeanHinge(), Simpo(beta=2.0)):
        config = PreferenceConfig(
            loss=loss, epochs=4, optimizer=OptimizerConfig(learning_rate=3e-4)
        )
        trained = train_on_pairs(tokens["train"], policy=model, config=config)
        results[loss.name] = evaluate(tokens["test"], trained, baseline=before, loss=loss)
    run(results)
