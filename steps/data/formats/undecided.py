"""What to type where the format of records is not plain."""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from steps.data.formats.by_name import FORMATS
from steps.data.records.conversations import THOUGHTS, dialogue, is_written_out, written_out
from steps.data.records.record_fields import are_texts, is_list, is_number
from steps.data.rows.reasons import CHOICES, MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, PromptRow, UnpairedRow
from steps.shared.execution_detail import execution_detail


@execution_detail
def undecided(
    where: str, found: list[str], seen: list[Mapping[str, Any]], wanted: list[str]
) -> str:
    """Why no single format of `wanted` is chosen for records, and the settings to type.

    Args:
        where: the name of the source.
        found: the formats that some of them fit.
        seen: the first records.
    """
    names = sorted({str(key) for record in seen for key in record})[:30]
    told = [n for n in names if seen and all(_is_told(record.get(n)) for record in seen)]
    suggested = _suggested(wanted, told if "chat" in wanted and told else names, seen)
    pairs = "preference" in wanted
    if not found and seen and all(map(_judges_steps, seen)):
        return f"{where}: {_STEPS_JUDGED}"
    cannot = f"{where}: cannot tell the format of its rows"
    if not found and (spelled := _written_out(seen)):
        return f"{where}: {spelled.detail}"
    listed = f"their fields: {', '.join(_shortened(name) for name in names) or 'none'}"
    if not found and any(map(_is_cell, names)):
        return f"{cannot} ({listed}); a table's first line must name its columns"
    if not found and (spaced := [name for name in names if name != name.strip()]):
        return (
            f"{cannot}: the names {', '.join(map(repr, spaced))} of its columns begin or end with "
            "a space; take the spaces out"
        )
    if hint := _hint(names, seen) if pairs else _tree_hint(names):
        return f"{cannot} ({listed}){hint}"
    if (pairs or "unpaired" in wanted) and not found and (rated := _rated(seen)):
        how = "read them with load_unpaired (temper run kto) and " if pairs else "name them: "
        return f"{where}: each of its rows holds one response with a verdict; {how}{rated}"
    if not found and "unpaired" in wanted and (unread := _unread_label(seen)):
        return f"{where}: {unread}"
    if not found and (not suggested or _UNCLEAR in suggested) and (others := _made_by(seen)):
        asked = _prompts_of(seen) if "prompt" in wanted else ""
        return (
            f"{where}: no format fits its rows as they are read here, but they are {others}{asked}"
        )
    if not suggested:
        return f"{cannot} ({listed}), and no settings by their names read them; {_ANEW}"
    what = f"the first rows fit {' and '.join(sorted(set(found)))}" if found else "no format fits"
    unclear = "NAME stands for a column of yours; if no column holds it"
    return (
        f"{cannot} ({what}; {listed}); name it, and the fields whose names differ from its own: "
        f"{suggested} (formats: {', '.join(wanted)})"
        + (f"; {unclear}, {_ANEW}" if _UNCLEAR in suggested else "")
    )


_LONGEST_NAME = 60


def _is_cell(name: str) -> bool:
    """Whether a column's name is a cell of a table without a header: it is long, or a sentence."""
    return len(name) > _LONGEST_NAME or name.endswith((".", "!"))


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


_ANEW = (
    "write the rows anew in one of the formats, with a small script, or a step of your own as in "
    "docs/howto/own_step.md (docs/data.md has the formats)"
)


def _written_out(seen: list[Mapping[str, Any]]) -> MalformedRow | None:
    """What is wrong with the first column that holds messages as Python writes them."""
    columns = ((name, value) for record in seen for name, value in record.items())
    return next((written_out(v, str(n)) for n, v in columns if is_written_out(v)), None)


def _is_told(value: Any) -> bool:
    """Whether a value is a text with the turns of a dialogue."""
    try:
        return isinstance(value, str) and len(dialogue(value, "")) > 1
    except MalformedRow as error:
        return error.reason == "dialogue in one string"


_STEPS_JUDGED = (
    "each of its rows has labels for the steps of one answer, for a process reward model, which "
    "Temper does not train; join the steps to one text, give it one label (true if all are right), "
    "and read them with load_unpaired (temper run kto)"
)


def _judges_steps(record: Mapping[str, Any]) -> bool:
    """Whether a record has labels for the steps of an answer (PRM800K, Math-Shepherd, …)."""
    label = record.get("label", record.get("labels"))
    steps = record.get("steps", record.get("completions"))
    if isinstance(label, Mapping):
        return "steps" in label
    if not is_list(steps):  # a mark ends each step in Math-Shepherd
        return isinstance(label, str) and "ки" in str(record.get("input"))
    rated = (isinstance(step, Mapping) and {"label", "rating"} & step.keys() for step in steps)
    return is_list(label) or ("steps" in record and (label is not None or all(rated)))


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


