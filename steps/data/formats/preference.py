"""Preference pairs: two conversations that share a prompt, in several common formats.

`chosen` and `rejected` are each

* a list of messages that starts with the prompt (UltraFeedback binarized, Cui et al. 2023; Tulu 3;
  Skywork), with or without a `prompt` field of its own;
* what comes after `prompt`: a list of turns, one message object, or a plain string; `prompt` is a
  string (one user message) or a list of messages (TRL, LLaMA-Factory, axolotl, OpenAI);
* without `prompt`: one side the whole conversation, the other another answer to its last question
  (ms-swift).

The prompt is the common beginning of both sides. They differ from an assistant message on, after
which a side may have further turns.

If a column says which of two responses is better, `better` names that column; `chosen` then names
the first response and `rejected` the second. The column's values mean

* with `first` set: the value `first` means the first response, and the only other value that the
  column has the second; or, with `second` also set, that value, and all others a tie. Case does not
  matter, and true and false equal 1 and 0;
* with `first=negative` (or `positive`): a number of that sign means the first response, a number of
  the other sign the second, and zero a tie;
* without `first`: the name of either column, `model_a`, `A` and similar values, or the value of the
  column `model_a` mean the first response, and so on for the second. Numbers are refused, because
  data sets disagree on the meaning of 0 and 1.

Words such as `tie`, `both_bad` and `neither` always mean a tie, and so does the column that `tie`
names, where it is true or 1.

`better=scores` prefers the response with the higher score.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from steps.data.formats import ChatRecords
from steps.data.formats.layouts import pair_layout
from steps.data.records.conversations import with_system
from steps.data.records.pair_sides import whole_sides
from steps.data.records.record_fields import (
    are_texts,
    for_template,
    found,
    is_number,
    scores_of,
    show,
    weight,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Messages, PreferenceRow
from steps.data.rows.turn_order import parted

BY_SCORE = "scores"
_FIRST = re.compile(r"(?:model|response|answer|side|output)?[ _]?(?:a|first)")
_SECOND = re.compile(r"(?:model|response|answer|side|output)?[ _]?(?:b|second)")
_TIES = {"tie", "ties", "tied", "bothbad", "both", "neither", "equal", "equally", "same", "draw"}
_MODELS = (("model_a", "model_b"), ("model_1", "model_2"))
_SIGNS = {"negative": -1.0, "positive": 1.0}
_BOOLEANS = {"true": "1", "false": "0"}
_WHOLE = re.compile(r"([+-]?\d{1,9})\.0{1,9}")


@dataclass(frozen=True)
class PreferenceFormat(ChatRecords):
    """Names of fields. `system_field` holds a system prompt; `system` is one for rows without it.

    A record must have `chosen` and `rejected`, and also `weight` and `better` if these are set.
    `input` is text that is appended to the prompt after a line break (as in Alpaca).
    """

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    input: str | None = None
    better: str | None = None
    first: str | None = None
    second: str | None = None
    tie: str | None = None
    score_chosen: str = "score_chosen"
    score_rejected: str = "score_rejected"
    weight: str | None = None

    makes: ClassVar[type] = PreferenceRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        layout = pair_layout(record)
        return None if layout is None else cls(**layout)

    def parse(self, record: Mapping[str, Any], row: str) -> PreferenceRow:
        names = self.prompt, self.chosen, self.rejected
        chosen, rejected = whole_sides(record, names, self.input, self.system_field)
        scores = scores_of(record, (self.score_chosen, self.score_rejected))
        pair = paired(
            row,
            chosen,
            rejected,
            names=(self.chosen, self.rejected),
            system=self.system,
            turns=self.turns,
            **for_template(record, self),
            score_chosen=scores[0],
            score_rejected=scores[1],
            weight=weight(record, self.weight) if self.weight else None,
        )
        return pair if self._first_is_better(record, pair) else _swapped(pair)

    def _first_is_better(self, record: Mapping[str, Any], pair: PreferenceRow) -> bool:
        """Whether the side called chosen is the better one.

        Raises:
            MalformedRow: it is a tie, or the verdict is missing or has an unknown value.
        """
        if self.better is None:
            return True
        if self.better == BY_SCORE:
            one, other = pair.score_chosen, pair.score_rejected
            if one is None or other is None:
                raise MalformedRow("verdict not understood", "a score is missing")
            verdict, what = one - other, f"both have the score {one}"
        else:
            value = found(record, self.better)
            verdict, what = self._verdict(value, record), f"{self.better} is {show(value)}"
            if self.tie is not None and _spelled(found(record, self.tie)) == "1":
                verdict, what = 0.0, f"{self.tie} is {show(found(record, self.tie))}"
        if not verdict:
            raise MalformedRow("tie", what)
        return verdict > 0

    def other_verdict(self, record: Mapping[str, Any]) -> str | None:
        """The value that means the second side only because it is not `first`, if it is one."""
        if self.first in _SIGNS or self.second is not None:
            return None
        value = None if self.better in (None, BY_SCORE) else found(record, self.better)
        said = "" if value is None else _spelled(value)
        return None if said in ("", _spelled(self.first)) or _is_tie(said) else said

    def _verdict(self, value: Any, record: Mapping[str, Any]) -> float:
        """Above zero for the first side, below for the second, zero for neither."""
        if value is None or (said := _spelled(value)) in ("", "nan"):
            raise MalformedRow("verdict not understood", f"{self.better} is missing")
        if self.first in _SIGNS and said not in _SIGNS:
            if is_number(said):
                return _SIGNS[self.first] * float(said)
            if not _is_tie(said):
                raise MalformedRow(
                    "verdict not understood", f"{self.better} is {show(value)}, expected a number"
                )
            return 0.0
        if self.first is not None:
            if said == _spelled(self.first):
                return 1.0
            other = self.second is None or said == _spelled(self.second)
            return -1.0 if other and not _is_tie(said) else 0.0
        if _is_tie(said):
            return 0.0
        named = [(_FIRST, 1.0), (_SECOND, -1.0)]
        named += [(re.compile(re.escape(f.lower())), v) for f, v in self._names(record)]
        if len(verdicts := {v for pattern, v in named if pattern.fullmatch(said)}) == 1:
            return verdicts.pop()
        raise MalformedRow(
            "verdict not understood",
            f"{self.better} is {show(value)}; say with data.fields.first which value means that "
            f"{self.chosen} is the better one: a value, or negative or positive",
        )

    def _names(self, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        """What else a verdict may call a side: its column, and the model that wrote it."""
        models = [[record.get(column) for column in columns] for columns in _MODELS]
        for names in ((self.chosen, self.rejected), *filter(are_texts, models)):
            yield from zip(names, (1.0, -1.0), strict=True)


def _spelled(value: Any) -> str:
    """A verdict as text: without case, and 1 for true and 1.0."""
    said = str(value).strip().lower()
    return _WHOLE.sub(r"\1", _BOOLEANS.get(said, said))


def _is_tie(said: str) -> bool:
    return not _TIES.isdisjoint(re.split("[^a-z]+", said))


def paired(
    row: str,
    chosen: Messages,
    rejected: Messages,
    names: tuple[str, str] = ("chosen", "rejected"),
    system: str | None = None,
    turns: str = "alternating",
    **other: Any,
) -> PreferenceRow:
    """Make a pair from two whole conversations; raises as `parted` does."""
    prompt, chosen, rejected = parted(chosen, rejected, names, turns)
    prompt = prompt if system is None else with_system(prompt, system)
    return PreferenceRow(row, prompt, chosen, rejected, **other)


def _swapped(pair: PreferenceRow) -> PreferenceRow:
    return replace(
        pair,
        chosen=pair.rejected,
        rejected=pair.chosen,
        score_chosen=pair.score_rejected,
        score_rejected=pair.score_chosen,
    )
