"""What the plan says of a setting that became another thing."""

from pathlib import Path

import pytest
from command_line import script
from priced_steps import Adapter, Prompted, Settings, adapt
from rich.console import Console

from pipeline import Store, run
from pipeline.plan.planning import make_plan

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, Adapter(r=8), "config.adapter null → Adapter(r=8, alpha=32.0)"),
        (Adapter(r=8), None, "config.adapter Adapter(r=8, alpha=32.0) → null"),
        (Adapter(r=8), Prompted(), "config.adapter Adapter(r=8, alpha=32.0) → Prompted(tokens=4)"),
        (Adapter(r=8), Adapter(r=4), "config.adapter.r 8 → 4"),
    ],
)
def test_a_value_that_takes_the_place_of_another_is_one_phrase(
    store: Store, before: Adapter | None, after: Adapter | None, told: str
) -> None:
    run([adapt(Settings(adapter=before))], store, console=Console(quiet=True))
    (planned,) = make_plan({"it": adapt(Settings(adapter=after))}, store).steps
    assert planned.reason == told


def test_settings_beside_it_are_told_too(store: Store) -> None:
    run([adapt()], store, console=Console(quiet=True))
    (planned,) = make_plan({"it": adapt(Settings(2.0, Adapter(r=8)))}, store).steps
    assert planned.reason == "config.rate 1.0 → 2.0, config.adapter null → Adapter(r=8, alpha=32.0)"


REORDERED = """
from dataclasses import dataclass

from pipeline import Output, step
from pipeline.experiment import ExperimentConfig, main


@dataclass(frozen=True)
class Settings:
    rate: float = 1.0
    seed: int = 0


@step
def fit(out: Output, settings: Settings) -> dict:
    return {}


def build(cfg: ExperimentConfig):
    return {"it": fit(Settings())}


if __name__ == "__main__":
    main(build)
"""


def test_fields_in_another_order_are_no_unnamed_code(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "reordered.py"
    file.write_text(REORDERED)
    script(file, f"store={store.url}", "-q")
    rate, seed = "    rate: float = 1.0\n", "    seed: int = 0\n"
    file.write_text(REORDERED.replace(rate + seed, seed + rate))
    shown = " ".join(script(file, f"store={store.url}", "--plan").out.split())
    assert "code: it calls other code, or a class has other fields" in shown
