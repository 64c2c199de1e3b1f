"""Small projects in the idioms in which Python code depends on other code, and edits of them.

The step of each runs as in a worker, which records what ran. Then the edit is made. The interpreter
is the judge: where plain Python gives another result now, that of before must not be served. What
the interpreter says of an edit depends on nothing of Temper, so it is asked only about topics that
were edited since it was last asked, and about all by ``make attack``.

By default, a sixth of each topic is tried, chosen by name; `make slow` tries every idiom.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from idiom import Idiom, idioms
from laboratory import Laboratory
from report import fault, is_judged

TOPICS = sorted({idiom.topic for idiom in idioms()})


@pytest.fixture(scope="module")
def laboratory(repository: Path) -> Iterator[Laboratory]:
    with Laboratory(repository) as laboratory:
        yield laboratory


def faults(laboratory: Laboratory, topic: str, *, of_a_sixth: bool) -> list[str]:
    judged = is_judged(topic) and settings().max_examples <= 100
    tried = (i for i in idioms() if i.topic == topic and _is_in_a_sixth(i) == of_a_sixth)
    edits = ((idiom, edit) for idiom in tried for edit in idiom.edits)
    found = ((fault(laboratory, i, e, judged), f"{i.name}: {e.text}") for i, e in edits)
    return [f"{problem}: {where}" for problem, where in found if problem]


def _is_in_a_sixth(idiom: Idiom) -> bool:
    return zlib.crc32(f"{idiom.topic}/{idiom.name}".encode()) % 6 == 0


@pytest.mark.parametrize("topic", TOPICS)
def test_no_result_is_served_after_an_edit_that_changes_it(
    laboratory: Laboratory, topic: str
) -> None:
    assert not faults(laboratory, topic, of_a_sixth=True)


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_no_result_is_served_after_any_edit_that_changes_it(
    laboratory: Laboratory, topic: str
) -> None:
    assert not faults(laboratory, topic, of_a_sixth=False)
