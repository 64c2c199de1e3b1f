"""Equality of mathematical expressions, by `math-verify` (the extra ``math``)."""

import re
import unicodedata
from collections.abc import Iterator, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from math import inf
from typing import Any, ClassVar

from steps.checking.boxed import boxed_answer, boxes_in
from steps.checking.verdicts import (
    Answered,
    Checker,
    Judgement,
    behind_thought,
    judged,
    no_verdict,
    plain_numerals,
    unreadable,
    why_no_answer,
)

_DIGITS, _LEAST = 1000, 6
"""The digits to which irrational numbers are compared, and the fewest of a rounded decimal."""
_LONGEST, _DEEPEST, _MOST_BITS = 1000, 15, 2**16
"""The largest expressions that are read: characters, brackets in brackets, bits of the numbers."""


@dataclass(frozen=True)
class MathExpression(Checker):
    r"""Right if the expression that a text gives as its answer equals the row's answer: `1/2`,
    `0.5` and `\frac{1}{2}` are one number.

    Of a text counts what follows the last `</think>`, in it the last `<answer>…</answer>`, in it
    the last box, or boxes in a row as a list. Without a box it is the first expression behind
    "answer is", or else the last one. A row's answer must be one expression, in whole.

    An answer that the text marks so is read as a whole, as far as its clause goes behind "answer
    is". Beside the expression it may have units: plurals, the units that `math-verify` knows, and
    words of the prompt's last message. There is no verdict on one with any other word, such as
    "thrice 5" or "5 lakh". Of the last expression without a mark, this holds of the next word
    behind it; before it, and before a box, only common words of arithmetic are known.

    `math-verify` reads expressions, as LaTeX. Rational numbers are compared exactly, others to 1000
    digits relative to their size. A decimal of six or more significant digits stands for what
    rounds to it. If one side has a percent sign, `28%` equals `28` and `0.28`. Units are ignored:
    `5 m` equals `5 km`, and `5 L` with a space equals 5, while `5L` is 5 times L. So is the letter
    of a choice before an expression, as in `(B) 8`.

    There is no verdict where a number of an expression changes nothing in what was read of it,
    where an expression is too large, and where a sign or operator stands directly beside the box,
    tag or `$…$`. Nor is there one on a tuple and a set, or an interval and an inequality.
    If the text has such an expression, it is no failure of the checker. Time limits of
    `math-verify` are off: they use a signal, which works only in main threads. The judging process
    has a time limit instead.
    """

    name: ClassVar[str] = "math_expression"
    needs_packages: ClassVar[tuple[str, ...]] = ("math_verify",)

    def fault_of(self, answer: str | None) -> str:
        if (fault := why_no_answer(answer)) or answer is None:
            return fault
        try:
            if not (gold := _whole(answer)):
                return f"the row's answer {answer[:100]!r} is no expression"
            for either, _ in _percentages(gold, gold if "%" in gold else ""):
                _read(either)
        except _Unread as unread:
            return f"of the row's answer {answer[:100]!r}, {unread}"
        return ""

    def check(self, answered: Answered) -> Judgement:
        if fault := self.fault_of(answered.answer):
            return no_verdict(fault)
        gold, unread = _whole(answered.answer or ""), ""
        question = str(answered.prompt[-1].get("content", "")) if answered.prompt else ""
        try:
            said, others = _answers_in(answered.text, set(_ASKED.findall(question.lower())))
        except _Unread as error:
            return unreadable(str(error))
        for run in filter(None, (*said, *others)):
            try:
                if _are_equal(gold, run):
                    return (
                        judged(True) if run in said else unreadable(f"{said[0]!r} may mean {run!r}")
                    )
            except _Unread as error:
                unread = unread or f"of {run[:100]!r}, {error}"
        if unread:
            return unreadable(unread)
        return judged(False, "" if any(said) else "no expression")


class _Unread(ValueError):
    """An expression was not read, or not as a whole."""


# --- where the answer is --------------------------------------------------------------------------


