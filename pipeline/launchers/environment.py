"""What the worker of every engine finds in its environment."""

import os
import sys

from pipeline.taken_names import require_ours
from pipeline.wire.lifeline import WORKER_ENVIRONMENT


def import_path() -> str:
    """A ``PYTHONPATH`` by which a worker imports what the driver imports, from the same places in
    the same order.

    Raises:
        TemperError: a file of the user's has the name of our package, and comes first.
    """
    folders = [os.path.abspath(entry) for entry in sys.path]
    require_ours(folders)
    return os.pathsep.join(folders)


def job_environment() -> dict[str, str]:
    """Of a worker that an engine starts, which hands on nothing of the driver's environment."""
    return {
        "PYTHONPATH": import_path(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        WORKER_ENVIRONMENT: "1",
    }
