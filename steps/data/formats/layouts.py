"""The field names of popular data sets, by which their format is detected.

A layout fits only if all its columns exist and their names are unambiguous. If the same values mean
different things in different data sets (a verdict of 0 or 1), the layout requires the exact names
of one data set. Columns with a single step of an answer are never used as answers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from steps.data.records.conversations import is_dialogue, said_in, unpacked
from steps.data.records.one_message import is_bare
from steps.data.records.record_fields import is_number

Layout = dict[str, str]

_STEPS = ("initial_reason_steps", "full_chosen", "full_rejected")
"""If a record has these columns, chosen and rejected are single steps of a solution (Step-DPO)."""


def _table(rows: str) -> tuple[Layout, ...]:
    """Layouts, one a line: the data set, a colon, and ``FIELD=COLUMN`` of each field."""
    lines = (line.partition(":")[2].split() for line in rows.splitlines())
    return tuple(dict(pair.split("=") for pair in line) for line in lines if line)


_SIDES = _table("""
    usual: chosen=chosen rejected=rejected
    OpenAI: chosen=preferred_output rejected=non_preferred_output
    When2Call: chosen=chosen_response rejected=rejected_response
    torchtune: chosen=chosen_conversations rejected=rejected_conversations
    several: chosen=response_chosen rejected=response_rejected
    several: chosen=accepted rejected=rejected
    Stack Exchange, paired: chosen=response_j rejected=response_k
    ms-swift: chosen=messages rejected=rejected_messages
    POVID: chosen=conversations rejected=rejected_conversations
    ms-swift, another last answer: chosen=messages rejected=rejected_response
""")
_HISTORIES = ("messages", "conversations", "conversation", "trajectory")
_QUESTIONS = ("prompt", "instruction", "question", "query", "input")

_JUDGED = _table("""
    SHP, 1 where the first is preferred: prompt=history chosen=human_ref_A rejected=human_ref_B \
        better=labels first=1 score_chosen=score_A score_rejected=score_B
    PKU-SafeRLHF, the number of the better: prompt=prompt chosen=response_0 rejected=response_1 \
        better=better_response_id first=0
    HelpSteer 3, below zero where the first is better: prompt=context chosen=response1 \
        rejected=response2 better=overall_preference first=negative
    HelpSteer 2's preferences, likewise: prompt=prompt chosen=response_1 rejected=response_2 \
        better=preference_strength first=negative
    WebGPT, the scores decide: prompt=question.full_text chosen=answer_0 rejected=answer_1 \
        better=scores score_chosen=score_0 score_rejected=score_1
    Chatbot Arena, whole conversations: chosen=conversation_a rejected=conversation_b better=winner
    Arena's preferences for judges: prompt=prompt chosen=response_a rejected=response_b \
        better=winner
    Arena's, with a column for each verdict: prompt=prompt chosen=response_a rejected=response_b \
        better=winner_model_a first=1 tie=winner_tie
    AlpacaFarm, the number of the better: prompt=instruction input=input chosen=output_1 \
        rejected=output_2 better=preference first=1 second=2
""")

_VALUES = ("better", "first", "second", "tie", "input")
"""Fields of layouts that a record may lack, or that name no column."""

_SCORES = _table("""
    usual: score_chosen=score_chosen score_rejected=score_rejected
    several: score_chosen=chosen_score score_rejected=rejected_score
    Tulu 3: score_chosen=chosen_rating score_rejected=rejected_rating
    several: score_chosen=rating_chosen score_rejected=rating_rejected
    Capybara: score_chosen=chosen-rating score_rejected=rejected-rating
    several: score_chosen=chosen_avg_rating score_rejected=rejected_avg_rating