def _made_by(seen: list[Mapping[str, Any]]) -> str:
    """What the records are if one kind of row fits all of them; empty if none does."""
    for makes, reader in _READERS.items():
        kinds = [kind for kind in FORMATS.values() if kind.makes is makes]
        if makes is PromptRow and not all("prompt" in record for record in seen):
            continue
        if all(any(kind.detected(record) is not None for kind in kinds) for record in seen):
            return reader
    return ""


def _prompts_of(seen: list[Mapping[str, Any]]) -> str:
    """How the prompts of pairs without a column of prompts are read; empty for other records."""
    for name, kind in FORMATS.items():
        found = [kind.detected(record) for record in seen] if kind.makes is PreferenceRow else []
        if found and found[0] is not None and None not in found:
            values = {f.name: getattr(found[0], f.name) for f in fields(kind)}
            usual = {f.name: f.default for f in fields(kind)}
            named = {n: str(v) for n, v in values.items() if v is not None and v != usual[n]}
            return (
                ", and their prompts with prompts_of_pairs(load_preferences(…)) (temper run rlhf "
                f"with {_spelled(name, named)})"
            )
    return ""


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
}  # fmt: skip
"""Fields of formats, with names that data sets often use for them."""


def _renamed(name: str, names: list[str], seen: list[Mapping[str, Any]]) -> dict[str, str]:
    """The fields of a format for columns with these names; NAME stands for an unclear column."""
    renamed: dict[str, str] = {}
    left = [name for name in names if re.fullmatch(r"[\w.-]+", name)]
    for asked in fields(FORMATS[name]):
        if (field := str(asked.default)) not in _MEANT:
            continue
        column = _column(field, left)
        left = [n for n in left if n != column]
        if column != field:
            renamed[asked.name] = column
    thoughts = list(filter(THOUGHTS.search, left))
    if name == "completion" and len(thoughts) == 1:
        renamed["reasoning"] = thoughts[0]
    if name == "ranked" and seen:
        renamed |= _of_completions(seen[0].get(renamed.get("completions", "completions")))
    return renamed


def _spelled(name: str, renamed: Mapping[str, str]) -> str:
    """The settings to type."""
    listed = ", ".join(f"{name}: {column}" for name, column in renamed.items())
    return f"data.format={name}" + (f" 'data.fields={{{listed}}}'" if renamed else "")


def _of_completions(listed: Any) -> dict[str, str]:
    """The fields of completions in a list; COLUMN stands for that with their scores."""
    if not is_list(listed) or not listed or not isinstance(listed[0], Mapping):
        return {"scores": "COLUMN"}
    return {"text": _column("completion", list(map(str, listed[0]))), "score": "COLUMN"}


def _suggested(wanted: list[str], names: list[str], seen: list[Mapping[str, Any]]) -> str:
    """The settings of the first format that reads one of the records so, or else those with the
    fewest unclear columns; empty if all are clear and none of them works."""
    found = {name: _renamed(name, names, seen) for name in wanted if name in _SUGGESTED}
    unclear = {n: sum(c in ("NAME", "COLUMN") for c in f.values()) for n, f in found.items()}
    works = [n for n, f in found.items() if not unclear[n] and _reads(n, f, seen)]
    asks = sorted((n for n in found if unclear[n]), key=lambda n: (unclear[n], -len(found[n])))
    return next((_spelled(name, found[name]) for name in works + asks), "")


def _reads(name: str, renamed: Mapping[str, str], seen: list[Mapping[str, Any]]) -> bool:
    """Whether a format reads at least one of the records, if there are any."""
    reader = FORMATS[name](**renamed)
    for record in seen:
        try:
            reader.parse(record, "1")
        except MalformedRow as error:
            if error.reason not in CHOICES:
                continue
        return True
    return not seen


_UNCLEAR = ": NAME"
_SUGGESTED = ("preference", "ranked", "chat", "completion", "prompt", "unpaired", "text")


