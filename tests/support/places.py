"""Where things lie that tests read, and a model's folder that is enough for a plan."""

import os
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
"""The toy steps, and modules that several tests import; below it ``small_steps`` has other steps,
``models`` models and what they should compute, ``processes`` what starts processes, and
``outside`` servers, clocks and browsers."""
_ROOMS = ("", "small_steps", "models", "processes", "outside")
SUPPORT_PATH = os.pathsep.join(str(SUPPORT / name) for name in _ROOMS)
"""The folders of all these modules, for the PYTHONPATH of a process that a test starts."""
TESTS = SUPPORT.parent
GOLDEN = TESTS / "golden"
REPOSITORY = TESTS.parent
MODEL_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"\2" + bytes(7) + b"{}",
}
"""A model that is whole by its names and headers, though it has no tensor."""


def model_for_plans(folder: Path) -> Path:
    """A new folder with `MODEL_FILES`."""
    folder.mkdir()
    for name, content in MODEL_FILES.items():
        (folder / name).write_bytes(content)
    return folder
