"""The interface of methods: settings, and the objective of an iteration's experience.

A method does not depend on a trainer or a sampler. It declares which logps it needs, and the loop
computes only these. Functions import torch in their bodies, so that experiments are composed fast.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


@dataclass(frozen=True)
class Method:
    """How a policy learns from its own completions; `name` is the method's name in a config.

    least_completions: the least number of completions of a prompt.
    weighs_by_policy: whether the loss uses the trainer's probabilities of tokens. Then the trainer
        scores all completions before the first update, and they must be sampled from the same
        distribution (at temperature 1).
    """

    name: ClassVar[str]
    least_completions: ClassVar[int] = 2
    weighs_by_policy: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """Whether the method needs the logps of a frozen reference."""
        return False

    @property
    def needs_scores_first(self) -> bool:
        """Whether `objective` needs the logps of the trainer, which otherwise only a second update
        of the same completions needs."""
        return False

    def objective(self, experience: "Experience") -> "Objective | None":
        """The examples of an iteration, and the loss of any batch of them; None if there is nothing
        to learn."""
        raise NotImplementedError
