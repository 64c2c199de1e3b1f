"""Steps in which a user has made a mistake, or whose machine has."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline import Artifact, File, Metrics, Output, TemperError, step


@step
def mistaken(out: Output, mistake: str) -> Metrics:
    """Ends as a step does in which something is wrong."""
    rows: list[dict[str, Any]] = [{"text": "a"}]
    match mistake:
        case "a bug":
            return {"lengths": [length_of(row) for row in rows]}
        case "a library's error":
            json.loads("{")
        case "an assertion":
            assert len(rows) == 2, "there are two rows"
        case "a missing package":
            import no_such_package  # type: ignore  # noqa: F401
        case "a missing extra":
            raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
        case "its own message":
            raise ValueError("the rows have no margin; add one, or set margin=0")
        case "its own foreseen error":
            raise TemperError("the rows have no weight; add one with weight=")
        case "a full disk":
            with open("/dev/full", "w") as file:
                file.write("x" * 100_000)
        case "a full disk that a library met":
            raise RuntimeError("IoError(Os { code: 28, kind: StorageFull, message: No space left")
        case "no memory":
            raise MemoryError
        case "a bad result":
            return {"loss": float("nan")}
        case "an exit":
            sys.exit(3)
        case "an interrupt":
            raise KeyboardInterrupt
        case "the end of a generator":
            raise GeneratorExit("no rows are left")
        case "an interval upside down":
            return {"share": {"value": 0.5, "low": 0.6, "high": 0.4}}
        case "a number beyond floats":
            return {"groups": [{"rows": 10**400}]}
        case "a link":
            (out.path / "link").symlink_to("/etc/hostname")
    return {}


def length_of(row: dict[str, Any]) -> int:
    return len(row["txt"])


@step
def one_part(out: Output, source: File) -> Metrics:
    """Makes one part, of which nobody knows before it is there."""
    (out.path / "train").mkdir()
    (out.path / "train" / "rows.txt").write_text("1")
    return {}


@step
def use(out: Output, part: Artifact) -> Metrics:
    return {}


@step
def overwrites(out: Output, part: Artifact) -> Metrics:
    (part / "train" / "rows.txt").write_text("2")
    return {}


@step(needs_packages=["no_such_package"])
def needs_a_package(out: Output) -> Metrics:
    return {}


@dataclass(frozen=True)
class Backend:
    """A choice in a config that not every machine can run."""

    needs_packages: ClassVar[tuple[str, ...]] = ("no_such_package",)


@dataclass(frozen=True)
class Training:
    backend: Backend | None = None
    rounded: bool = False

    def packages_in_use(self) -> tuple[str, ...]:
        return ("no_such_package",) if self.rounded else ()


@step
def trained(out: Output, config: Training) -> Metrics:
    return {}


@step
def wait_until_told(out: Output, begun: str) -> Metrics:
    """Says that it has begun, and leaves in order when it is to."""
    Path(begun).touch()
    while not out.stopping:
        time.sleep(0.05)
    raise RuntimeError("left after row 3; what is read is kept")
