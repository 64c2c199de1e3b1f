"""What a worker does with freed memory."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
from pipeline.worker.memory import keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "kept":
    keep_freed_memory()
before = resident()
freed = [b"x" * 2**24 for _ in range(8)]
del freed
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_a_worker_keeps_memory_that_its_step_has_freed() -> None:
    def mebibytes(kept: str) -> int:
        command = [sys.executable, "-c", SCRIPT, kept]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert mebibytes("kept") > 100 > mebibytes("returned")
