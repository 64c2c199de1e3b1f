"""What a method of online training is: settings, and what it makes of an iteration's experience.

A method knows no trainer and no sampler. Whether it looks at logps at all decides what the loop
computes for it: none needs a reference that it does not use. Torch is imported inside functions, so
that experiments are composed at once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


@dataclass(frozen=True)
class Method:
    """How a policy learns from its own completions; `name` is what a config calls it.

    least_completions: of one prompt, without which there is nothing to compare.
    weighs_by_policy: the loss weighs tokens by how likely the trainer finds them. Then the trainer
        scores all completions before the first update, and what it scores must be the distribution
        that they were drawn from.
    """

    name: ClassVar[str]
    least_completions: ClassVar[int] = 2
    weighs_by_policy: ClassVar[bool] = False

    @property
    def needs_reference(self) -> bool:
        """Whether completions are scored by a frozen reference too."""
        return False

    def objective(self, experience: "Experience") -> "Objective | None":
        """The examples of an iteration, and the loss of any batch of them; None if there is nothing
        to learn."""
        raise NotImplementedError
