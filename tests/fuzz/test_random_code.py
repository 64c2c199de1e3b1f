"""Random projects and random functions, edited at random places. Longer:
``pytest --hypothesis-profile=attack tests/fuzz``.
"""

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from fragments import Writer
from hypothesis import settings
from laboratory import Laboratory
from meaning import meanings
from mutants import mutant
from neutral_edits import rename_locals
from search import trials

PROJECTS, EDITS, BATCHES, SOURCES = 6, 10, 2, 8
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def laboratory(repository: Path) -> Iterator[Laboratory]:
    with Laboratory(repository) as laboratory:
        yield laboratory


@pytest.fixture
def effort() -> int:
    """How many times as much as by default is tried."""
    return max(1, settings().max_examples // 100)


def test_no_edit_of_a_project_that_changes_its_result_leaves_a_hit(
    laboratory: Laboratory, effort: int
) -> None:
    tried = 0
    faults: list[str] = []
    for trial in trials(laboratory, 0, PROJECTS * effort, EDITS):
        tried += 1
        if trial.problem not in ("", "unbound name"):
            faults.append(str(trial))
    assert tried >= 0.9 * PROJECTS * EDITS * effort
    assert not faults, "\n".join(faults)


def test_no_two_sources_that_say_different_things_have_one_key(
    laboratory: Laboratory, effort: int
) -> None:
    writer, chance = Writer(0), random.Random(0)
    for batch in range(BATCHES * effort):
        write = writer.module if batch % 2 else writer.function
        sources = [write() for _ in range(SOURCES)]
        sources += [m for s in sources for _ in range(10) if (m := mutant(s, chance, True))]
        by_key: dict[str, dict[object, str]] = defaultdict(dict)
        for source, key in zip(sources, laboratory.keys_of(sources), strict=True):
            by_key[key][meanings(source)] = source
        for same in by_key.values():
            assert len(same) == 1, "\n".join(same.values())


def test_a_source_has_one_key_whenever_it_is_read(laboratory: Laboratory, effort: int) -> None:
    writer = Writer(2)
    nested = "def helper(c):\n    return {a for y in {x: z for y in c}}\n"
    for source in (nested, *(writer.function() for _ in range(3))):
        assert len(set(laboratory.keys_of([source] * 20 * effort))) == 1, source


def test_the_names_of_locals_are_in_no_key(laboratory: Laboratory, effort: int) -> None:
    writer, chance = Writer(1), random.Random(1)
    sources = [writer.function() for _ in range(2 * SOURCES * effort)]
    sources = [s for s in sources if "except" not in s]  # texts of errors have names in them
    renamed = [rename_locals(source, chance) for source in sources]
    keys = laboratory.keys_of([*sources, *renamed])
    pairs = zip(sources, renamed, keys[: len(sources)], keys[len(sources) :], strict=True)
    differ = [f"{one}\n{other}" for one, other, key, other_key in pairs if key != other_key]
    assert not differ, "\n".join(differ)
