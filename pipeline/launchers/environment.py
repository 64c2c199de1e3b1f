"""What the worker of every engine finds in its environment."""

import os
import sys

from pipeline.wire.lifeline import WORKER_ENVIRONMENT


def import_path() -> str:
    """A ``PYTHONPATH`` by which a worker imports what the driver imports, from the same places in
    the same order."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def job_environment() -> dict[str, str]:
    """Of a worker that an engine starts, which hands on nothing of the driver's environment."""
    return {
        "PYTHONPATH": import_path(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        WORKER_ENVIRONMENT: "1",
    }
