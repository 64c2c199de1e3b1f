"""``select_answers``: the completions of each prompt that a checker accepts, as conversations."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline import Metrics, Output, TemperError, step
from steps.checking.boxed import Boxed
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, require_checkable
from steps.data.rows.completions import read_completions
from steps.data.rows.ledger import Entry
from steps.data.rows.parquet import write_rows
from steps.data.rows.reasons import Reason
from steps.data.rows.rows import ConversationRow
from steps.kinds import Completions, Conversations
from steps.shared.counts import share_of


@step(makes=Conversations)
def select_answers(
    out: Output,
    completions: Completions,
    checker: Checker | None = Boxed(),
    config: JudgeConfig = JudgeConfig(),
    per_prompt: int | None = 1,
) -> Metrics:
    """Write ``conversations-00000.parquet``, for ``tokenize_conversations`` and ``train_sft``, and
    ``ledger.parquet``, which says of each completion whether it is used, or why not.

    Args:
        checker: what accepts a completion; null: all are accepted that ended and are no repetition.
        per_prompt: the most completions of a prompt, the first of those accepted; null: all.

    Raises:
        TemperError: none is accepted.
        ValueError: more completions than ``config.most_without`` have no verdict, or a record is
            not as `read_completions` reads it.
    """
    from steps.data.rows.tables import CONVERSATIONS, LEDGER, to_record

    if per_prompt is not None and per_prompt < 1:
        raise TemperError(f"per_prompt must be 1 or more, or null, got {per_prompt}")
    records = read_completions(completions, "prompt", "finish")
    usable = [(record, *found) for record in records for found in _usable(record)]
    asked = [
        Answered(text, record.get("answer"), record["prompt"])
        for record, _, text, fault in usable
        if fault is None
    ]
    verdicts = iter(_verdicts(out, records, asked, checker, config))
    rows, entries, taken = list[ConversationRow](), list[Entry](), Counter[Any]()
    for record, k, text, fault in usable:
        name, detail = f"{record['row']}/{k}", None
        if fault is None:
            judgement = next(verdicts)
            is_wanted = per_prompt is None or taken[record["row"]] < per_prompt
            if judgement.verdict is Verdict.none:
                fault, detail = "no reward", judgement.reason
            elif judgement.verdict is Verdict.wrong or not is_wanted:
                fault, detail = "not among the best", f"it is {judgement.verdict}"
        if fault is None:
            taken[record["row"]] += 1
            rows.append(_conversation(record, name, text))
        entries.append(
            Entry("", "completions", name, "dropped" if fault else "kept", fault, detail)
        )
    if not rows:
        raise TemperError(
            f"none of {len(entries)} completions is accepted ({len(asked)} ended and are no "
            "repetitions); sample more of them, let them be longer, or choose another checker"
        )
    write_rows(out.path / "conversations-00000.parquet", CONVERSATIONS, map(to_record, rows))
    write_rows(out.path / "ledger.parquet", LEDGER, map(vars, entries))
    reasons = Counter(entry.reason for entry in entries if entry.reason)
    return {
        "demonstrations": len(rows),
        "prompts_used": len(taken),
        "prompts": len(records),
        "completions": len(entries),
        "dropped_by_reason": dict(reasons),
    }


def _usable(record: Mapping[str, Any]) -> Iterator[tuple[int, str, Reason | None]]:
    """Of each completion its number, its text, and why it cannot be used."""
    seen = set[str]()
    for k, (text, finish) in enumerate(zip(record["completions"], record["finish"], strict=True)):
        fault: Reason | None = None if text.strip() else "empty response"
        if text in seen:
            fault = "duplicate"
        if finish != "stop":
            fault = "cut"
        elif fault is None:
            seen.add(text)
        yield k, text, fault


def _verdicts(
    out: Output,
    records: list[dict[str, Any]],
    asked: list[Answered],
    checker: Checker | None,
    config: JudgeConfig,
) -> list[Judgement]:
    from steps.checking.judges import Judges

    if checker is None:
        return [Judgement(Verdict.right)] * len(asked)
    answers = {record["row"]: record.get("answer") for record in records}
    require_checkable(checker, answers, config.most_without)
    settings = (config.processes, config.time_limit, out.scratch / "verdicts", config.most_without)
    with Judges(checker, *settings) as judges:
        verdicts = judges.judge(asked, out.progress)
    without = [judgement.reason for judgement in verdicts if judgement.verdict is Verdict.none]
    if len(without) > share_of(config.most_without, len(asked)):
        raise ValueError(
            f"{len(without)} of {len(asked)} completions have no verdict, the first because: "
            f"{without[0]}; mend the checker or the rows, or raise most_without"
        )
    return verdicts


def _conversation(record: Mapping[str, Any], name: str, text: str) -> ConversationRow:
    return ConversationRow(
        name,
        (*record["prompt"], {"role": "assistant", "content": text}),
        tuple(record["tools"]) if record.get("tools") else None,
        record.get("template_kwargs"),
    )
