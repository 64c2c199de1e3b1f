"""The interface of checkers, and their verdicts: right, wrong, or none.

A checker gives *no verdict* if it hangs, crashes or cannot read the right answer: then it has not
found the completion wrong. Training leaves such completions out and counts them.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from numbers import Number
from typing import Any, ClassVar

from steps.shared.checks import ClassName
from steps.shared.counts import share_of


class Verdict(StrEnum):
    """A checker's verdict on a completion."""

    right = "right"
    wrong = "wrong"
    none = "none"


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason, a sentence for people; without a verdict, why there is none."""

    verdict: Verdict
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdict", Verdict(self.verdict))  # "right" is right too
        reason = "" if self.reason is None else str(self.reason)
        object.__setattr__(self, "reason", reason.encode("utf-8", "replace").decode())

    @property
    def reward(self) -> float | None:
        """1 for right, 0 for wrong, None without a verdict."""
        return None if self.verdict is Verdict.none else float(self.verdict is Verdict.right)


def reward_of(judgement: Judgement) -> float | None:
    """The reward as it is written: one of a user's judgement may be a fraction, as of tests."""
    reward = judgement.reward
    return None if reward is None else float(reward)


@dataclass(frozen=True)
class Answered:
    """The input of a checker.

    text: the completion, without special tokens.
    answer: the right answer in the prompt's row; None if the row has none. A blank one is none,
        as every empty text would be right.
    prompt: the conversation before the completion; messages with `role` and `content`.
    """

    text: str
    answer: str | None = None
    prompt: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.answer is not None and not self.answer.strip():
            object.__setattr__(self, "answer", None)


_ASSERTION = re.compile(r"^\s*assert\b", re.MULTILINE)


def held_in(answer: str) -> Any:
    """The value of an answer that is written as JSON, or as Python does; None for other texts."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(answer.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return None


def is_rule(answer: str) -> bool:
    """Whether a row's answer is no answer but what a completion is judged by: an object, such as
    IFEval's constraints or inputs with outputs, or a list of objects or of assertions."""
    if not answer.lstrip().startswith(("{", "[")):
        return False
    held = held_in(answer)
    if not isinstance(held, list):
        return isinstance(held, Mapping) and bool(held)
    return any(isinstance(item, Mapping) for item in held) or bool(assertions(held))


def assertions(held: Any) -> list[str]:
    """The texts of a list that has only texts, one of them an assertion; else none."""
    if not isinstance(held, list) or not all(isinstance(item, str) for item in held):
        return []
    return held if any(map(_ASSERTION.search, held)) else []


RULE = "the row's answer is a rule or tests, which no text equals"
"""Why there is no verdict where an answer `is_rule`."""


