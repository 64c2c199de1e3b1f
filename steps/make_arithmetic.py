"""``make_arithmetic``: generate an arithmetic task with checkable answers and demonstrations."""

from pipeline import Metrics, Output, step
from steps.data.rows.arithmetic import demonstrations, sample_problems, write_task
from steps.kinds import VerifiableTask


@step(makes=VerifiableTask)
def make_arithmetic(out: Output, train: int = 1100, test: int = 500, seed: int = 0) -> Metrics:
    """Write ``sft/conversations-*.parquet`` and ``train/`` and ``test/prompts-*.parquet``.

    :mod:`steps.data.rows.arithmetic` describes the task. Some demonstrations are wrong on purpose.
    The test problems never occur in the training data.
    """
    problems, held_out = sample_problems(seed, train, test)
    shown = demonstrations(problems, seed)
    return write_task(out.path, shown, [p.prompt for p in problems], [p.prompt for p in held_out])