def _answers_in(text: str, asked: Set[str]) -> tuple[list[str], list[str]]:
    """The expressions that may be a text's answer, and those that it is if in prose a comma, as in
    "Of 2020, 5 are left", separates no items of a list, or "3!" is a factorial.

    Args:
        asked: the words of the question, which may be units.
    """
    text = _EMPTY.sub(" ", behind_thought(text))
    if tagged := list(_TAGGED.finditer(text)):
        _require_alone(text[: tagged[-1].start()], text[tagged[-1].end() :])
        text = tagged[-1][1]
    else:
        text = _ITEM.sub("", text)
    if (box := boxed_answer(text, anywhere=True)) is not None:
        places = boxes_in(text)
        behind = text[places[-1][1] :]
        _require_alone(text[: places[-1][0]], behind)
        word = _NEXT.match(behind.lstrip("$"))
        if word and word[1].islower() and not _is_unit(word[1], asked):
            raise _Unread(f"the word {word[1]!r} may change it")
        box += "%" if _PERCENT_WORD.match(f"5{behind}", 1) else ""
        last = _whole(box, asked)
        if all(_LISTS.fullmatch(text[a:b]) for (_, a), (b, _) in pairwise(places)):
            return [last, ", ".join(_whole(text[begin:end], asked) for begin, end in places)], []
        return [last], []
    text = _JOINED.sub(", ", _readable(_HTML.sub(" ", text)))
    behind = next((text[anchor.end() :] for anchor in reversed(list(_ANCHOR.finditer(text)))), "")
    runs = list(_runs(text, asked))
    if tagged or (len(runs) == 1 and _FIRST.match(text)):
        behind = behind or text
    said = list(_runs(behind, asked))[:1] or runs[-1:]
    clause = (_CLAUSE.match(behind) or [""])[0]
    if tagged or (said and _IS_EXPRESSION.search(clause)):
        word = _other_word(_COPULA.sub("", _MATH.sub(" 0 ", clause)), _PROSE, asked)
        if word or _IN_WORDS in clause:
            raise _Unread(f"the word {word!r} may change it" if word else "words are part of it")
    if _SPELLED.search(_DIGIT.split(behind)[0] if said and behind else _DIGIT.split(text)[-1]):
        raise _Unread("a number in words")
    listed = [item for run in said for item in _COMMA.split(run)[1:][-1:]]
    return said, [*listed, *(f"{run}!" for run in said if f"{run}!" in text)]


def _require_alone(before: str, behind: str) -> None:
    """Raise _Unread if what its line has beside a box or a tag may change what is in it."""
    before = _ITEM.sub("", before.rpartition("\n")[2]).replace("**", "")[-80:]
    behind = behind.partition("\n")[0].replace("**", "")[:80]
    if (
        _IN_WORDS in _readable(f"{before}5")[-3:] + _readable(f"5{behind}")[1:4]
        or _OPERATED.search(before)
        or _OPERATES.match(behind)
    ):
        raise _Unread("what stands beside the answer changes it")


def _other_word(text: str, words: re.Pattern[str], asked: Set[str]) -> str:
    """The first word of a text that is no unit behind an expression, or what stands behind it."""
    end, text = -1, _AND.sub(",", text)
    for word in words.finditer(text):
        behind = text[max(0, word.start() - 80) : word.start()].rstrip(" ,.*_-")
        is_behind = behind[-1:].isalnum() or behind.endswith((")", "}", "%", "]"))
        if not (is_behind and _is_unit(word[0].partition("^")[0], asked)):
            return word[0]
        end = word.end()
    return "" if end < 0 or not (more := _DIGIT.search(_EXPONENT.sub("", text[end:]))) else more[0]


def _is_unit(word: str, asked: Set[str]) -> bool:
    return word.lower() in asked or bool(_unit_names().fullmatch(word))


@cache
def _unit_names() -> re.Pattern[str]:
    """Plurals, units of `math-verify`, and words that begin the rest of a sentence."""
    from latex2sympy2_extended import (  # pyright: ignore[reportMissingImports]
        math_normalization,
    )

    names = "|".join(map(re.escape, math_normalization.units))
    return re.compile(rf"[a-z]{{3,}}(?<!s)(?<!ward)s|{_UNIT}|{_REST}|(?:{names})(?:s|es)?")


def _whole(text: str, asked: Set[str] = frozenset()) -> str:
    """The only expression of a text that is one, or of its box; empty if it has none."""
    box = boxed_answer(text, anywhere=True)
    text = _SPACE.sub(" ", _readable(text if box is None else box))
    runs = list(_runs(text, asked, is_math=True))
    if word := _other_word(text, _WORD, asked):
        raise _Unread(f"the word {word!r} may change it" if runs else "it is in words")
    if len(runs) > 1:
        raise _Unread(f"only a part can be read, such as {runs[-1]}")
    return runs[0] if runs else ""


