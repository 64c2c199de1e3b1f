"""The script that measures a GPU runs, on a processor and with a tiny model."""

from benchmarks.gpu_page import (
    REPLAYED,
    determinism,
    machine,
    option_row,
    parity,
    rank_row,
    sampling_row,
    speed_row,
)
from steps.models.config import ActivationCheckpointing


def test_every_section_of_the_page_about_a_gpu_has_figures() -> None:
    assert any("transformers" in line for line in machine("tiny"))
    errors = [line.split("|")[3] for line in list(parity("tiny"))[2:]]
    assert all(float(error) < 1e-5 for error in errors[:2])
    assert len(errors) == 4
    assert all("0 of 21 parameters differ" in line for line in determinism("tiny"))
    assert speed_row("tiny", 64, ActivationCheckpointing.none).count("|") == 6
    assert sampling_row("tiny", 8, REPLAYED).count("|") == 6
    assert option_row("tiny", "adapters").count("|") == 5
    assert str(rank_row("tiny", 2)).startswith("| 1 | 0.5476")
