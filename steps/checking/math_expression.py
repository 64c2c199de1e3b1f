"""Equality of mathematical expressions, by `math-verify` (the extra ``math``)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict


@dataclass(frozen=True)
class MathExpression(Checker):
    r"""Right if the expression that `math-verify` finds in the text equals the row's answer:
    `1/2`, `0.5` and `\frac{1}{2}` are one number.

    If `math-verify` cannot read the row's answer, there is no verdict; if it finds no expression in
    the text, the text is wrong. Its own time limits are off: they use a signal, which works only in
    main threads and silently gives "wrong" elsewhere. The judging process has a time limit instead.
    """

    name: ClassVar[str] = "math_expression"
    needs_packages: ClassVar[tuple[str, ...]] = ("math_verify",)

    def check(self, answered: Answered) -> Judgement:
        from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

        no_limit: Any = None  # the parameter is typed as int
        if answered.answer is None:
            return no_verdict("the row has no answer")
        gold = parse(answered.answer, parsing_timeout=no_limit, raise_on_error=True)
        if not gold:
            return no_verdict(f"the row's answer {answered.answer!r} is no expression")
        found = parse(answered.text, parsing_timeout=no_limit)
        if not found:
            return judged(False, "no expression")
        return judged(bool(verify(gold, found, timeout_seconds=no_limit, raise_on_error=True)))
