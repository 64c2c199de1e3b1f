"""Equality of mathematical expressions, by `math-verify` (the extra ``math``)."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from steps.checking.boxed import boxed_answer
from steps.checking.numerals import plain_numerals
from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict


@dataclass(frozen=True)
class MathExpression(Checker):
    r"""Right if the expression that `math-verify` finds in the text equals the row's answer:
    `1/2`, `0.5` and `\frac{1}{2}` are one number.

    If `math-verify` cannot read the row's answer as a whole, there is no verdict; if it finds no
    expression in the text, the text is wrong. Of several boxes, all are the answer, or the last.
    Units are ignored: `5 m` equals `5 km`. Its own time limits are off: they use a signal, which
    works only in main threads and silently gives "wrong" elsewhere. The judging process has a time
    limit instead.
    """

    name: ClassVar[str] = "math_expression"
    needs_packages: ClassVar[tuple[str, ...]] = ("math_verify",)

    def check(self, answered: Answered) -> Judgement:
        from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

        no_limit: Any = None  # the parameter is typed as int
        if answered.answer is None:
            return no_verdict("the row has no answer")
        written, text = _readable(answered.answer), _readable(answered.text)
        if "%" in written and "%" in text:
            written, text = _PERCENT.sub("", written), _PERCENT.sub("", text)
        if _IN_PARTS.fullmatch(written):
            return no_verdict(f"math-verify reads a part of the row's answer {answered.answer!r}")
        gold = parse(written, parsing_timeout=no_limit, raise_on_error=True)
        if not gold:
            return no_verdict(f"the row's answer {answered.answer!r} is no expression")
        box = boxed_answer(text, anywhere=True)
        texts = [text] if box is None else [text, rf"\boxed{{{box}}}"]
        found = [expressions for t in texts if (expressions := parse(t, parsing_timeout=no_limit))]
        if not found:
            return judged(False, "no expression")
        exactly = {"float_rounding": _decimals(gold[0]), "raise_on_error": True}
        return judged(any(verify(gold, f, timeout_seconds=no_limit, **exactly) for f in found))


_IN_PARTS = re.compile(r"\s*\$?\d+(?:(?::\d+)+|(?:-\d+){2,}|(?:\.\d+){2,})\$?\s*")
"""Times, ratios, dates and versions, of which `math-verify` takes the first number."""
_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,!: ]|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_PERCENT = re.compile(r"(?<=\d)\s*%")
_SCIENTIFIC = re.compile(r"(?<![\w.])\d+(?:\.\d+)?[eE][+-]?\d{1,2}(?![\w.]\d|\w)")
_MIXED = re.compile(r"(?<![\d.,/^])(\d{1,9}) (\d{1,9})/(0*[1-9]\d{0,8})(?![\d/])")


def _readable(text: str) -> str:
    """The text with numbers in forms that `math-verify` does not misread."""
    text = _THOUSANDS.sub("", plain_numerals(text)).replace(r"\%", "%")
    text = _SCIENTIFIC.sub(lambda found: format(Decimal(found[0]), "f"), text)
    return _MIXED.sub(lambda f: str(int(f[1]) + Fraction(int(f[2]), int(f[3]))), text)


def _decimals(gold: Any) -> int:
    """To how many decimals numbers are compared: six, and more for an answer near 0."""
    try:
        size = abs(float(gold))
    except (TypeError, ValueError, OverflowError):
        return 6
    return 6 - min(0, math.floor(math.log10(size))) if 0 < size < math.inf else 6