def _runs(text: str, asked: Set[str], is_math: bool = False) -> Iterator[str]:
    """What a text has besides words: its expressions, in order.

    Args:
        is_math: whether it is mathematics, where a few letters may be a product.
    """
    end = 0
    for found in _MATH.finditer(text):
        before = text[end : found.start()]
        yield from _between_words(before, asked, is_math)
        inside, next_word = next(filter(None, found.groups())), _NEXT.match(text, found.end())
        is_part = (
            _OPERATED.search(before[-80:])
            or _OPERATES.match(text, found.end())
            or (next_word and not _is_unit(next_word[1], asked))
            or _other_word(inside, _WORD, asked)
        )
        for run in _between_words(inside, asked, is_math=True):
            yield f"{_IN_WORDS}{run}" if is_part else run
        end = found.end()
    yield from _between_words(text[end:], asked, is_math)


def _between_words(text: str, asked: Set[str], is_math: bool) -> Iterator[str]:
    text = _AND.sub(",", (_SPACE if is_math else _BLANKS).sub(" ", text.replace("$", " ")))
    begin, joined = 0, 0
    for word in (*(_WORD if is_math else _WORD_OR_END).finditer(text), None):
        piece = text[begin : word.start() if word else None]
        begin, name = (word.end(), word[0]) if word else (begin, "")
        run = piece.strip(_MARKS if is_math else f"{_MARKS}!?")
        run = _unpaired(run).strip(" ,;:.=")
        if run.startswith("- "):
            run = f"-{run[2:]}" if is_math else f"{_IN_WORDS}{run}"
        is_unit = not is_math and _GLUED.sub("", f"5{run}") == "5"
        if _IS_EXPRESSION.search(run) and not is_unit:
            run = _QUANTITY.sub(r"\1", run)
            run = run.replace(" ", "") if _GAPS.fullmatch(run) else run
            is_other = not is_math and _BESIDE.search(piece) and name[:1].isalpha()
            is_other = joined or (is_other and not _is_unit(name, asked))
            yield f"{_IN_WORDS}{run}" if is_other else run
            joined = 0 if is_math else 2 if run.endswith(_IN_WORDS) else 1
        elif joined == 1:
            joined = 0
        if _PARTS_NUMBERS.fullmatch(name):
            joined = 0


def _unpaired(run: str) -> str:
    """The run without brackets at its ends that are opened or closed outside."""
    run = run.rstrip(" ([{")
    opened = [sum(map(run.count, brackets)) for brackets in ("([{", ")]}")]
    excess = opened[1] - opened[0]
    while excess > 0 and run[-1:] and run[-1] in ")]}":
        run, excess = run[:-1].rstrip(" .,"), excess - 1
    while excess < 0 and run[:1] and run[0] in "([{":
        run, excess = run[1:].lstrip(), excess + 1
    return run


