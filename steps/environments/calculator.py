"""A tool that works sums out: a turn that is a sum is a call, any other is the answer."""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from steps.checking.verdicts import Answered, Judgement, judged
from steps.environments.environment import Environment, Observation, Turn, says
from steps.shared.checks import require, require_count

_OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST_CALL = 200


@dataclass(frozen=True)
class Calculator(Environment):
    """Computes ``27 + 35``, exactly: numbers, ``+ - * /`` and parentheses.

    A turn in which `call` is found is a call, and its group `sum` is computed; the value is what
    the policy reads next. Any other turn, and a number alone, is the answer, which the checker
    judges. An episode with more calls than `most_calls` is wrong.

    Args:
        call: a regular expression with a group named `sum`, in Python's syntax.
        most_operations: the most operations of one call; null: any number. A longer one, and what
            cannot be computed, is answered with `mistake`.
        most_calls: how often an episode may call.
        role: of the message that holds the value.
        mistake: what is said to a call that cannot be computed.
    """

    name: ClassVar[str] = "calculator"

    call: str = r"^\s*(?P<sum>[-\d(][-+*/().\d\s]*)$"
    most_operations: int | None = None
    most_calls: int = 8
    role: str = "tool"
    mistake: str = "error"

    def __post_init__(self) -> None:
        require_count(self, "most_operations", or_null=True)
        require_count(self, "most_calls", least=0)
        try:
            named = "sum" in re.compile(self.call).groupindex
        except re.error as error:
            require(False, f"call must be a regular expression ({error})", self.call)
        else:
            require(named, "call must have a group named sum: (?P<sum>...)", self.call)

    def reset(self, task: Answered, k: int) -> list[str]:
        return []

    def step(self, state: list[str], turn: Turn) -> Observation | Judgement | None:
        found = re.search(self.call, turn.text)
        value = self._worked_out(found["sum"].strip()) if found else None
        if value is None:
            return None
        if len(state) == self.most_calls:
            return judged(False, f"more than {self.most_calls} calls")
        state.append(value)
        return says(value, self.role)

    def _worked_out(self, text: str) -> str | None:
        """What a sum comes to, or the mistake in it; None of a number alone."""
        try:
            if len(text) > _LONGEST_CALL:
                return self.mistake
            tree = ast.parse(text, mode="eval").body
            operations = sum(isinstance(node, ast.BinOp) for node in ast.walk(tree))
            if self.most_operations is not None and operations > self.most_operations:
                return self.mistake
            return _as_text(_value(tree)) if operations else None
        except (SyntaxError, ValueError, ArithmeticError, RecursionError):
            return self.mistake


def _value(node: Any) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(str(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left), _value(right))
    raise ValueError("no sum")


def _as_text(value: Fraction) -> str:
    """A whole number as such, any other as the nearest decimal number of double precision."""
    return str(value.numerator) if value.denominator == 1 else repr(float(value))
