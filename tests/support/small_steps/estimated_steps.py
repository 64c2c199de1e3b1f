"""Steps that declare their needs, for tests of estimates."""

import json
from dataclasses import dataclass
from typing import Any

from pipeline import Artifact, Output, step
from pipeline.estimate.needs import Call, Needs


def rows(call: Call) -> Needs:
    count = call.arguments["count"]
    return Needs({"rows": count}, 1e8, 10.0 * count)


def total(call: Call) -> Needs:
    made = call.made(call.arguments["rows"])
    work = {} if made is None else {"rows": json.loads(made.read("rows.json") or b"0")}
    return Needs(work, 2e8, 20.0, scratch=1e6)


def breaks(call: Call) -> Needs:
    raise ZeroDivisionError


def nonsense(call: Call) -> Needs:
    much: Any = "much"
    return Needs({"rows": float("nan"), "tokens": much}, much, -1.0, scratch=float("inf"))


@step(estimate="estimated_steps:rows")
def write_rows(out: Output, count: int) -> None:
    (out.path / "rows.json").write_text(json.dumps(count))


@step(estimate="estimated_steps:total")
def sum_rows(out: Output, rows: Artifact, scale: float = 1.0) -> dict:
    (out.path / "sum.json").write_text(str(scale * json.loads((rows / "rows.json").read_text())))
    return {"sum": scale}


@step(estimate="estimated_steps:breaks")
def breaks_estimate(out: Output, rows: Artifact) -> None:
    (out.path / "file").write_text("x")


@step(estimate="estimated_steps:nonsense")
def nonsense_estimate(out: Output) -> None:
    (out.path / "file").write_text("x")


@step(estimate="no_such_module:NEEDS")
def missing_estimate(out: Output) -> None:
    (out.path / "file").write_text("x")


@step
def undeclared(out: Output, rows: Artifact, times: int = 1) -> None:
    (out.path / "file").write_text("x" * 100 * times)


@dataclass(frozen=True)
class Adapter:
    r: int = 16
    alpha: float = 32.0


@dataclass(frozen=True)
class Prompted:
    tokens: int = 4


@dataclass(frozen=True)
class Settings:
    rate: float = 1.0
    adapter: Adapter | Prompted | None = None


@step
def adapt(out: Output, config: Settings = Settings()) -> None:
    (out.path / "file").write_text("x")
