"""What to type where the format of records is not plain."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from steps.data.formats.by_name import FORMATS
from steps.data.records.conversations import THOUGHTS
from steps.data.records.record_fields import is_list, is_number
from steps.data.rows.reasons import CHOICES, MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, PromptRow, UnpairedRow
from steps.shared.execution_detail import execution_detail

Records = Sequence[Mapping[str, Any]]

_KNOWN = (
    (
        {"message_id", "parent_id"},
        "each row is one message of a tree, which is in several rows; read a file with one tree a "
        "row (in OASST: *.trees.jsonl.gz)",
    ),
    (
        {"full_chosen", "full_rejected"},
        "chosen and rejected are single steps here, full_chosen and full_rejected answers: "
        "data.format=preference 'data.fields={chosen: full_chosen, rejected: full_rejected}'",
    ),
    (
        {"completions", "labels"},
        "each of its rows has labels for the steps of one answer, for a process reward model, "
        "which Temper does not train; join the steps to one text with one label (true if all are "
        "right), and read them with load_unpaired (temper run kto)",
    ),
)
"""Columns of rows that are no rows of any format, and what to do with them."""

_READERS: Mapping[type, str] = {
    PreferenceRow: "preference pairs: read them with load_preferences (temper run dpo)",
    UnpairedRow: "single responses with labels: read them with load_unpaired (temper run kto)",
    ConversationRow: "conversations: read them with load_conversations (temper run sft)",
    PromptRow: (
        "prompts: read them with load_prompts (temper run grpo, or temper run rlhf with "
        "reward_model=FOLDER)"
    ),
}
"""The kinds of rows, those with the most columns first, with the step that makes each."""

_MEANT: Mapping[str, tuple[str, ...]] = {
    "prompt": (
        "prompt", "question", "query", "instruction", "problem", "input", "request", "user",
        "messages", "conversations", "context",
    ),
    "chosen": ("chosen", "good", "better", "preferred", "accepted", "winner", "positive", "best"),
    "rejected": ("rejected", "bad", "worse", "dispreferred", "loser", "negative", "worst"),
    "completions": ("completions", "responses", "answers", "candidates", "generations"),
    "messages": (
        "messages", "conversation", "conversations", "dialogue", "turns", "chat", "text",
    ),
    "completion": (
        "completion", "response", "answer", "output", "reply", "generation", "attempt", "targets",
        "assistant", "summary", "highlights", "content", "target", "label",
    ),
    "answer": ("answer", "solution", "gold", "target", "expected", "result"),
    "label": (
        "label", "good", "liked", "is_good", "thumbs_up", "desirable", "safe", "rating", "score",
        "helpfulness", "quality",
    ),
    "text": ("text", "content", "document", "body", "passage"),
    "better": ("better", "winner", "prefer", "preference", "choice", "verdict", "safer", "best"),
}  # fmt: skip
"""Fields of formats, with names that data sets often use for them."""

_UNCLEAR = "NAME"
_VALUE = "VALUE"
"""Stands for the lowest rating of a good response, or for a verdict for the first of two."""
_SUGGESTED = ("preference", "ranked", "chat", "completion", "prompt", "unpaired", "text")
_ANEW = (
    "write the rows anew in one of the formats, with a small script, or a step of your own as in "
    "docs/howto/own_step.md (docs/data.md has the formats)"
)


@execution_detail
def undecided(where: str, found: Sequence[str], seen: Records, wanted: Sequence[str]) -> str:
    """Why no single format of `wanted` is chosen for records, and the settings to type.

    Args:
        where: the name of the source.
        found: the formats that some of them fit.
        seen: the first records.
    """
    names = sorted({str(key) for record in seen for key in record})[:30]
    listed = f"their fields: {', '.join(name[:60] for name in names) or 'none'}"
    cannot = f"{where}: cannot tell the format of its rows"
    known = next((said for columns, said in _KNOWN if columns <= {*names}), "")
    if known and not found:
        return f"{cannot} ({listed}); {known}"
    suggested, fault = _suggested(wanted, names, seen)
    is_clear = suggested and _UNCLEAR not in suggested
    has_label = "unpaired" in wanted and fault
    if not found and not is_clear and not has_label and (others := _made_by(seen)):
        asked = _prompts_of(seen) if "prompt" in wanted else ""
        return (
            f"{where}: no format fits its rows as they are read here, but they are {others}{asked}"
        )
    if not suggested:
        return f"{cannot} ({listed}): {fault}; {_ANEW}"
    what = f"the first rows fit {' and '.join(sorted(set(found)))}" if found else "no format fits"
    unclear = f"; {_UNCLEAR} stands for a column of yours; if no column holds it, {_ANEW}"
    value = f"; {_VALUE} is the lowest rating of a good row, or what says that the first is better"
    return (
        f"{cannot} ({what}; {listed}); name it, and the fields whose names differ from its own: "
        f"{suggested} (formats: {', '.join(wanted)}){value if _VALUE in suggested else ''}"
        f"{unclear if _UNCLEAR in suggested else ''}"
    )


def _made_by(seen: Records) -> str:
    """What the records are if one kind of row fits all of them; empty if none does."""
    for makes, reader in _READERS.items():
        kinds = [kind for kind in FORMATS.values() if kind.makes is makes]
        if makes is PromptRow and not all("prompt" in record for record in seen):
            continue
        if all(any(kind.detected(record) is not None for kind in kinds) for record in seen):
            return reader
    return ""


def _prompts_of(seen: Records) -> str:
    """How the prompts of pairs without a column of prompts are read; empty for other records."""
    for name, kind in FORMATS.items():
        found = kind.detected(seen[0]) if seen and kind.makes is PreferenceRow else None
        if found is not None:
            values = {f.name: (getattr(found, f.name), f.default) for f in fields(kind)}
            named = {n: str(v) for n, (v, usual) in values.items() if v not in (None, usual)}
            return (
                ", and their prompts with prompts_of_pairs(load_preferences(…)) (temper run rlhf "
                f"with {_spelled(name, named)})"
            )
    return ""


def _suggested(wanted: Sequence[str], names: Sequence[str], seen: Records) -> tuple[str, str]:
    """The settings of the first format that reads one of the records so, or else those with the
    fewest unclear columns; if all are clear and none of them works, why the last one does not."""
    found = {name: _renamed(name, names, seen) for name in wanted if name in _SUGGESTED}
    unclear = {n: sum(c == _UNCLEAR for c in f.values()) for n, f in found.items()}
    faults = {n: _fault(n, f, seen) for n, f in found.items() if not unclear[n]}
    works = [n for n, fault in faults.items() if not fault]
    asks = sorted((n for n in found if unclear[n]), key=lambda n: (unclear[n], -len(found[n])))
    settings = next((_spelled(name, found[name]) for name in works + asks), "")
    return settings, next(reversed(faults.values()), "")


def _renamed(name: str, names: Sequence[str], seen: Records) -> dict[str, str]:
    """The fields of a format for columns with these names; NAME stands for an unclear column."""
    left = [name for name in names if re.fullmatch(r"[\w.-]+", name)]
    renamed = _sides(left, seen) if name == "preference" else {}
    left = [n for n in left if n not in renamed.values()]
    for asked in fields(FORMATS[name]):
        if asked.name in renamed or (field := str(asked.default)) not in _MEANT:
            continue
        column = _column(field, left)
        left = [n for n in left if n != column]
        if column != field:
            renamed[asked.name] = column
    thoughts = list(filter(THOUGHTS.search, left))
    if name == "completion" and len(thoughts) == 1:
        renamed["reasoning"] = thoughts[0]
    label = renamed.get("label", "label")
    if name == "unpaired" and all(is_number(record.get(label)) for record in seen):
        renamed["good"] = _VALUE
    if name == "ranked" and seen:
        renamed |= _of_completions(seen[0].get(renamed.get("completions", "completions")))
    return renamed


def _sides(names: Sequence[str], seen: Records) -> dict[str, str]:
    """The only two columns that differ in a number or letter, and the column that says which of the
    two is better; or the only column with lists of two texts."""
    pairs = (("a", "b"), ("A", "B"), ("1", "2"), ("0", "1"))
    sides = {
        (name, other)
        for name in names
        for one, two in pairs
        for at in re.finditer(rf"{one}(?=_|$)", name)
        if (other := name[: at.start()] + two + name[at.end() :]) in names
        and not name.startswith(("model", "score"))
    }
    if len(sides) == 1:
        ((first, second),) = sides
        judged = {"chosen": first, "rejected": second}
        if (better := _column("better", names)) == _UNCLEAR and (scores := _twos(seen, is_number)):
            scored = {"score_chosen": f"{scores}.0", "score_rejected": f"{scores}.1"}
            return judged | {"better": "scores", **scored}
        return judged | {"better": better, "first": _VALUE}
    two = _twos(seen, lambda value: isinstance(value, str))
    return {"chosen": f"{two}.0", "rejected": f"{two}.1"} if two else {}


def _twos(seen: Records, wanted: Callable[[Any], bool]) -> str:
    """The only column with lists of two such values; empty if there is none."""

    def holds(value: Any) -> bool:
        return is_list(value) and len(value) == 2 and all(map(wanted, value))

    found = [n for n in (seen[0] if seen else ()) if all(holds(record.get(n)) for record in seen)]
    return str(found[0]) if len(found) == 1 else ""


def _column(field: str, names: Sequence[str]) -> str:
    """The column that a field is probably called; NAME if that is unclear."""
    words = _MEANT[field]
    whole = [n for word in words for n in names if n.lower() == word]
    partly = [n for word in words for n in names if word in re.split("[^a-z]+", n.lower())]
    return next(iter(whole + partly), _UNCLEAR)


def _of_completions(listed: Any) -> dict[str, str]:
    """The fields of completions in a list."""
    if not is_list(listed) or not listed or not isinstance(listed[0], Mapping):
        return {"scores": _UNCLEAR}
    return {"text": _column("completion", list(map(str, listed[0]))), "score": _UNCLEAR}


def _spelled(name: str, renamed: Mapping[str, str]) -> str:
    """The settings to type."""
    listed = ", ".join(f"{name}: {column}" for name, column in renamed.items())
    return f"data.format={name}" + (f" 'data.fields={{{listed}}}'" if renamed else "")


def _fault(name: str, renamed: Mapping[str, str], seen: Records) -> str:
    """Why a format reads none of the records; empty if it reads one, or if there are none."""
    reader = FORMATS[name](**{n: "0" if said == _VALUE else said for n, said in renamed.items()})
    fault = ""
    for record in seen:
        try:
            reader.parse(record, "1")
        except MalformedRow as error:
            if error.reason not in CHOICES:
                fault = str(error)
                continue
        return ""
    return fault
