"""The environment of the workers of every engine."""

import os
import sys

from pipeline.taken_names import require_ours
from pipeline.wire.lifeline import WORKER_ENVIRONMENT


def import_path() -> str:
    """A ``PYTHONPATH`` with which a worker imports the same modules as the driver, from the same
    places in the same order.

    Raises:
        TemperError: a file of the user has the name of our package and comes first on the path.
    """
    folders = [os.path.abspath(entry) for entry in sys.path]
    require_ours(folders)
    return os.pathsep.join(folders)


def job_environment() -> dict[str, str]:
    """The environment of a worker whose engine does not pass on the driver's environment."""
    return {
        "PYTHONPATH": import_path(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        WORKER_ENVIRONMENT: "1",
    }
