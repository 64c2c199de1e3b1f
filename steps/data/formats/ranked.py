"""Several completions of one prompt, with scores or ranks: each record becomes pairs.

`completions` is a list of texts, or of objects with a `text` and a `score` (higher is better) or a
`rank` (1 is best), in fields of these names if no others are given. `scores` may instead name a
parallel list of scores, `rank` one of ranks, and `best` a column with the index of the best
completion, from 0 on.
Completions with equal scores make no pair. `pairs` selects the pairs:

* `best_vs_worst`: the best with the worst completion of another text;
* `adjacent`: each completion with the next lower one;
* `all`: each completion with every lower one.

The rows have the labels `RECORD#1`, `RECORD#2` and so on, the widest margin first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, ClassVar, Self

from steps.data.formats import ChatRecords
from steps.data.formats.layouts import ranked_layout
from steps.data.formats.preference import paired
from steps.data.records.conversations import (
    dialogue,
    is_message,
    prompt_messages,
    read_system,
    response_messages,
    with_system,
)
from steps.data.records.record_fields import for_template, found, is_list, score, show
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Messages, PreferenceRow

Scored = tuple[Messages, float]
"""A completion and its score."""

PAIRS = ("best_vs_worst", "adjacent", "all")


@dataclass(frozen=True)
class RankedFormat(ChatRecords):
    """Names of fields: of the record, and (`text`, `score`, `rank`) of its completions."""

    prompt: str = "prompt"
    completions: str = "completions"
    scores: str | None = None
    text: str | None = None
    score: str | None = None
    rank: str | None = None
    best: str | None = None
    pairs: str = PAIRS[0]

    makes: ClassVar[type] = PreferenceRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        layout = ranked_layout(record)
        return None if layout is None else cls(**layout)

    def parse(self, record: Mapping[str, Any], row: str) -> list[PreferenceRow]:
        asked = with_system(self._prompt(record), read_system(record, self.system_field))
        scored = list(self._scored(record))
        chosen = pairs_of(scored, self.pairs)
        if not chosen:
            raise MalformedRow(
                "tie", f"no two of {len(scored)} completions differ in score and text"
            )
        shared: dict[str, Any] = {
            "system": self.system,
            "turns": self.turns,
            **for_template(record, self),
        }
        return [
            paired(
                f"{row}#{number}",
                (*asked, *better),
                (*asked, *worse),
                (f"{self.completions} (better)", f"{self.completions} (worse)"),
                score_chosen=high,
                score_rejected=low,
                **shared,
            )
            for number, ((better, high), (worse, low)) in enumerate(chosen, start=1)
        ]

    def _prompt(self, record: Mapping[str, Any]) -> Messages:
        value = found(record, self.prompt)
        if isinstance(value, str) and (turns := dialogue(value, self.prompt)):
            return turns if turns[-1]["content"] else turns[:-1]
        return prompt_messages(value, self.prompt)

    def _scored(self, record: Mapping[str, Any]) -> Iterator[tuple[Messages, float]]:
        listed = found(record, self.completions)
        if not is_list(listed) or not listed:
            raise MalformedRow("no completion", f"{self.completions} is {show(listed)}")
        parallel = self.scores
        if parallel is None and self.rank is not None and not isinstance(listed[0], Mapping):
            parallel = self.rank
        best = None if self.best is None else score(record, self.best)
        if self.best is not None and best not in range(len(listed)):
            raise MalformedRow("verdict not understood", f"{self.best} is no index of a completion")
        sign = 1.0 if parallel == self.scores else -1.0
        beside = None if parallel is None else found(record, parallel)
        if parallel is not None and (not is_list(beside) or len(beside) != len(listed)):
            raise MalformedRow(
                "score not a number",
                f"{parallel} does not hold a number for each of {len(listed)} completions",
            )
        for index, item in enumerate(listed):
            name = f"{self.completions}[{index}]"
            said = self._said(item, name)
            if best is not None:
                value = float(index == best)
            elif beside is not None:
                value = score({name: beside[index]}, name)
                value = None if value is None else sign * value
            else:
                value = self._value(item, name) if isinstance(item, Mapping) else None
            if value is None:
                if beside is not None:
                    continue  # in distilabel's data, null means that a judge gave no rating
                raise MalformedRow("score not a number", f"{name} has no score")
            yield response_messages(said, name, "no completion"), value

    def _said(self, item: Any, name: str) -> Any:
        """What a completion says: its text, or a message."""
        if not isinstance(item, Mapping) or (self.text is None and is_message(item)):
            return item
        if self.text is None and "text" not in item:
            raise MalformedRow(
                "content not a string",
                f"{name} has no text; its fields are {_listed(item)}: name that of the text, as in "
                "data.fields={text: …}",
            )
        return item.get(self.text or "text")

    def _value(self, item: Mapping[str, Any], name: str) -> float | None:
        """The score of a completion, higher for a better one."""
        usual = self.score is None and self.rank is None
        if usual and "score" not in item and "rank" not in item:
            raise MalformedRow(
                "score not a number",
                f"{name} has no score; its fields are {_listed(item)}: name that of the score, as "
                "in data.fields={score: …}, or of the rank",
            )
        if self.rank is not None or (usual and "score" not in item):
            rank = score(item, self.rank or "rank")
            return None if rank is None else 0.0 - rank
        return score(item, self.score or "score")


def _listed(item: Mapping[str, Any]) -> str:
    return ", ".join(map(str, item))


def pairs_of(scored: Iterable[Scored], pairs: str) -> list[tuple[Scored, Scored]]:
    """The pairs of completions that `pairs` selects, better and worse, the widest margin first."""
    scored = sorted(scored, key=lambda one: -one[1])
    if pairs == "adjacent":
        made = pairwise(scored)
    elif pairs == "all":
        made = combinations(scored, 2)
    else:
        made = _extremes(scored)
    different = [(a, b) for a, b in made if a[1] > b[1] and a[0] != b[0]]
    different.sort(key=lambda pair: pair[1][1] - pair[0][1])
    return different[:1] if pairs == "best_vs_worst" else different


def _extremes(scored: Sequence[Scored]) -> Iterator[tuple[Scored, Scored]]:
    """Of completions from the best to the worst: the best with the worst of another text, and the
    best of another text with the worst."""
    for one in scored[:1]:
        yield one, next((other for other in reversed(scored) if other[0] != one[0]), one)
    for one in scored[-1:]:
        yield next((other for other in scored if other[0] != one[0]), one), one