_EMPTY = re.compile(r"<answer>\s*(?:</answer>|$)|\\f?box(?:ed)?\s*\{\s*\}")
_ITEM = re.compile(r"^[ \t]*[-*•][ \t]+", re.MULTILINE)
_OPERATED = re.compile(
    r"(?:[-+/^×÷·√]|[\d)}$][ \t]*\*|\\(?:times|cdot|div|pm|mp|sqrt)(?:\[\d\])?)[ \t({$]*$"
    r"|[\d)][({$]*$|\\(?!text|math|bold|color|big|large)[A-Za-z]+\s*(?:\{[^{}]*\}\s*)?\{\s*$"
)
_OPERATES = re.compile(
    r"(?:[ \t$}]|\\[,;:! )\]])*(?:\^(?!\{?\\circ)|_(?=[\d{])|/|\\(?:times|cdot|div|pm|pi|sqrt"
    r"|d?frac|over|choose)\b|[-+*×÷·](?=[ \t$]*(?:[\d(]|\\[a-z]|[A-Za-z](?![A-Za-z]))))"
    r"|[A-Za-z](?![A-Za-z])|\d"
)
"""Signs and operators that belong to what stands behind them or before them."""
_DIGIT = re.compile(r"\d")
_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)(?:</answer>|$)", re.DOTALL)
_HTML = re.compile(r"</?[A-Za-z][\w-]*\s*/?>")
_LISTS = re.compile(r"(?:[\s$,;&]|\\\(|\\\)|\\?(?:and|or|text)\b|[{}])*")
_JOINED = re.compile(r"(?:\$|\\\))\s*(?:,|,?\s*(?:and|or)\b)\s*(?:\$|\\\()")
_COMMA = re.compile(r"\s*,\s+")
_ANCHOR = re.compile(
    r"(?i:\banswer\b)[^.\n$\d]{0,60}?(?:\b(?:is|are|be)\b(?!\s*:)|[:=])(?:\s*[*]{2})?|####"
)
_MATH = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\$(?![\s$])([^$\n]*?[^$\s])\$(?!\d)", re.DOTALL
)
_ASKED = re.compile(r"(?<!\d )(?<!\w)[^\W\d_]{2,}")
"""A word of a question that is more than the unit of a number in it."""
_FIRST = re.compile(r"[\s$*_(=-]*[\d\\]")
_CLAUSE = re.compile(
    r"\s*[^\n]*?(?=[.;!?:](?:[\s*_]|$)|\n|,\s+[A-Za-z]|\s\(|—|\s(?:because|since|as)\b|$)"
)
_COPULA = re.compile(r"^[^\d\\]*(?:\b(?:is|are|was|were|equals?)\b|[:=])")
"""What is read as a whole: the clause of an answer, and what may begin the clause."""
_PROSE = re.compile(r"(?<![\\\w])[^\W\d_]{2,}(?!\w)")
_NEXT = re.compile(r"[ *_]*([^\W\d_]{2,}|[kKMBGT](?![A-Za-z]))")
_BESIDE = re.compile(r"[^ *_,;:(-][ *_]*$")
_EXPONENT = re.compile(r"\^\{?-?\d+\}?")
_PARTS_NUMBERS = re.compile(r"(?!less$)(?:[^\W\d_]*s|are|were|be|so|but|then|[\W\d].*|)", re.DOTALL)
"""What parts the numbers before and behind it; one other word joins them, as in "3 through 7"."""
_REST = r"(?:is|are|was|were|because|since|as|so|of|in|for|on|from|with|per|each|and|left)"
_MARKS = " \n\t,;:.*'\"`_&"
_SPACE, _BLANKS = re.compile(r"\s+"), re.compile(r"[ \t]+")
_AND = re.compile(r"(?<=[^A-Za-z\\]),?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_ENDS = r"(?=[\s.,;:!?)\"'/]|$)"
_WORD = re.compile(
    rf"(?:(?<![^\s(,])[^\W\d_]{{3,}}|(?<=[\d}})] )[^\W\d_]{{2,}})"
    rf"(?:{_ENDS}(?!\s*\}})|(?=-[a-z]{{3}}))"
    r"|(?<=[\d}] )[^\W\d_]{4,}\^(?:\d|\{\d\})|(?<![^\s(,])[^\W\d_]{2}(?= +\d)"
)
_WORD_OR_END = re.compile(
    rf"(?<![^\s(,\"'`/])[^\W\d_]{{2,}}(?:['’-][^\W\d_]+)*{_ENDS}(?!\s*\}})|\n|—|(?<!\S)[aAI](?=\s+[\d\\])"
    r"|[.;?](?=\s|$)|(?<!\s):(?=\s|$)|!(?=\s*$|\s+[A-Z])"
)
"""Words of prose, and where a sentence ends."""
_IS_EXPRESSION = re.compile(r"\d|\\[A-Za-z]|[A-Za-z]\s*[-+*/^=<>|]+\s*\{?[A-Za-z]|\|[a-z]\|")
_GAPS = re.compile(r"-?[1-9]\d{0,2}(?: \d{3})+")
_UNIT = r"(?:mm|cm|dm|km|m|ft|mi|mg|kg|g|mol|min|hr|h|s|in|[ACFJLNVW])"
_QUANTITY = re.compile(
    rf"^((?:[A-Za-z]\s*=\s*)?(?:\\[A-Za-z]+|[^A-Za-z\\])*(?:[\d}}]|\\pi\b))"
    rf"(?: +[ACFJLNVWcdghlmst](?![\w/^])| *{_UNIT}(?:/{_UNIT}(?:\^\d|\^\{{\d\}})?|\^\d|\^\{{\d\}})"
    r"| *(?:mm|cm|dm|km|kg|mg|ft))$"
)
"""A quantity with a unit, as in `10 L`, `5cm` and `10 m/s^2`."""
_UNIT_WORD = rf"{_UNIT}(?![A-Za-z])(?:\^-?\d|\^\{{-?\d\}})?"
_UNITS = rf"{_UNIT_WORD}(?: *+(?:(?:/|\\cdot) *+)?{_UNIT_WORD})*+"
_SCALED = re.compile(r"(?<=\d) *(?:[kKMBGT]|[bmt]l?n|mio)$")
_GLUED = re.compile(rf"(?<=\d) *(?:[bghkmstBGKMT]|bn|st|nd|rd|th|{_UNITS})$")


# --- what is read ---------------------------------------------------------------------------------


@lru_cache(256)
def _read(run: str) -> Any:
    """The expression that `math-verify` reads; raises _Unread unless all of it is read."""
    if len(run) > _LONGEST or _depth(run) > _DEEPEST:
        raise _Unread("it is too long, or has too many brackets in brackets")
    if _IN_WORDS in run:
        raise _Unread("words are part of it")
    if _IN_PARTS.fullmatch(run):
        raise _Unread("math-verify reads a part")
    expression = _parsed(run)
    if expression is None:
        raise _Unread("math-verify reads nothing")
    if _bits(expression) > _MOST_BITS:
        raise _Unread("a number is too large")
    for found in _NUMBER.finditer(run):
        other = "1" if found[0].endswith("2") else "2"
        changed = f"{run[: found.end() - 1]}{other}{run[found.end() :]}"
        if found[0] not in _numbers_in(expression) and _parsed(changed) == expression:
            raise _Unread(f"math-verify reads a part: {found[0]} does not count")
    return expression


def _parsed(run: str) -> Any:
    from latex2sympy2_extended import (  # pyright: ignore[reportMissingImports]
        NormalizationConfig,
    )
    from math_verify import (  # pyright: ignore[reportMissingImports]
        LatexExtractionConfig,
        parse,
    )

    as_latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(malformed_operators=True, nits=True, boxed="none")
    )
    no_limit: Any = None  # the parameter is typed as int
    found = parse(f"${run}$", [as_latex], "no_fallback", parsing_timeout=no_limit)
    return found[0] if found else None


def _depth(run: str) -> int:
    depth = deepest = 0
    for character in run:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _bits(expression: Any) -> float:
    """A bound on the bits of the numbers that an expression has when it is worked out."""
    if getattr(expression, "is_Rational", False):
        return int(expression.p).bit_length() + int(expression.q).bit_length()
    parts = list(map(_bits, getattr(expression, "args", ())))
    kind = type(expression).__name__
    if kind in ("Pow", "factorial", "binomial", "gamma", "exp"):
        large = 21 if kind == "exp" else max(parts[0], 2) * 2 ** min(parts[-1], 20)
        return inf if parts[-1] > 20 else large  # exp is not worked out, but no exponent
    return sum(parts, 1.0)


def _numbers_in(expression: Any) -> set[str]:
    from sympy import Rational, preorder_traversal  # pyright: ignore[reportMissingImports]

    numbers = [n for n in preorder_traversal(expression) if isinstance(n, Rational)]
    return {str(abs(part)) for n in numbers for part in (n.p, n.q)}


# --- what is equal --------------------------------------------------------------------------------


def _are_equal(gold: str, said: str) -> bool:
    from math_verify import grader  # pyright: ignore[reportMissingImports]

    grader.sympy_numeric_eq = _are_equal_numbers  # the library's rounds what is small to 0
    grader.sympy_symbolic_eq = _are_equal_terms
    for one, other in _percentages(gold, said):
        if one == other:
            return True
        if {one.removeprefix(r"\left")[:1], other.removeprefix(r"\left")[:1]} == {"(", "\\"} and (
            one.endswith(r"\}") or other.endswith(r"\}")
        ):
            raise _Unread("a tuple and a set are not compared")
        try:
            sides = _with_i(_read(one)), _with_i(_read(other))
            if grader.verify(*sides, timeout_seconds=None, raise_on_error=True):
                return True
        except _Unread:
            raise
        except Exception as error:  # sympy raises anything for what it cannot compare
            raise _Unread(f"sympy cannot compare it ({type(error).__name__}: {error})") from error
    bare = [_GLUED.sub("", side) for side in (gold, said)]
    if bool(_SCALED.search(gold)) != bool(_SCALED.search(said)):
        raise _Unread("the letters behind a number may be a thousand or more")
    if bare != [gold, said] and all(bare) and _are_equal(*bare):
        raise _Unread("the letters behind a number may be a unit or factors")
    if {_is_range(gold), _is_range(said)} == {True, None}:
        raise _Unread("an interval and an inequality are not compared")
    return False


def _is_range(run: str) -> bool | None:
    """True of an interval, None of an inequality or of several, False of other expressions."""
    from sympy import Basic, Interval, Union  # pyright: ignore[reportMissingImports]
    from sympy.core.relational import Relational  # pyright: ignore[reportMissingImports]

    read = _read(_PERCENT.sub("", run))
    has_relation = isinstance(read, Basic) and read.has(Relational)
    return None if has_relation else isinstance(read, Interval | Union)


def _with_i(expression: Any) -> Any:
    """The expression with the imaginary unit for the letter i, unless a sum binds it."""
    from sympy import I  # pyright: ignore[reportMissingImports]

    free = getattr(expression, "free_symbols", ())
    units = {symbol: I for symbol in free if symbol.name == "i"}
    return expression.subs(units) if units else expression


def _percentages(gold: str, said: str) -> list[tuple[str, str]]:
    """Both sides without percent signs; if one has some, also with hundredths."""
    plain = _PERCENT.sub("", gold), _PERCENT.sub("", said)
    if ("%" in gold) == ("%" in said):
        return [plain]
    return [plain, (_PERCENT_OF.sub(_HUNDREDTH, gold), _PERCENT_OF.sub(_HUNDREDTH, said))]


def _are_equal_numbers(one: Any, other: Any, *_: Any) -> bool:
    """Takes the place of `grader.sympy_numeric_eq`: compares rational numbers exactly, others to
    `_DIGITS` digits relative to their size, and a decimal with what rounds to it."""
    from sympy import Abs, MatrixBase  # pyright: ignore[reportMissingImports]
    from sympy.core.evalf import PrecisionExhausted  # pyright: ignore[reportMissingImports]

    if isinstance(one, MatrixBase) and isinstance(other, MatrixBase):
        pairs = zip(one.flat(), other.flat(), strict=False)
        return one.shape == other.shape and all(_are_equal_numbers(*pair) for pair in pairs)
    (a, half_of_a), (b, half_of_b) = _exact(one), _exact(other)
    if a.free_symbols or b.free_symbols:
        return False
    if a.is_Rational and b.is_Rational:
        return bool(abs(a - b) <= max(half_of_a, half_of_b))
    try:
        apart = Abs(a - b).evalf(2, maxn=_DIGITS, strict=True).as_real_imag()[0]
    except PrecisionExhausted:  # all digits are equal
        return True
    return bool(apart <= max(half_of_a, half_of_b))


def _are_equal_terms(one: Any, other: Any) -> bool:
    """Takes the place of `grader.sympy_symbolic_eq`: numbers have been compared."""
    from sympy import simplify  # pyright: ignore[reportMissingImports]

    if not (getattr(one, "free_symbols", None) or getattr(other, "free_symbols", None)):
        return False
    return simplify(one - other).is_zero is True


def _exact(number: Any) -> tuple[Any, Any]:
    """An expression with rational numbers for decimals, and half a unit in the last place of a
    decimal that is rounded; 0 for others."""
    from sympy import Float, Rational  # pyright: ignore[reportMissingImports]

    def decimal(value: Any) -> Decimal:
        return Decimal(str(value)).normalize()

    number = number.doit()
    if not number.is_Float:
        exact = number.replace(lambda n: isinstance(n, Float), lambda n: Rational(str(decimal(n))))
        return exact.doit(), Rational(0)
    _, digits, exponent = decimal(number).as_tuple()
    is_rounded = len(digits) >= _LEAST
    return Rational(str(decimal(number))), Rational(10) ** int(
        exponent
    ) / 2 if is_rounded else Rational(0)


# --- how it is written ----------------------------------------------------------------------------

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_IN_PARTS = re.compile(
    r"""\d+(?:(?::\d+)+|(?:-\d+){2,}|(?:\.\d+){2,}|'\s*\d+"?)(?:\s*[ap]m)?"""
    r"|[^\d]*\\\{\s*(?:\([^()]*\)|[A-Za-z][^,:|]*?)\s*(?::|\||\\mid\b|\\colon\b).*"
    r"|.*,.*\\in\b.*|.*(?:[\d)}]|\\[pb]?)\s*\(?mod\b.*|.*\\[a-z]*dots.*"
    r"|.*\\(?:sin|cos|tan)\b.*\\circ.*|.*%\s*\d.*|0[xXob][\dA-Fa-f]+"
)
"""Times, ratios, dates, versions, sets by a condition, remainders, lists with \\ldots, functions of
degrees and numbers to another base, of which `math-verify` takes a part."""
_IN_WORDS = "□"
"""What takes the place of words that belong to the expression beside them."""
_NUMERAL = (
    r"(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|half|dozen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|[a-z]*illion)"
)
_PARTS = r"(?:half|halves|thirds?|quarter|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths?)"
_SPELLED = re.compile(rf"[\s*_]{{0,9}}(?:an? )?\b{_NUMERAL}\b(?! of\b)", re.IGNORECASE)
_OPENS, _CLOSES = (rf"(?:[\s*_{marks}$]|\\[{marks[0]}\[\]]){{0,9}}" for marks in (r"({\[", r")}\]"))
_STARTS = r"(?=[-+.√]?(?:\d|\\[a-z])|[b-hj-z](?![\w'’]))"
_BEFORE = re.compile(
    rf"(?<![\\\w])(?:(?:minus|negative|plus|times|\w+ed by|divisible by|to the|point|root|sqrt"
    rf"|{_NUMERAL}|twice|thrice|double|\w*(?:tri|u)ple|(?:any\w*|all) but|except|over|under"
    rf"|above|below|than|least|most|between|is up to|not|\w+n['’]t|(?:{_PARTS}|roots?|sqrt|squares?"
    rf"|cube|power|reciprocal|inverse|opposite|negati\w+|multiples?|factors?|factorial|log\w*"
    rf"|\w*sine|tangent|double|absolute value|percent) of|of(?=\s\S{{1,9}}\sand\s[$\d]))\b)"
    rf"({_OPENS}){_STARTS}",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    rf"(?<=[\d)}}%])({_CLOSES})(?:-?(?:(?:hundred|thousand|[a-z]*illion|dozen)s?|squared|cubed"
    rf"|factorial|{_PARTS}(?<=[fs])|plus|minus|divided|multiplied|modulo|choose|(?:in )?base"
    r"|or [a-z]{2,}|to the (?:power|\w+th|second|third)|(?:below|above) zero"
    rf"|and (?:(?:a|one|two|three)[ -]{_PARTS}|more|up|above|below|over|under))\b(?!\s*=)"
    r"|(?:to|by|in|of|per|over|times|point|out of|(?:more|less|fewer|greater) than)\b"
    rf"(?={_OPENS}{_STARTS}))",
    re.IGNORECASE,
)
_COMPOUND = re.compile(
    r"(?<=\d) ?[a-z]{2,}(?: and)? (?=\d[\d.,]* ?[a-z]{2,})|(?<=\d) and (?=\d+/\d)"
)
"""Arithmetic in words before and behind an expression, and between two quantities."""
_DOTS = re.compile(
    r"(?<=[,+\d*])\s*(?:\.{3}|…)(?=\s*[,+*])|(?<=[,+])\s*(?:\.{3}|…)|(?<=\.\d)(\d*)(?:\.{3}|…)"
)
_THOUSANDS = re.compile(
    r"(?<=\d)(?:\\[,!: ]|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"
    r"|(?:^|(?<=[{$=]))\s*-?[1-9]\d{0,2}(?: \d{3})+(?=\s*(?:$|[}$]))"
    r"|(?<![\w.,/:^+*-])[1-9]\d{0,2}(?: \d{3})*? 0\d\d(?: \d{3})*(?![\w/:^*+-]|[., ]\d)"
)
"""Gaps in numbers."""
_PERCENT = re.compile(r"\s*%")
_PERCENT_OF = re.compile(r"(\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\})\s*%")
_HUNDREDTH = r"(\1)/100"
_PERCENT_WORD = re.compile(r"(?<=[\d}$])\s*(?:\\?%|[Pp]er ?cent(?:age)?\b|[Pp]ct\b)")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.]\d|\w)")
_POWER_OF_TEN = re.compile(
    r"(?<![\w.,/:^÷])(?<![/^÷] )(?<!\\div )(\d+(?:\.\d+)?)~(?:\\times|\\cdot|[×·])~10\^"
    r"(?:\{([+-]?\d{1,3})\}|(?=\d(?!\.?\d))(\d))(?!\s*[!^])".replace("~", r"(?:\s|\\[,;:! ])*")
)
"""A decimal times a power of ten. `math-verify` rounds such a product, so it would not be equal to
the number that it is."""
_REPEATING = re.compile(r"(?<!\d)(\d*)\.(\d*)\\overline\{(\d+)\}")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
_ROOT = re.compile(r"(?:√|\\?(?<![a-z])sqrt(?=\())\s*(?:\(([^()]*)\)|(\d+|\w))")
_ONE_CHARACTER = re.compile("(\\d?)([¼-¾⅐-⅞])")
_MIXED = re.compile(r"(?<![\d.,/^])(\d{1,9}) (\d{1,9})/(0*[1-9]\d{0,8})(?![\d/])")
_FUNCTION = re.compile(
    r"(?<![\\A-Za-z])(?:(log|ln|exp|sin|cos|tan)(?=\s*\(|\s+[\da-z]\b)|(pi)(?![A-Za-z]))"
)
_WRAPPED = re.compile(r"\\(?:text\w*|mbox|math(?:rm|it|sf|tt|bf))\s*\{([^{}]*)\}")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z]) +\^(?=\d|\{\d)")
_NARROW = re.compile(r"\\[,;:! ]|\\q?quad\b|\\displaystyle\b")
_POWER_IN_CODE = re.compile(r"(?<=[\w)])\*\*(?=[\d(-])")
_CROSS = re.compile(r"(?<=\d)(?<!\b0) *[xX] *(?=\d)")
_CURRENCY = re.compile(
    r"\\\$|[€£¥₹]|(?:\bUS)?\$(?=\d[\d.,]*(?:[^\d.,$]|[.,]?$)[^$]*$)", re.MULTILINE
)
_LEADING_POINT = re.compile(r"(?<![\w.)}\]])\.(?=\d)")
_LABEL = re.compile(
    r"(?<![\w)}^_\\])(?<![\d)}] )(?<!\b[A-Za-z] )\(\s*[A-J]\s*\)[\s.:]*"
    r"(?=[$.√]?-?\.?\d|\$?\\(?:d?frac|sqrt|pi))"
)
"""The letter of a choice before an expression."""
_POWER = r"(?:\s*\^\s*(?:-?\d|\{-?\d\}))?"
_GAP = r"(?:\s|~|\\[,;: ]){0,5}+"
_TIMES = rf"{_GAP}(?:/|[·⋅]|\\cdot\b|\\times\b)"
_SYMBOL = (
    r"(?:[nµμmcdhkMG]?(?:Hz|Pa|eV|Wh|cal|bar|mol|[mgslLACFJNVW])|mi|mph|hrs?|yd|yr|lbs?|oz|sec"
    rf"|{_UNIT})(?![A-Za-zµμ])"
)
_SYMBOL = rf"{_GAP}{_SYMBOL}{_POWER}"
_LETTERS = rf"{_GAP}\\(?:text|mathrm)\s*\{{{_SYMBOL}(?:{_TIMES}{_SYMBOL})*{_GAP}\}}{_POWER}"
_UPRIGHT = re.compile(rf"(?<=[\d}})]){_LETTERS}(?:(?:{_TIMES})?{_LETTERS})*\s*(?=$|[$.,}}]|\\\))")
_DEGREES = re.compile(
    r"(?<=\d)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*[CFK]\b|(?<=\d)\s*\\Omega\b(?=\W*$)"
)
"""Units in upright letters, and of temperature and resistance."""
_SIGNS = {
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "∙": r"\cdot ",
    "÷": r"\div ",
    "π": r"\pi ",
    "°": r"^\circ ",
}
_SIGNS |= {"∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≈": r"\approx ", "∪": r"\cup ", "~": " "}


def _readable(text: str) -> str:
    """The text with numbers in forms that `math-verify` does not misread."""
    text = _CURRENCY.sub("", _LEADING_POINT.sub("0.", _UPRIGHT.sub("", text)))
    text = _ONE_CHARACTER.sub(_as_fraction, plain_numerals(text))
    text = _SUPERSCRIPT.sub(lambda f: f"^{{{unicodedata.normalize('NFKC', f[0])}}}", text)
    text = _ROOT.sub(lambda f: rf"\sqrt{{{f[1] or f[2]}}}", text)
    text = _REPEATING.sub(_as_ratio, text)
    text = _THOUSANDS.sub(_without_gaps, text)
    text = _CROSS.sub(r"\\times ", text)
    text = _POWER_OF_TEN.sub(_written_out, _SCIENTIFIC.sub(_written_out, text))
    text = _NARROW.sub(" ", _WRAPPED.sub(r" \1 ", text.translate(str.maketrans(_SIGNS))))
    text = _DEGREES.sub("", _LABEL.sub("", text))
    text = _PERCENT_WORD.sub("%", text).replace("$%", "%$").replace(r"\varnothing", r"\emptyset")
    text = _POWER_IN_CODE.sub("^", _DOTS.sub(r"\1\\ldots ", text)).replace("**", " ")
    text = _UNIT_POWER.sub("^", text)
    text = _FUNCTION.sub(lambda f: f"\\{f[1] or f[2]} ", text)
    text = _MIXED.sub(lambda f: str(int(f[1]) + Fraction(int(f[2]), int(f[3]))), text)
    text = _BEHIND.sub(rf" {_IN_WORDS} \1", _COMPOUND.sub(f" {_IN_WORDS} ", text))
    return _BEFORE.sub(rf"\1{_IN_WORDS} ", text)


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