def _hint(names: list[str], seen: list[Mapping[str, Any]]) -> str:
    """A hint about columns of pairs that are not detected automatically."""
    if len(names) == 1 and (between := re.search("[;|\t]", names[0])):
        return (
            f"; its columns are parted by {between[0]!r}: write it with commas, or as .tsv by tabs"
        )
    if len(sides := [(a, b) for a in names for b in names if _are_sides(a, b)]) == 1:
        return (
            "; where another column says which of the two is better: "
            f"{_spelled('preference', _judged(names, *sides[0], seen))}"
        )
    if "full_chosen" in names:
        return (
            "; chosen and rejected are single steps here, full_chosen and full_rejected answers: "
            f"{_spelled('preference', {'chosen': 'full_chosen', 'rejected': 'full_rejected'})}"
        )
    if "initial_reason_steps" in names:
        return "; chosen and rejected are single steps here, after initial_reason_steps"
    listed = {n: [record.get(n) for record in seen] for n in names}
    twos = [n for n in names if seen and all(are_texts(v) and len(v) == 2 for v in listed[n])]
    lists = [n for n in names if any(map(is_list, listed[n]))]
    if len(twos) == 1 and lists == twos:
        asked = _column("prompt", [name for name in names if name != twos[0]])
        named = {"prompt": asked, "chosen": f"{twos[0]}.0", "rejected": f"{twos[0]}.1"}
        said = f"; if the first of the two texts in {twos[0]} is the better"
        return f"{said}: {_spelled('preference', named)}"
    return _tree_hint(names)


def _tree_hint(names: list[str]) -> str:
    if {"message_id", "parent_id"} <= set(names):
        return (
            "; each row is one message of a tree, which is in several rows; read a file with one "
            "tree a row (in OASST: *.trees.jsonl.gz)"
        )
    return ""


_VERDICT = re.compile("better|winner|prefer|choice|label|verdict|safer|best")


def _judged(
    names: list[str], first: str, second: str, seen: list[Mapping[str, Any]]
) -> dict[str, str]:
    """The fields of two responses of which another column says which is better, or their scores."""
    left = [name for name in names if name not in (first, second)]
    verdicts = [name for name in left if _VERDICT.search(name.lower())]
    better = verdicts[0] if len(verdicts) == 1 else "COLUMN"
    judged = {"chosen": first, "rejected": second, "better": better}
    scores = [name for name in left if all(_are_two_numbers(r.get(name)) for r in seen)]
    if len(scores) == 1 and better == "COLUMN":
        judged["better"] = "scores"
        judged |= {"score_chosen": f"{scores[0]}.0", "score_rejected": f"{scores[0]}.1"}
    beside = [name for name in left if name.startswith(f"{first.partition('_')[0]}_")]
    asked = _column("prompt", beside)
    asked = _column("prompt", left) if asked == "NAME" else asked
    return judged if asked == "prompt" else {"prompt": asked, **judged}


def _column(field: str, names: list[str]) -> str:
    """The column that a field is probably called; NAME if that is unclear."""
    words = _MEANT[field]
    whole = [n for word in words for n in names if n.lower() == word]
    partly = [n for word in words for n in names if word in re.split("[^a-z]+", n.lower())]
    return next(iter(whole + partly), "NAME")


def _rated(seen: list[Mapping[str, Any]]) -> str:
    """The settings for single responses with a rating, if the records are that."""
    names = sorted({str(key) for record in seen for key in record})
    values = {n: [record.get(n) for record in seen] for n in names}
    numbers = [n for n in names if all(isinstance(v, bool) or is_number(v) for v in values[n])]
    texts = [n for n in names if n not in numbers]
    rating, answer = _column("label", numbers), _column("completion", texts)
    asked = _column("prompt", [name for name in texts if name != answer])
    if "NAME" in (rating, answer, asked) or not seen:
        return ""
    named = {} if asked == "prompt" else {"prompt": asked}
    named["completion"] = answer
    if all(isinstance(value, bool) for value in values[rating]):
        return _spelled("unpaired", named | {"label": rating})
    unpaired = _spelled("unpaired", named | {"label": rating, "good": "NUMBER"})
    return (
        f"{unpaired}, where NUMBER is the lowest rating of a good response; if rows of one prompt "
        f"are adjacent, they make pairs: {_spelled('rated', named | {'score': rating})}"
    )


def _unread_label(seen: list[Mapping[str, Any]]) -> str:
    """What is wrong with the label of a record that has all fields of a judged response."""
    for record in seen:
        try:
            FORMATS["unpaired"]().parse(record, "1")
        except MalformedRow as error:
            if error.reason in ("label not a boolean", "label is a rating"):
                return str(error)
    return ""


def _are_two_numbers(value: Any) -> bool:
    return is_list(value) and len(value) == 2 and all(map(is_number, value))


def _are_sides(one: str, other: str) -> bool:
    """Whether two columns differ only in that one is the first and the other the second."""
    if one.startswith(("model", "score")):
        return False
    sides = (("a", "b"), ("A", "B"), ("1", "2"), ("0", "1"), ("left", "right"))
    return any(
        one[: at.start()] + second + one[at.end() :] == other
        for first, second in sides
        for at in re.finditer(rf"{first}(?=_|$)", one)
    )
