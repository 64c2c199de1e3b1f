"""A calculator: a turn that is a calculation is a call of the tool, any other is the answer."""

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
    """Computes numbers with ``+ - * /`` and parentheses exactly, for example ``27 + 35``.

    A turn that matches `call` is a call: its group `sum` is computed, and the policy reads the
    value next. Any other turn is the answer, which the checker judges; so is a number alone. An
    episode with more than `most_calls` calls is wrong.

    Args:
        call: a regular expression with a group named `sum`, in Python's syntax.
        most_operations: the most operations in one call; null for no limit. A call with more, or
            one that cannot be computed, gets the reply `mistake`.
        most_calls: the most calls in an episode.
        role: the role of the message with the value.
        mistake: the reply to a call that cannot be computed.
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
        """The value of a calculation, or `mistake` if it has none; None for a number alone."""
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
    """A whole number in digits; any other as the nearest double-precision number."""
    return str(value.numerator) if value.denominator == 1 else repr(float(value))
