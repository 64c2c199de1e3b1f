"""Settings of tokenisation: frozen dataclasses, importable without the code that tokenises.

There are two limits of lengths, in tokens: one for the prompt, and one for prompt and response
together. Each has its own policy; :mod:`steps.data.tokens.lengths` applies them.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from steps.data.rows.ledger import check_max_dropped
from steps.shared.checks import require_count, set_choice


class TooLong(StrEnum):
    """The policy for sequences that exceed a limit."""

    keep_start = "keep_start"
    keep_end = "keep_end"
    drop = "drop"
    error = "error"


class TrainOn(StrEnum):
    """What is trained on: turns of the assistant, or everything.

    `answer`: for a pair, every turn in which its sides differ; for a completion, every turn after
    the prompt; for a conversation, the last turn.
    `everything`: of a conversation, all tokens up to the end of its last answer but the first one:
    the users' words and what the template writes, too.
    """

    answer = "answer"
    last_turn = "last_turn"
    all_turns = "all_turns"
    everything = "everything"


class Inserted(StrEnum):
    """Whether text that a template inserts between an answer's header and its words is trained."""

    trained = "trained"
    read = "read"


class Lost(StrEnum):
    """Whether a row is kept or dropped if the template leaves out a message or a call."""

    kept = "kept"
    dropped = "dropped"


class LongText(StrEnum):
    """The policy for a text that exceeds the limit."""

    pieces = "pieces"
    keep_start = "keep_start"
    keep_end = "keep_end"
    drop = "drop"
    error = "error"


@dataclass(frozen=True)
class LengthLimits:
    """Limits in tokens, and their policies.

    Args:
        max_length: the most tokens of the prompt and one response together.
        max_prompt_length: the most tokens of the prompt.
        prompt_too_long: the policy for prompts over `max_prompt_length`.
        too_long: the policy for rows that are then still over `max_length`: `keep_start` cuts the
            response at its end, `keep_end` cuts the prompt at its start.
    """

    max_length: int = 1024
    max_prompt_length: int = 512
    prompt_too_long: TooLong = field(default=TooLong.drop, metadata={"before": TooLong.drop})
    too_long: TooLong = field(default=TooLong.keep_start, metadata={"before": TooLong.keep_start})

    def __post_init__(self) -> None:
        require_count(self, "max_length", "max_prompt_length")
        set_choice(self, "prompt_too_long", TooLong)
        set_choice(self, "too_long", TooLong)


@dataclass(frozen=True)
class TokenizeConfig(LengthLimits):
    """How rows become tokens: which tokens are trained on, and the limits of lengths.

    Args:
        train_on: whether the answer, the last assistant turn, every assistant turn or everything
            is trained on.
        inserted: whether text that the template inserts before an answer's words, such as an empty
            thought, is trained on, or read as part of the prompt.
        end_of_turn: a token that ends turns to which the template gives no end.
        lost: whether rows of which the template leaves out a message or a call are kept (and
            counted) or dropped.
        max_dropped: the most rows that may be dropped: below 1 a fraction, else a number of rows.
        workers: the number of processes; 0: one for each core. The result does not depend on it.
    """

    train_on: TrainOn = field(default=TrainOn.answer, metadata={"before": TrainOn.last_turn})
    inserted: Inserted = field(default=Inserted.trained, metadata={"before": Inserted.read})
    end_of_turn: str | None = field(default=None, metadata={"before": None})
    lost: Lost = field(default=Lost.kept, metadata={"before": Lost.kept})
    max_dropped: float | None = field(default=None, metadata={"before": None})
    workers: int = field(default=1, metadata={"identity": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        set_choice(self, "train_on", TrainOn)
        set_choice(self, "inserted", Inserted)
        set_choice(self, "lost", Lost)
        check_work(self.max_dropped, self.workers)


@dataclass(frozen=True)
class TextConfig:
    """How texts become tokens.

    Args:
        max_length: the most tokens of a row, including BOS and end-of-sequence token.
        too_long: the policy for longer texts. A text that is cut at its end has no end-of-sequence
            token.
        max_dropped: the most rows that may be dropped: below 1 a fraction, else a number of rows.
        workers: the number of processes; 0: one for each core. The result does not depend on it.
    """

    max_length: int = 1024
    too_long: LongText = LongText.pieces
    max_dropped: float | None = None
    workers: int = field(default=1, metadata={"identity": False})

    def __post_init__(self) -> None:
        require_count(self, "max_length", least=2)
        set_choice(self, "too_long", LongText)
        check_work(self.max_dropped, self.workers)


def check_work(max_dropped: float | None, workers: int) -> None:
    """Check `max_dropped` and `workers`.

    Raises:
        ValueError: one of them is out of range.
    """
    if max_dropped is not None:
        check_max_dropped(max_dropped)
    if workers < 0:
        raise ValueError(f"workers must be 0 (one for each core) or more, got {workers}")
