"""Steps with estimators, for tests of prices."""

import json
from dataclasses import dataclass

from pipeline import Artifact, Output, step
from pipeline.price.estimator import Call, Estimator, Foreseen, Made, Sizes


def _rows(call: Call) -> Foreseen:
    count = call.arguments["count"]
    return Foreseen({"rows": count, "bytes": 10.0 * count}, 2.0, 1e8)


def _of_rows(made: Made) -> Sizes:
    return {"rows": json.loads(made.read("rows.json") or b"0")}


def _sum(call: Call) -> Foreseen:
    rows = call.size("rows").get("rows")
    if rows is None:
        return Foreseen()
    return Foreseen({"bytes": 20.0}, 3.0 + rows / 100, 2e8 + rows, scratch=1000.0 * rows)


def _breaks(call: Call) -> Foreseen:
    raise ZeroDivisionError


def _nonsense(call: Call) -> Foreseen:
    return Foreseen({"bytes": -1.0}, float("nan"), "much", scratch=float("inf"))  # type: ignore[arg-type]


def _by_kind(call: Call) -> Foreseen:
    return Foreseen(seconds=60.0 if call.hardware.model else None)


BY_KIND = Estimator(_by_kind)
ROWS, SUM = Estimator(_rows, _of_rows), Estimator(_sum)
BROKEN, NONSENSE = Estimator(_breaks), Estimator(_nonsense)


@step(estimate="priced_steps:ROWS")
def write_rows(out: Output, count: int) -> None:
    (out.path / "rows.json").write_text(json.dumps(count))


@step(estimate="priced_steps:SUM")
def sum_rows(out: Output, rows: Artifact, scale: float = 1.0) -> dict:
    (out.path / "sum.json").write_text(str(scale * json.loads((rows / "rows.json").read_text())))
    return {"sum": scale}


@step(estimate="priced_steps:BROKEN")
def price_breaks(out: Output, rows: Artifact) -> None:
    (out.path / "file").write_text("x")


@step(estimate="priced_steps:NONSENSE")
def price_is_nonsense(out: Output) -> None:
    (out.path / "file").write_text("x")


@step(estimate="priced_steps:BY_KIND")
def price_is_of_a_gpu(out: Output) -> None:
    (out.path / "file").write_text("x")


@step(estimate="no_such_module:PRICE")
def price_is_missing(out: Output) -> None:
    (out.path / "file").write_text("x")


@step
def unpriced(out: Output, rows: Artifact, times: int = 1) -> None:
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
