"""Equality of mathematical expressions, by `math-verify` (the extra ``math``)."""

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from steps.checking.boxed import boxed_answer
from steps.checking.verdicts import (
    RULE,
    Answered,
    Checker,
    Judgement,
    is_rule,
    judged,
    no_verdict,
    plain_numerals,
)


@dataclass(frozen=True)
class MathExpression(Checker):
    r"""Right if the expression that `math-verify` finds in the text equals the row's answer:
    `1/2`, `0.5` and `\frac{1}{2}` are one number.

    A text or an answer that is one expression and no more is read in whole, with or without dollar
    signs: `3\pi` is not 3. If `math-verify` cannot read the row's answer as a whole, there is no
    verdict; if it finds no expression in the text, the text is wrong. Of several boxes, all are the
    answer, or the last. Units are ignored: `5 m` equals `5 km`, and `5 L` with a space equals 5,
    while `5L` is 5 times L. Its own time limits are off: they use a signal, which works only in
    main threads and silently gives "wrong" elsewhere. The judging process has a time limit instead.
    """

    name: ClassVar[str] = "math_expression"
    needs_packages: ClassVar[tuple[str, ...]] = ("math_verify",)

    def check(self, answered: Answered) -> Judgement:
        from math_verify import verify  # pyright: ignore[reportMissingImports]

        no_limit: Any = None  # the parameter is typed as int
        if answered.answer is None:
            return no_verdict("the row has no answer")
        if is_rule(answered.answer):
            return no_verdict(RULE)
        written, text = _readable(answered.answer), _readable(answered.text)
        if "%" in written and "%" in text:
            written, text = _PERCENT.sub("", written), _PERCENT.sub("", text)
        if _IN_PARTS.fullmatch(written):
            return no_verdict(f"math-verify reads a part of the row's answer {answered.answer!r}")
        gold = _expressions(written, raise_on_error=True)
        if not gold:
            return no_verdict(f"the row's answer {answered.answer!r} is no expression")
        box = boxed_answer(text, anywhere=True)
        if written.strip() in (text.strip(), box):
            return judged(True)
        texts = [text] if box is None else [text, rf"\boxed{{{box.removesuffix('.')}}}"]
        found = [expressions for t in texts if (expressions := _expressions(t))]
        if not found:
            return judged(False, "no expression")
        exactly = {"float_rounding": _decimals(gold[0]), "raise_on_error": True}
        return judged(any(verify(gold, f, timeout_seconds=no_limit, **exactly) for f in found))


def _expressions(text: str, **options: Any) -> list[Any]:
    """The expressions that `math-verify` finds in the text. It looks for LaTeX only where a text is
    marked as such; of other texts it takes the last number, so what is LaTeX in whole is marked."""
    from math_verify import parse  # pyright: ignore[reportMissingImports]

    options["parsing_timeout"] = None
    if _is_one_expression(text):
        whole = parse(f"${text.strip()}$", **options)
        if any(not isinstance(expression, str) for expression in whole):
            return whole
    return parse(text, **options)


def _is_one_expression(text: str) -> bool:
    """Whether the text is an expression in LaTeX without a mark of that, and has no words. Letters
    alone are none: `A` may be a choice."""
    if _MARK.search(text):
        return False
    text = _WORDS_IN_LATEX.sub("", text)
    return bool(_OPERATOR.search(text)) and not _WORD.search(_COMMAND.sub(" ", text))


