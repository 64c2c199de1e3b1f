"""What a suite asks a model, and the answers: JSON records that no suite is needed to read.

A question is one of three:

    {"prompt": TEXT, "write": {"stop": [TEXT, …], "temperature": 0.0, "max_new_tokens": 256, …}}
    {"prompt": TEXT, "given": TEXT}      how likely is this text after the prompt?
    {"prompt": null, "given": TEXT}      how likely is this text by itself, in windows?

A prompt of chats is ``{"messages": [...], "open": true}``; with ``open``, the model begins its own
turn, and without, it goes on with the last one. Each question has an ``id``, which its content
determines. So an answer depends on its question alone, wherever in a task it is asked, and several
tasks that ask the same get one answer. Where a temperature makes answers differ, the id also has
the number of times that the question was asked before.

An answer has its question's ``id``, and ``text`` with ``finish`` and ``tokens``, or ``logp``,
``greedy`` (whether the text is what greedy decoding would write) and ``tokens``.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Question = dict[str, Any]
Answers = Mapping[str, Mapping[str, Any]]
"""Answers by the ids of their questions."""


def written(prompt: Any, settings: Mapping[str, Any]) -> Question:
    """A question whose answer the model writes.

    Raises:
        ValueError: a setting is not one of our sampler.
    """
    known = {"stop": [], "temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": None}
    if unknown := settings.keys() - known.keys():
        raise ValueError(f"a task samples with {', '.join(sorted(unknown))}, which cannot be set")
    asked = {**known, **{name: value for name, value in settings.items() if value is not None}}
    if not asked["temperature"]:
        asked |= {"top_p": 1.0, "top_k": 0}
    return {"prompt": prompt, "write": asked}


def given(prompt: Any, text: str) -> Question:
    """A question for the likelihood of a text after a prompt; after None, of the text alone."""
    return {"prompt": prompt, "given": text}


class Numbered:
    """Gives questions their ids, in the order in which they are asked."""

    def __init__(self) -> None:
        self._asked = Counter[str]()

    def id_of(self, question: Question) -> str:
        """The id of a question that is asked now."""
        content = json.dumps(question, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:20]
        if not question.get("write", {}).get("temperature"):
            return digest
        self._asked[digest] += 1
        return f"{digest}#{self._asked[digest] - 1}"


class Recorded:
    """The answers to a suite's questions, as the suite asks them again.

    Raises ValueError for a question that has no answer.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers, self._numbered = answers, Numbered()

    def __call__(self, question: Question) -> Mapping[str, Any]:
        answer = self._answers.get(self._numbered.id_of(question))
        if answer is None:
            raise ValueError(
                f"there is no answer to {str(question['prompt'])[-200:]!r}: the tasks ask other "
                "questions now than were answered, or questions that depend on earlier answers"
            )
        return answer


def with_ids(questions: Sequence[Question]) -> list[Question]:
    """Each question once, in their order, with its ``id``."""
    numbered = Numbered()
    return list({(q := {"id": numbered.id_of(one), **one})["id"]: q for one in questions}.values())
