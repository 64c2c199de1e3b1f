"""The formats by name, and which of them records are in where that is beyond doubt."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from steps.data.formats.chat import ChatFormat, CompletionFormat
from steps.data.formats.hh_rlhf import HHFormat
from steps.data.formats.preference import PreferenceFormat
from steps.data.formats.prompt import PromptFormat
from steps.data.formats.text import TextFormat
from steps.data.formats.turns import READ_KEYS, is_list
from steps.data.formats.unpaired import UnpairedFormat

Format = (
    PreferenceFormat
    | HHFormat
    | ChatFormat
    | CompletionFormat
    | PromptFormat
    | UnpairedFormat
    | TextFormat
)

FORMATS: Mapping[str, type[Format]] = {
    "preference": PreferenceFormat,
    "hh_rlhf": HHFormat,
    "chat": ChatFormat,
    "completion": CompletionFormat,
    "prompt": PromptFormat,
    "unpaired": UnpairedFormat,
    "text": TextFormat,
}

AUTO = "auto"


@dataclass(frozen=True)
class FormatChoice:
    """Which format records are in, as a config says it.

    Args:
        name: one of `FORMATS`, or `auto`: found out from the first records.
        fields: names of fields where they differ from the usual: `{"prompt": "question"}`.
        system: a system prompt for every conversation that has none.
    """

    name: str = AUTO
    fields: Mapping[str, str] | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        if self.name == AUTO:
            if self.fields:
                raise ValueError("field names need a format: set format as well as fields")
        else:
            named_format(self.name, self.fields or {}, self.system)


def named_format(name: str, field_names: Mapping[str, str], system: str | None = None) -> Format:
    """The format `name` with other names of fields.

    Raises:
        ValueError: there is no such format, or it has no such field.
    """
    if name not in FORMATS:
        close = get_close_matches(name, FORMATS, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"unknown format {name!r}: {', '.join(FORMATS)}, or {AUTO}{hint}")
    kind = FORMATS[name]
    known = [field.name for field in fields(kind) if field.name != "system"]
    if unknown := sorted(set(field_names) - set(known)):
        raise ValueError(f"format {name} has no field {', '.join(unknown)}: {', '.join(known)}")
    settings: dict[str, Any] = {**field_names}
    if system is not None:
        if kind is TextFormat:
            raise ValueError("plain text has no system prompt")
        settings["system"] = system
    return kind(**settings)


def choose_format(
    choice: FormatChoice, records: Iterable[Mapping[str, Any]], makes: type, where: str
) -> Format:
    """The format that `choice` names, or else the one that `records`, the first ones, are in.

    Args:
        makes: the kind of row that is wanted; other formats do not come into question.
        where: names the source in errors.

    Raises:
        ValueError: the named format makes other rows, or the records leave open which it is.
    """
    if choice.name != AUTO:
        chosen = named_format(choice.name, choice.fields or {}, choice.system)
        if chosen.makes is not makes:
            raise ValueError(f"{where}: format {choice.name} makes {_plural(chosen.makes)}, "
                             f"and {_plural(makes)} are wanted")  # fmt: skip
        return chosen
    wanted = {name: kind for name, kind in FORMATS.items() if kind.makes is makes}
    seen = list(records)
    if not seen:  # nothing that could be read: whatever the format, every row will be dropped
        return named_format(next(iter(wanted)), {}, choice.system)
    found = {
        (name, detected)
        for record in seen
        for name, kind in wanted.items()
        if (detected := kind.detected(record)) is not None
    }
    if len(found) != 1:
        raise ValueError(_undecided(where, [name for name, _ in found], seen, list(wanted)))
    ((name, detected),) = found
    names = {f.name: getattr(detected, f.name) for f in fields(detected) if f.name != "system"}
    return named_format(name, names, choice.system)


_NO_TURNS = ("tools", "system")


def ignored_keys(chosen: Format, record: Mapping[str, Any]) -> set[str]:
    """What the messages of a record hold besides what is read of them: `messages[].weight`."""
    names = {getattr(chosen, field.name) for field in fields(chosen) if field.name not in _NO_TURNS}
    return {
        f"{name}[].{key}"
        for name in names
        if is_list(turns := record.get(name))
        for turn in turns
        if isinstance(turn, Mapping)
        for key, value in turn.items()
        if key not in READ_KEYS and value is not None and str(key).isprintable()
    }


def format_name(chosen: Format) -> str:
    """The name of a format, with the names of fields that are not the usual ones."""
    name = next(name for name, kind in FORMATS.items() if kind is type(chosen))
    changed = [
        f"{field.name}={getattr(chosen, field.name)}"
        for field in fields(chosen)
        if field.name != "system" and getattr(chosen, field.name) != field.default
    ]
    return f"{name} ({', '.join(changed)})" if changed else name


def _undecided(
    where: str, found: list[str], seen: list[Mapping[str, Any]], wanted: list[str]
) -> str:
    names = sorted({str(key) for record in seen for key in record})[:20]
    what = f"the first rows fit {' and '.join(sorted(set(found)))}" if found else "no format fits"
    return (
        f"{where}: cannot tell the format of its rows ({what}; their fields: "
        f"{', '.join(names) or 'none'}); set format to one of {', '.join(wanted)}, and fields to "
        "the names that differ from the usual"
    )


def _plural(kind: type) -> str:
    return f"{kind.__name__}s"
