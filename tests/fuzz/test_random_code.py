"""Random projects, edited at random places. Longer: ``make attack``, or ``search.py``."""

from pathlib import Path

import pytest
from hypothesis import settings
from laboratory import Laboratory
from search import trials

PROJECTS, EDITS = 8, 10


@pytest.mark.slow
def test_no_edit_of_a_project_that_changes_its_result_leaves_a_hit(repository: Path) -> None:
    effort = max(1, settings().max_examples // 100)
    with Laboratory(repository) as laboratory:
        tried = list(trials(laboratory, 0, PROJECTS * effort, EDITS))
        assert len(tried) >= 0.9 * PROJECTS * EDITS * effort
        assert sum(trial.verdict.changed for trial in tried) >= 0.3 * len(tried)
        assert not (faults := [str(trial) for trial in tried if trial.problem]), "\n".join(faults)