_MARK = re.compile(r"\$|\\[(\[]|\\(?:boxed|fbox)\b|\*\*|\n|[A-Za-z]\s*:")
_WORDS_IN_LATEX = re.compile(r"\\(?:text\w*|mbox|mathrm|begin|end)\s*\{[^{}]*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_OPERATOR = re.compile(r"[\d^+*/=<>|]|\\[A-Za-z]")
_FUNCTIONS = "and|or|sqrt|log|ln|exp|sin|cos|tan|pi"
_WORD = re.compile(
    rf"(?<![^\W\d_])(?!(?:{_FUNCTIONS})\b)(?:[^\W\d_]{{3}}|(?<=\d )[^\W\d_]{{2}}|"
    r"(?<!\S)[^\W\d_]{2}(?!\S))"
)
"""Three letters, or two that stand alone or are a unit, as in `5 cm^2`; but no function's name."""
_IN_PARTS = re.compile(
    r"""\s*\$?\d+(?:(?::\d+)+|(?:-\d+){2,}|(?:\.\d+){2,}|'\s*\d+")\$?(?:\s*[ap]m)?\s*"""
    r"|\s*(?:\d+\s*[A-Za-z]+,?\s+(?:and\s+)?)+\d+\s*[A-Za-z]{3,}\s*"
    r"|[^\d]*\\\{\s*(?:\([^()]*\)|[A-Za-z][^,:|]*?)\s*(?::|\||\\mid\b|\\colon\b).*"
    r"|.*,.*\\in\b.*|.*\d\)?\s*\(?mod\b.*"
)
"""Times, ratios, dates, versions, sums of several units, sets by a condition and remainders, of
which `math-verify` takes one number."""
_THOUSANDS = re.compile(
    r"(?<=\d)(?:\\[,!: ]|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"
    r"|(?:^|(?<=[{$=]))\s*-?[1-9]\d{0,2}(?: \d{3})+(?=\s*(?:$|[}$]))"
    r"|(?<![\w.,/:^+*-])[1-9]\d{0,2}(?: \d{3})*? 0\d\d(?: \d{3})*(?![\w/:^*+-]|[., ]\d)"
)
"""Gaps in numbers. Within other text `3 200` may be two numbers, and `3 000` is one."""
_PERCENT = re.compile(r"(?<=\d)\s*%")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.]\d|\w)")
_POWER_OF_TEN = re.compile(
    r"(?<![\w.,/:^÷])(?<![/^÷] )(?<!\\div )(\d+(?:\.\d+)?)~(?:\\times|\\cdot|[×·])~10\^"
    r"(?:\{([+-]?\d{1,3})\}|(?=\d(?!\.?\d))(\d))(?!\s*[!^])".replace("~", r"(?:\s|\\[,;:! ])*")
)
"""A decimal times a power of ten. `math-verify` rounds such a product, so it would not be equal to
the number that it is."""
_REPEATING = re.compile(r"(?<!\d)(\d*)\.(\d*)\\overline\{(\d+)\}")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|\w))")
_ONE_CHARACTER = re.compile("(\\d?)([¼-¾⅐-⅞])")
_UNITS = "mm|cm|km|m|ft|mi|mg|kg|g|mol|min|hr|h|s|[ACFJKLNTVW]"
_QUANTITY = re.compile(
    rf"(?:^|(?<=\\boxed\{{)|(?<=\\fbox\{{))(\s*-?\d+(?:[.,]\d+)*) +"
    rf"(?:[ACFJKLNTVW]|(?:{_UNITS})/(?:{_UNITS})(?:\^\d|\^\{{\d\}})?)(?=\s*(?:$|\}}))"
)
"""A number with a unit that `math-verify` takes for a variable, as in `10 L` and `10 m/s^2`."""
_MIXED = re.compile(r"(?<![\d.,/^])(\d{1,9}) (\d{1,9})/(0*[1-9]\d{0,8})(?![\d/])")


def _readable(text: str) -> str:
    """The text with numbers in forms that `math-verify` does not misread."""
    text = _ONE_CHARACTER.sub(_as_fraction, text)
    text = _SUPERSCRIPT.sub(lambda f: f"^{{{unicodedata.normalize('NFKC', f[0])}}}", text)
    text = _ROOT.sub(lambda f: rf"\sqrt{{{f[1] or f[2]}}}", text)
    text = _REPEATING.sub(_as_ratio, text)
    text = _THOUSANDS.sub(_without_gaps, plain_numerals(text)).replace(r"\%", "%")
    text = text.replace(r"\varnothing", r"\emptyset")
    text = _QUANTITY.sub(r"\1", text)
    text = _POWER_OF_TEN.sub(_written_out, _SCIENTIFIC.sub(_written_out, text))
    return _MIXED.sub(lambda f: str(int(f[1]) + Fraction(int(f[2]), int(f[3]))), text)


def _without_gaps(found: re.Match[str]) -> str:
    """`1 000` as `1000`; of gaps that are written in LaTeX, each is found alone."""
    return found[0].replace(" ", "") if found[0][-1].isdigit() else ""


def _written_out(found: re.Match[str]) -> str:
    """`1.5e3` as `1500`."""
    power = next(filter(None, found.groups()[1:]))
    return format(Decimal(f"{found[1]}e{power}"), "f")


def _as_fraction(found: re.Match[str]) -> str:
    """`½` as `(1/2)`, and `1½` as `1 1/2`."""
    fraction = unicodedata.normalize("NFKC", found[2]).replace("⁄", "/")
    return f"{found[1]} {fraction}" if found[1] else f"({fraction})"


def _as_ratio(found: re.Match[str]) -> str:
    r"""`0.1\overline{6}` as `(1/6)`."""
    whole, before, again = found.groups()
    shift = 10 ** len(before)
    repeated = Fraction(int(again), shift * (10 ** len(again) - 1))
    return f"({Fraction(int(f'{whole}{before}' or 0), shift) + repeated})"


def _decimals(gold: Any) -> int:
    """To how many decimals numbers are compared: six, and more for an answer near 0."""
    try:
        size = Decimal(str(gold.evalf(15)))  # a float has no 1e-400
    except (AttributeError, ArithmeticError):
        return 6
    return 6 - min(0, size.adjusted()) if size.is_finite() else 6