_MOST_WORDS = 15
_NAMES_RESULT = re.compile(
    r"####|</?answer>|\\f?box(?:ed)?\b|\banswer\s*(?:is\b|[:=]|\d)|^\$.*\$$|^\\[(\[].*\\[)\]]$|^="
    r"|^[A-Za-z]{3,}(?::\s|[^=<>]*\s\w+\s*=|,\s*[-$]?\d[\d.]*$)"
    r"|^(?=.*\d)(?:(?:so|hence|thus|therefore|since|we|it|[∴⇒→])(?![\w'’]).*"
    r"|[^=]*\b(?:is|are|was|were|equals|makes|gives)\b.*)$|^([*`\"]+).*\1$|^<\w+>.*>$|\d[.,]$",
    re.IGNORECASE | re.DOTALL,
)
_COMPUTES = re.compile(r"[\d\s.,$%()]+[-+*/×÷][-\d\s.,$%()+*/×÷]*=")
_LATEX = re.compile(r"\$[^$]*\$|\\(?:text\w*|mbox|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(r"\W*[^\W\d_]{2,}\W*")


def why_no_answer(answer: str | None, in_a_box: bool = False) -> str:
    """Why a text can be no row's answer that completions are compared with; empty if it can.

    Args:
        in_a_box: whether it must be the whole content of a box; then it states no result itself.
    """
    if answer is None or not answer.strip():
        return "the row has no answer"
    if is_rule(answer):
        return RULE
    shown = repr(answer if len(answer) <= 60 else f"{answer[:60]}…")
    if not answer.strip("# \n"):
        return f"the row's answer {shown} is only the mark of one"
    if len(re.findall(r"(?<!\\){", answer)) != len(re.findall(r"(?<!\\)}", answer)):
        return f"the row's answer {shown} has a brace without its other half: it is cut"
    is_solution = "\n" in answer.strip() or len(answer.split()) > _MOST_WORDS
    if is_solution or (in_a_box and _states_a_result(answer.strip())):
        return f"the row's answer {shown} is a whole solution; keep its result only"
    return ""


def _states_a_result(answer: str) -> bool:
    """Whether a line names its result, computes it, or is a sentence with numbers; or has signs of
    mathematics around it, which no box has."""
    if _NAMES_RESULT.search(answer) or _COMPUTES.match(answer):
        return True
    said = _LATEX.sub(" 0 ", answer).split()
    words = list(filter(_WORD.fullmatch, said))
    if not re.search(r"\d", answer) or said[:1] != words[:1] or len(words) < 2:
        return False
    is_long = len(said) > 5 and sum(map(str.islower, words)) > len(words) / 2
    return is_long or (len(said) > 2 and answer[-1] in ".!") or ("=" in answer and len(words) > 2)


@dataclass(frozen=True)
class Checker:
    """A rule that judges completions: frozen settings and a function.

    It is defined at the top of a module, as it is handed to processes of its own. `name` is its
    name in a config, and that of its reward: by default the name of its class in small letters.
    What `is_costly` is not asked twice: its verdicts are kept, so that an interrupted run pays for
    the rest only.
    """

    name: ClassVar[str] = ClassName()  # type: ignore[assignment]
    is_costly: ClassVar[bool] = False

    def fault_of(self, answer: str | None) -> str:
        """Why this checker finds no text right where a row has this answer; empty if it may find
        one. It is asked for all rows before anything is sampled, so it does not take long."""
        return ""

    def check(self, answered: Answered) -> Judgement:
        """Judge one completion. This method may take long, hang, raise or crash: it runs in a
        process that can be killed (``judges``)."""
        raise NotImplementedError


def require_checkable(
    checker: Checker, answers: Mapping[str, str | None], most_without: float
) -> None:
    """Raise ValueError, which names the first row, if this checker can find no text right for a
    larger share than `most_without` of the rows.

    Args:
        answers: the right answers by the rows' ids.
    """
    faults = {answer: checker.fault_of(answer) for answer in dict.fromkeys(answers.values())}
    faulty = [row for row, answer in answers.items() if faults[answer]]
    if len(faulty) > share_of(most_without, len(answers)):
        raise ValueError(
            f"row {faulty[0]!r}: {faults[answers[faulty[0]]]}; so {checker.name} could find no "
            f"completion right for {len(faulty)} of {len(answers)} rows. Mend their field answer, "
            "name another with data.fields.answer, leave the rows out, or choose another checker"
        )


def judged(is_right: bool, reason: str = "") -> Judgement:
    """A judgement of right or wrong.

    Raises ValueError for a text, a number that is neither 0 nor 1, and for a tuple or a mapping, as
    of a verdict with its reason: they would all be right.
    """
    is_number = isinstance(is_right, Number) and is_right in (0, 1)
    if isinstance(is_right, str | bytes | Number | tuple | Mapping) and not is_number:
        raise ValueError(f"a checker judges {is_right!r}, which is neither right nor wrong")
    return Judgement(Verdict.right if is_right else Verdict.wrong, reason)


def no_verdict(reason: str) -> Judgement:
    """A judgement without a verdict."""
    return Judgement(Verdict.none, reason)


UNREADABLE = "the text cannot be read: "
"""How the reason of a judgement begins that has no verdict because of the text alone."""


def unreadable(reason: str) -> Judgement:
    """A judgement without a verdict on a text that cannot be read as a whole. It does not count as
    a failure of the checker: a model that repeats such texts ends no run."""
    return no_verdict(f"{UNREADABLE}{reason}")


def behind_thought(text: str) -> str:
    """What a text says behind its last thought; a thought that is cut says nothing."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


_DIGIT, _MINUS = re.compile(r"\d"), re.compile(r"[−﹣－]|(?<!\w)–(?=\d)")


def plain_numerals(text: str) -> str:
    """The text with ASCII's digits and hyphens in place of other decimal digits and minus signs.

    `²` and `½` are no decimal digits, and stay.
    """
    return _MINUS.sub("-", _DIGIT.sub(lambda digit: str(int(digit[0])), text))
