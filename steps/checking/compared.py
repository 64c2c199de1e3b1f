"""The interface of judges of pairs: which of two completions of a prompt is better."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.checking.verdicts import Judgement
from steps.shared.checks import ClassName


@dataclass(frozen=True)
class Compared:
    """The input of a judge of pairs.

    first, second: two completions of the prompt, without special tokens, in the order in which they
        are shown.
    prompt: the conversation before them; messages with `role` and `content`.
    """

    first: str
    second: str
    prompt: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class PairJudge:
    """A rule that says which of two completions is better: frozen settings and a function.

    As a :class:`steps.checking.verdicts.Checker`, it is defined at the top of a module, and the
    verdicts of one that `is_costly` are kept.
    """

    name: ClassVar[str] = ClassName()  # type: ignore[assignment]
    is_costly: ClassVar[bool] = False

    def check(self, compared: Compared) -> Judgement:
        """Right if the first completion is better, wrong if the second is. Both orders are asked,
        and a judge that contradicts itself makes a tie. Runs where checkers run (``judges``)."""
        raise NotImplementedError