""")

_COMPLETIONS = ("completions", "responses", "generations", "all_responses", "candidates")
_SCORED = ("scores", "ratings", "rewards", "rating")
"""Columns with texts, and beside them columns with a score of each."""

_RANKED = _table("""
    Nectar: prompt=prompt completions=answers text=answer rank=rank
    UltraFeedback: prompt=instruction completions=completions text=response score=overall_score
    summaries, the index of the better: prompt=info.post completions=summaries text=text best=choice
    usual: prompt=prompt completions=completions text=text score=score
    usual: prompt=prompt completions=responses text=text score=score
    usual: prompt=prompt completions=completions text=text rank=rank
    Stack Exchange: prompt=question completions=answers text=text score=pm_score
    NeMo RL: prompt=context completions=completions text=completion rank=rank
    Gemini: prompt=contents completions=completions text=completion score=score
""")
_ASKED = ("prompt", "instruction", "question", "query")
_OF_A_COMPLETION = ("text", "score", "rank")


def pair_layout(record: Mapping[str, Any]) -> Layout | None:
    """The names of the fields of a pair, or `None`."""
    if any(record.get(name) is not None for name in _STEPS):
        return None
    there = [[record.get(column) is not None for column in side.values()] for side in _SIDES]
    if (whole := next((s for s, t in zip(_SIDES, there, strict=True) if all(t)), None)) is not None:
        return _with_prompt(record, whole)
    if (judged := next((layout for layout in _JUDGED if _has(record, layout)), None)) is not None:
        return judged
    half = next((s for s, t in zip(_SIDES[:3], there[:3], strict=True) if any(t)), None)
    return None if half is None else _with_prompt(record, half)


def ranked_layout(record: Mapping[str, Any]) -> Layout | None:
    """The names of the fields of several completions with scores or ranks, or `None`."""
    for layout in _RANKED:
        listed = record.get(layout["completions"])
        asked = record.get(layout["prompt"].partition(".")[0])
        if not isinstance(listed, list) or not listed or asked is None:
            continue
        keys = {layout[name] for name in _OF_A_COMPLETION if name in layout}
        judged = "best" not in layout or record.get(layout["best"]) is not None
        if isinstance(listed[0], Mapping) and keys <= listed[0].keys() and judged:
            return layout
    return None if pair_layout(record) else _scored_texts(record)


def _scored_texts(record: Mapping[str, Any]) -> Layout | None:
    """The names of a question, a list of texts and a list with a score of each, if clear."""
    asked = [name for name in _ASKED if record.get(name) is not None]
    texts = [name for name in _COMPLETIONS if _holds_only(record.get(name), _is_text)]
    scores = [name for name in _SCORED if _holds_only(record.get(name), is_number)]
    if not len(asked) == len(texts) == len(scores) == 1:
        return None
    return {"prompt": asked[0], "completions": texts[0], "scores": scores[0]}


def _holds_only(value: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a value is a list of such items, of which some may be missing."""
    there = [item for item in value if item is not None] if isinstance(value, list) else []
    return bool(there) and all(map(wanted, there))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _with_prompt(record: Mapping[str, Any], names: Layout) -> Layout | None:
    scores = (pair for pair in _SCORES if all(name in record for name in pair.values()))
    sides = [unpacked(said_in(record.get(column))) for column in names.values()]
    names = names | next(scores, {})
    asked = record.get("input")
    if isinstance(asked, Mapping) and asked.get("messages") is not None:
        return names | {"prompt": "input.messages", "tools": "input.tools"}
    if is_dialogue(prompt := record.get("prompt")):
        return None
    if prompt is not None or not all(map(is_bare, sides)):
        return names
    given = [name for name in _HISTORIES if isinstance(unpacked(record.get(name)), list)]
    if all(isinstance(side, str) for side in sides):
        given += [name for name in _QUESTIONS if isinstance(record.get(name), str)]
    if given == ["instruction", "input"] or given == ["instruction"]:
        return names | {"prompt": "instruction", "input": "input"}
    begins = isinstance(sides[0], list) and len(sides[0]) > 1  # a conversation that it begins
    if not given and (begins or isinstance(sides[0], Mapping)):
        return names
    return names | {"prompt": given[0]} if len(given) == 1 else None


def _has(record: Mapping[str, Any], layout: Layout) -> bool:
    columns = [value for name, value in layout.items() if name not in _VALUES]
    judged = layout["better"] == "scores" or layout["better"] in record
    return judged and all(column.partition(".")[0] in record for column in columns)
