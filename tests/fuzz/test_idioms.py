"""Small projects in every idiom in which Python code depends on other code, and edits of them.

The interpreter is the judge: where plain Python gives another result after an edit, the result of
before must not be served. Where the edit is neutral by its class, nothing may run again.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from idiom import idioms
from laboratory import Laboratory
from report import fault

pytestmark = pytest.mark.slow
TOPICS = sorted({idiom.topic for idiom in idioms()})


@pytest.fixture(scope="module")
def laboratory(repository: Path) -> Iterator[Laboratory]:
    with Laboratory(repository) as laboratory:
        yield laboratory


@pytest.mark.parametrize("topic", TOPICS)
def test_a_step_runs_again_if_its_result_changes_and_not_if_an_edit_is_neutral(
    laboratory: Laboratory, topic: str
) -> None:
    faults: list[str] = []
    for idiom in idioms():
        for edit in idiom.edits if idiom.topic == topic else ():
            if found := fault(laboratory, idiom, edit):
                faults.append(f"{found}: {idiom.name}: {edit.text}")
    assert not faults, "\n".join(faults)


def test_a_key_is_the_same_for_every_order_of_hashes(repository: Path) -> None:
    sample = idioms()[::9]
    keys = []
    for seed in (0, 2, 3):
        with Laboratory(repository, hash_seed=seed) as laboratory:
            keys.append([laboratory.observe(idiom.files).key for idiom in sample])
    assert keys[0] == keys[1] == keys[2]
