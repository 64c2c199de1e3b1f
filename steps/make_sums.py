"""``make_sums``: a task of several steps, with demonstrations that use a calculator."""

from pipeline import Metrics, Output, step
from steps.data.rows.arithmetic import write_task
from steps.data.rows.sums import patient_demonstrations, sample_sums
from steps.kinds import VerifiableTask


@step(makes=VerifiableTask)
def make_sums(out: Output, train: int = 1100, test: int = 500, seed: int = 0) -> Metrics:
    """Write ``sft/conversations-*.parquet`` and ``train/`` and ``test/prompts-*.parquet``.

    See :mod:`steps.data.rows.sums` for the task; held-out questions are never shown in training.
    """
    sums, held_out = sample_sums(seed, train, test)
    shown = patient_demonstrations(sums, seed)
    return write_task(out.path, shown, [s.prompt for s in sums], [s.prompt for s in held_out])
