"""How an experiment cuts its iterations into steps."""

from dataclasses import dataclass

from pipeline.experiment import ExperimentConfig
from steps.segments import Segmented


@dataclass
class Of(ExperimentConfig):
    """Another base of an experiment's config."""

    seed: int = 0


@dataclass
class Config(Segmented, Of):
    iterations: int = 17
    segment: int = 6


def test_the_last_segment_is_what_is_left() -> None:
    assert [*Config().segments()] == [(6, 6), (6, 12), (5, 17)]
    assert [*Config(iterations=6).segments()] == [(6, 6)]
    assert [*Config(segment=20).segments()] == [(17, 17)]
