r"""A task of several steps: "What is 27 + 35 + 18?", with a calculator that adds two numbers.

Two to five numbers lie in 10..49. A careful annotator calls the calculator for every pair, one turn
a call, and then answers:

    27 + 35   ◄ 62    62 + 18   ◄ 80    \boxed{80}

Before each call but the first, half of the annotators lose patience, and finish in their head
without a carry. So of the demonstrations of a long sum few are right, and a policy that imitates
them seldom comes to the right answer of one: what it has to learn is to go on calling.

The words are those of :mod:`steps.data.rows.arithmetic`, whose tokenizer has no word for a tool;
the calculator speaks as a user.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steps.data.rows.arithmetic import OPERANDS, boxed
from steps.data.rows.rows import ConversationRow, Message, PromptRow

TOOL_ROLE = "user"
LENGTHS = range(2, 6)
"""How many numbers there are."""
_PATIENCE = 0.5
"""Before each further call."""


@dataclass(frozen=True)
class Sum:
    """One question."""

    numbers: tuple[int, ...]

    @property
    def prompt(self) -> PromptRow:
        asked: Message = {"role": "user", "content": f"What is {_written(self.numbers)}?"}
        return PromptRow("+".join(map(str, self.numbers)), (asked,), str(sum(self.numbers)))

    def demonstration(self, calls: int) -> ConversationRow:
        """The question, and so many calls before the answer; after fewer than are needed, an answer
        that comes of adding the rest without a carry."""
        asked = self.prompt
        return ConversationRow(asked.row, (*asked.prompt, *self._turns(calls)))

    def _turns(self, calls: int) -> Iterator[Message]:
        total, *rest = self.numbers
        for number in rest[:calls]:
            yield {"role": "assistant", "content": _written((total, number))}
            total += number
            yield {"role": TOOL_ROLE, "content": str(total)}
        for number in rest[calls:]:
            total = 10 * (total // 10 + number // 10) + (total + number) % 10
        yield {"role": "assistant", "content": boxed(str(total))}


def sample_sums(seed: int, train: int, test: int) -> tuple[list[Sum], list[Sum]]:
    """`train` and `test` different questions, of every length equally often, in random order.

    Raises:
        ValueError: more are asked for than there are: there are 1,600 sums of two numbers.
    """
    most = len(LENGTHS) * len(OPERANDS) ** min(LENGTHS)
    if train < 0 or test < 0 or train + test > most:
        raise ValueError(
            f"{train} + {test} sums asked for; there are {most}, as many of each length"
        )
    draws = random.Random(f"sums {seed}")
    found: dict[Sum, None] = {}
    while len(found) < train + test:
        length = LENGTHS[len(found) % len(LENGTHS)]
        found[Sum(tuple(draws.choice(OPERANDS) for _ in range(length)))] = None
    every = list(found)
    draws.shuffle(every)
    return every[:train], every[train:]


def patient_demonstrations(sums: Sequence[Sum], seed: int) -> list[ConversationRow]:
    """Each question with a response to imitate, in order."""
    draws = random.Random(f"patience {seed}")
    shown = []
    for question in sums:
        needed = len(question.numbers) - 1
        calls = 1
        while calls < needed and draws.random() < _PATIENCE:
            calls += 1
        shown.append(question.demonstration(calls))
    return shown


def _written(numbers: Sequence[int]) -> str:
    return " + ".join(map(str, numbers))
