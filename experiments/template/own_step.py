"""A step of your own: a function under ``@step``, with typed inputs, that writes files.

The code is part of the step's key: after an edit, the step runs again, and so do the steps that use
its output, if the output changes.
"""

from pipeline import Metrics, Output, step
from steps.kinds import Preferences


@step(makes=Preferences)
def drop_long(out: Output, pairs: Preferences, longest: int) -> Metrics:
    """Write the ``pairs`` whose responses have at most ``longest`` characters.

    Import heavy libraries here and not at the top of the file, so that planning stays fast.
    """
    from steps.data.rows.parquet import read_rows, write_rows
    from steps.data.rows.tables import PAIRS

    metrics: Metrics = {}
    for split in sorted(path.name for path in pairs.path.iterdir() if path.is_dir()):
        rows = read_rows(pairs.path / split)
        kept = [row for row in rows if max(map(_characters, _responses(row))) <= longest]
        metrics[split] = write_rows(out.path / split / "pairs-00000.parquet", PAIRS, kept)
        metrics[f"{split} left out"] = len(rows) - len(kept)
    return metrics


def _responses(row: dict) -> list[list[dict]]:
    return [row["chosen"], row["rejected"]]


def _characters(messages: list[dict]) -> int:
    return sum(len(message["content"] or "") for message in messages)
