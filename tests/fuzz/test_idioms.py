"""Small projects in every idiom in which Python code depends on other code, and edits of them.

The interpreter is the judge: where plain Python gives another result after an edit, the result of
before must not be served. Where the edit is neutral by its class, nothing may run again. What the
interpreter says of an edit depends on nothing of Temper, so it is asked only about topics that were
edited since it was last asked, and about all by ``make attack``.

``make attack`` tries every idiom. By default, that is a sixth of each topic, chosen by name, and
those in ``always.txt``: without these, that sixth would miss a branch of :mod:`pipeline.code` that
all idioms together reach, or neutral edits of a kind of their own.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from idiom import FOLDER, Idiom, idioms
from laboratory import Laboratory
from report import fault, is_judged

TOPICS = sorted({idiom.topic for idiom in idioms()})
LONGEST = {"functions_and_classes", "precision", "third_look"}
"""Topics that take `make test` a second or more each, and reach no branch that others do not."""
ALWAYS = frozenset((FOLDER.parent / "always.txt").read_text("utf-8").split())


def tried() -> list[Idiom]:
    """The idioms that this run tries."""
    return [idiom for idiom in idioms() if _attacks() or _is_tried(f"{idiom.topic}/{idiom.name}")]


def _is_tried(name: str) -> bool:
    return name in ALWAYS or zlib.crc32(name.encode()) % 6 == 0


def _attacks() -> bool:
    return settings().max_examples > 100


@pytest.fixture(scope="module")
def laboratory(repository: Path) -> Iterator[Laboratory]:
    with Laboratory(repository) as laboratory:
        yield laboratory


@pytest.mark.parametrize(
    "topic", [pytest.param(t, marks=[pytest.mark.slow] * (t in LONGEST)) for t in TOPICS]
)
def test_a_step_runs_again_if_its_result_changes_and_not_if_an_edit_is_neutral(
    laboratory: Laboratory, topic: str
) -> None:
    judged = is_judged(topic) and not _attacks()
    faults: list[str] = []
    for idiom in tried():
        for edit in idiom.edits if idiom.topic == topic else ():
            if found := fault(laboratory, idiom, edit, judged):
                faults.append(f"{found}: {idiom.name}: {edit.text}")
    assert not faults, "\n".join(faults)


def test_a_key_is_the_same_for_every_order_of_hashes(
    laboratory: Laboratory, repository: Path
) -> None:
    """The laboratory of the other tests has seen these projects, with a seed of its own."""
    sample = tried()[:: 1 if _attacks() else 27]
    keys = [laboratory.observe(idiom.files).key for idiom in sample]
    with Laboratory(repository, hash_seed=2) as other:
        assert keys == [other.observe(idiom.files).key for idiom in sample]
