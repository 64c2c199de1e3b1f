"""The interface of methods: settings, and the objective of an iteration's experience.

A method does not depend on a trainer or a sampler. It declares which logps it needs, and the loop
computes only these. Functions import torch in their bodies, so that experiments are composed fast.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.shared.checks import ClassName

if TYPE_CHECKING:
    from steps.losses.distillation.distillation_loss import DistillationLoss
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


@dataclass(frozen=True)
class Method:
    """How a policy learns from its own completions; `name` is the method's name in a config.

    least_completions: the least number of completions of a prompt.
    weighs_by_policy: whether the loss uses the trainer's probabilities of tokens. Then the trainer
        scores all completions before the first update, and they must be sampled from the same
        distribution (at temperature 1).
    needs_rewards: whether a completion without a reward teaches nothing.
    needs_teacher: whether the method needs a teacher's distribution.
    """

    name: ClassVar[str] = ClassName()  # type: ignore[assignment]
    least_completions: ClassVar[int] = 2
    weighs_by_policy: ClassVar[bool] = False
    needs_rewards: ClassVar[bool] = True
    needs_teacher: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """Whether the method needs the logps of a frozen reference."""
        return False

    @property
    def divergence(self) -> "DistillationLoss | None":
        """What compares whole distributions with the teacher's, if the method does so."""
        return None

    @property
    def kept(self) -> int:
        """How many of the teacher's likeliest tokens the method reads."""
        return 0

    @property
    def of_data(self) -> float:
        """In which share of the iterations answers of data take the place of the policy's own."""
        return 0.0

    @property
    def uses_rewards(self) -> bool:
        """Whether rewards change what the method learns."""
        return True

    @property
    def needs_scores_first(self) -> bool:
        """Whether `objective` needs the logps of the trainer, which otherwise only a second update
        of the same completions needs."""
        return False

    def objective(self, experience: "Experience") -> "Objective | None":
        """The examples of an iteration, and the loss of any batch of them; None if there is nothing
        to learn."""
        raise NotImplementedError
