"""Samples: all answers to a prompt side by side, with their differences marked."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

from markupsafe import Markup, escape

from pipeline.base.text import clean
from pipeline.show.report.report_model import Story, steps_with
from pipeline.show.views import Text, Texts

MOST_SAMPLES = 8
"""The page shows so many at first, and others on a click."""
MOST_KEPT = 500
"""The page holds no more samples of one title: a browser takes long to open a page with many."""
MOST_WORDS = 600
"""Longer texts are not searched for differences."""
_LEAST_ALIKE = 0.25
"""Texts that are less similar are shown without marks: nearly every word would be marked."""
_MARKED = Markup("<mark>{}</mark>")
_SPACE = Markup('<i class="muted">only white space</i>')
_EMPTY = Markup('<i class="muted">empty</i>')


@dataclass(frozen=True)
class Answer:
    """One answer on the page.

    Attributes:
        marked: the answer, in which the words are marked that the first answer does not have.
    """

    by: str
    marked: Markup
    text: Text


@dataclass(frozen=True)
class Sample:
    row: str
    prompt: str
    answers: Sequence[Answer]


@dataclass(frozen=True)
class Samples:
    """The samples of a title: the first ones, others, and the number that the page leaves out."""

    title: str
    first: Sequence[Sample]
    more: Sequence[Sample]
    left_out: int


def samples(story: Story) -> Iterator[Samples]:
    """The samples of each title. A sample has all answers to one prompt."""
    groups: dict[str, dict[tuple[str, str], list[tuple[str, Text]]]] = {}
    for reported, view in steps_with(story.steps, Texts):
        for text in view.rows:
            rows = groups.setdefault(view.title, {})
            by = ", ".join(filter(None, (reported.label, text.by))) or reported.step
            rows.setdefault((text.row, text.prompt), []).append((by, text))
    for title, rows in groups.items():
        kept = islice(rows.items(), MOST_KEPT)
        found = [Sample(row, prompt, _answers(of)) for (row, prompt), of in kept]
        left_out = len(rows) - len(found)
        yield Samples(title, found[:MOST_SAMPLES], found[MOST_SAMPLES:], left_out)


def _answers(answers: Sequence[tuple[str, Text]]) -> list[Answer]:
    first = clean(answers[0][1].answer)
    return [Answer(by, difference(first, clean(text.answer)), text) for by, text in answers]


def difference(before: str, after: str) -> Markup:
    """``after``, in which words that are not in ``before`` are marked; without marks if the texts
    are too long or have too little in common. Of a text without visible characters, what it is."""
    if not after.strip():
        return _SPACE if after else _EMPTY
    old, new = _words(before), _words(after)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if old == new or max(len(old), len(new)) > MOST_WORDS or matcher.ratio() < _LEAST_ALIKE:
        return escape(after)
    parts = (
        escape(text) if tag == "equal" or not text.strip() else _MARKED.format(text)
        for tag, _, _, start, end in matcher.get_opcodes()
        if (text := "".join(new[start:end]))
    )
    return Markup("").join(parts)


def _words(text: str) -> list[str]:
    """Words with the space that follows them; joined, they give the text."""
    return re.findall(r"\s+|\w+\s*|[^\w\s]\s*", text)
