"""The format that a config names, or that records fit if only one does."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from steps.data.formats import ChatRecords, RecordFormat
from steps.data.formats.by_name import FORMATS
from steps.data.formats.chat import ChatFormat
from steps.data.formats.format_errors import undecided
from steps.data.formats.prompt import PromptFormat
from steps.data.formats.ranked import PAIRS
from steps.data.records.conversations import INPUTS, THOUGHTS, unpacked, unread_keys
from steps.data.records.record_fields import are_texts, found, is_list, is_object
from steps.data.records.trained_turns import told_by
from steps.data.rows.turn_order import TURNS

AUTO = "auto"


@dataclass(frozen=True)
class FormatChoice:
    """The format of records in a config.

    Args:
        name: one of `FORMATS`, or `auto`, which detects it from the first records.
        fields: the names of fields that differ from the format's: `{"prompt": "question"}`.
        system: a system prompt for every conversation that has none.
        turns: what is done with turns out of order: one of `TURNS`.
        pairs: which pairs are made of several completions: one of `PAIRS`.
        images: the column with the images of preference pairs; without it none are read.
    """

    name: str = AUTO
    fields: Mapping[str, str] | None = None
    system: str | None = None
    turns: str = field(default=TURNS[0], metadata={"before": TURNS[0]})
    pairs: str = field(default=PAIRS[0], metadata={"before": PAIRS[0]})
    images: str | None = field(default=None, metadata={"before": None})

    def __post_init__(self) -> None:
        for name, known in (("turns", TURNS), ("pairs", PAIRS)):
            if getattr(self, name) not in known:
                raise ValueError(f"data.{name} is {getattr(self, name)!r}: {', '.join(known)}")
        if self.name == AUTO:
            if self.fields:
                raise ValueError("field names need a format: set format as well as fields")
        else:
            self.format_named(self.name, self.fields or {})

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that the config names though rows need not have them, and keys of messages:
        `messages[].learn`."""
        given = {} if self.name == AUTO else self.fields or {}
        columns = tuple(column for name, column in given.items() if name in OPTIONAL and column)
        trained = given.get("trained")
        listed = given.get("messages", ChatFormat.messages)
        return (*columns, f"{listed}[].{trained}") if trained else columns

    def format_named(self, name: str, field_names: Mapping[str, str | None]) -> RecordFormat:
        """The format `name` with other names of fields, and these settings.

        Raises:
            ValueError: there is no such format, or it has no such field.
        """
        if name not in FORMATS:
            close = get_close_matches(name, FORMATS, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ValueError(f"unknown format {name!r}: {', '.join(FORMATS)}, or {AUTO}{hint}")
        kind = FORMATS[name]
        every = [field.name for field in fields(kind)]
        known = [field for field in every if field not in SETTINGS]
        known.sort(key=ChatRecords.__annotations__.__contains__)
        if unknown := sorted(set(field_names) - set(known)):
            raise ValueError(f"format {name} has no field {', '.join(unknown)}: {', '.join(known)}")
        if self.system is not None and "system" not in every:
            raise ValueError("plain text has no system prompt")
        settings = {name: getattr(self, name) for name in SETTINGS if name in every}
        return kind(**field_names, **settings)


SETTINGS = ("system", "turns", "pairs")
"""Fields of formats that do not name a column."""
OPTIONAL = (
    "tools", "template_kwargs", "system_field", "input", "history", "reasoning", "answer",
    "score_chosen", "score_rejected", "tie", "teacher",
)  # fmt: skip
"""Fields of formats that name a column which rows need not have."""


def has_named(record: Mapping[str, Any], name: str) -> bool:
    """Whether a record has one of the columns or keys that `FormatChoice.named` lists."""
    column, _, key = name.partition("[].")
    value = found(record, column)
    if key:
        listed = unpacked(value)
        turns = listed if is_list(listed) else ()
        return any(is_object(turn) and turn.get(key) is not None for turn in turns)
    return value is not None


def choose_format(
    choice: FormatChoice, records: Iterable[Mapping[str, Any]], makes: type, where: str
) -> RecordFormat:
    """The format that `choice` names; with `auto`, the format of the first `records`.

    Args:
        makes: the kind of row that the format must make.
        where: the name of the source, for errors.

    Raises:
        ValueError: the named format makes another kind of row, or the records fit no format or
            several.
    """
    if choice.name != AUTO:
        chosen = choice.format_named(choice.name, choice.fields or {})
        if chosen.makes is not makes:
            raise ValueError(f"{where}: format {choice.name} makes {_plural(chosen.makes)}, "
                             f"and {_plural(makes)} are wanted")  # fmt: skip
        return chosen
    wanted = {name: kind for name, kind in FORMATS.items() if kind.makes is makes}
    seen = list(records)
    if not seen:  # nothing that could be read: whatever the format, every row will be dropped
        return choice.format_named(next(iter(wanted)), {})
    found = {
        (name, detected)
        for record in seen
        for name, kind in wanted.items()
        if (detected := kind.detected(record)) is not None
    }
    if len(found) != 1:
        raise ValueError(undecided(where, [name for name, _ in found], seen, list(wanted)))
    ((name, detected),) = found
    names = {f.name: getattr(detected, f.name) for f in fields(detected) if f.name not in SETTINGS}
    return choice.format_named(name, names)


_NO_TURNS = ("tools", "completions", "trained", *SETTINGS)
_TELLING = frozenset(
    (
        "input", "labels", "label",
        "winner", "better", "better_response_id", "overall_preference", "preference_strength",
        "preference", "initial_reason_steps", "context", "history", "functions", "documents",
        "winner_tie", "split", "weight", "status",
        "definition", "document", "passage", "choices", "options", "references",
        "function_description", "margin",
    )
)  # fmt: skip
"""Columns that probably matter, in any format and any case."""
_MEDIA = re.compile(r"(?:^|_)(?:image|img|picture|photo|video|audio)s?(?:_|$)", re.IGNORECASE)
"""Columns that probably hold more than the text of a row tells."""
_MASKS = re.compile(r"(?:^|_)masks?(?:_|$)", re.IGNORECASE)
"""Columns that probably say what is trained on."""
_ANSWERS = re.compile(
    "answer|solution|ground_truth|verification|(?:^|_)tests?(?:_|$)|input_output|instruction_id"
    "|constraint",
    re.IGNORECASE,
)
"""Columns that probably matter where a prompt has no answer."""


class IgnoredKeys:
    """Finds what a format does not read of records, although it probably matters: columns (such as
    `image`) and keys of messages (`messages[].weight`)."""

    def __init__(self, chosen: RecordFormat) -> None:
        names = (field.name for field in fields(chosen) if field.name not in _NO_TURNS)
        self._names = {getattr(chosen, name) for name in names}
        inputs = INPUTS if getattr(chosen, "input", None) == "input" else ()
        self._read = {*inputs, *(str(name).partition(".")[0] for name in self._names)}
        self._answer = chosen.answer if isinstance(chosen, PromptFormat) else None
        self._told = told_by(chosen.trained) if isinstance(chosen, ChatFormat) else ()

    def of(self, record: Mapping[str, Any]) -> set[str]:
        """Names as above."""
        return {n for n, v in record.items() if self._matters(n, v, record)} | {
            f"{name}[].{key}{' of others than the assistant' if key in self._told else ''}"
            for name, key in unread_keys(record, self._names, self._told)
        }

    def _matters(self, name: Any, value: Any, record: Mapping[str, Any]) -> bool:
        match _told_by(str(name)):
            case _ if name in self._read or value in (None, "", []):
                return False
            case "thoughts":
                return isinstance(value, str) or are_texts(value)
            case "answer":
                return self._answer is not None and found(record, self._answer) is None
            case "split":
                return not str(value).lower().startswith("train")
            case "mask":  # NeMo names the speaker whose words are not trained on
                return str(value).lower() not in ("user", "human")
            case told:
                return bool(told)


def is_media(name: str) -> bool:
    """Whether a column that is not read probably holds images, videos or sound."""
    return "[]." not in name and _told_by(name) == "media"


@lru_cache(1024)
def _told_by(name: str) -> str:
    """What a column of this name probably holds that matters; empty for nothing."""
    if name.lower() in _TELLING:
        return name.lower()
    kinds = {"media": _MEDIA, "mask": _MASKS, "thoughts": THOUGHTS, "answer": _ANSWERS}
    return next((kind for kind, pattern in kinds.items() if pattern.search(name)), "")


def format_name(chosen: RecordFormat) -> str:
    """The name of a format, with the names of fields that are not the usual ones."""
    name = next(name for name, kind in FORMATS.items() if kind is type(chosen))
    changed = [
        f"{field.name}={getattr(chosen, field.name)}"
        for field in fields(chosen)
        if field.name not in SETTINGS and getattr(chosen, field.name) != field.default
    ]
    return f"{name} ({', '.join(changed)})" if changed else name


def _plural(kind: type) -> str:
    return f"{kind.__name__}s"
