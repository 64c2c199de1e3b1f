"""Samples: all answers to a prompt side by side, with what differs between them marked."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from markupsafe import Markup, escape

from pipeline.show.report.story import Story, told_with
from pipeline.show.views import Text, Texts
from pipeline.text import clean

MOST_SAMPLES = 8
"""Shown at once; the rest are a click away."""
MOST_WORDS = 600
"""Of a text in which differences are looked for."""
_LEAST_ALIKE = 0.25
"""Of two texts that have less in common, nearly every word would be marked."""
_MARKED = Markup("<mark>{}</mark>")


@dataclass(frozen=True)
class Answer:
    """One answer as it is shown.

    Attributes:
        marked: the answer, with the words marked that the first answer to the prompt lacks.
    """

    by: str
    marked: Markup
    text: Text


@dataclass(frozen=True)
class Sample:
    row: str
    prompt: str
    answers: Sequence[Answer]


def samples(story: Story) -> Iterator[tuple[str, Sequence[Sample], Sequence[Sample]]]:
    """Texts of one title, all answers to a prompt together: the first, and the rest."""
    groups: dict[str, dict[tuple[str, str], list[tuple[str, Text]]]] = {}
    for told, view in told_with(story.steps, Texts):
        for text in view.rows:
            rows = groups.setdefault(view.title, {})
            by = ", ".join(filter(None, (told.label, text.by))) or told.step
            rows.setdefault((text.row, text.prompt), []).append((by, text))
    for title, rows in groups.items():
        found = [Sample(row, prompt, _answers(of)) for (row, prompt), of in rows.items()]
        yield title, found[:MOST_SAMPLES], found[MOST_SAMPLES:]


def _answers(answers: Sequence[tuple[str, Text]]) -> list[Answer]:
    first = clean(answers[0][1].answer)
    return [Answer(by, difference(first, clean(text.answer)), text) for by, text in answers]


def difference(before: str, after: str) -> Markup:
    """``after``, with the words marked that are not in ``before``; without marks if nearly all of
    them would be."""
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
    """Words with the space that follows them; put together, they are the text."""
    return re.findall(r"\s+|\w+\s*|[^\w\s]\s*", text)
