"""A setting that takes a text has the text as it was typed, whatever Hydra would read in it."""

from dataclasses import dataclass, field

import pytest

from pipeline.configs.field_types import as_text


@dataclass
class Loss:
    name: str = ""


@dataclass
class Named(Loss):
    tag: str | None = None


@dataclass
class Config:
    rate: float = 0.1
    revision: str | None = None
    either: str | int = 1
    loss: Loss = field(default_factory=Loss)
    parts: dict[str, Loss] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("typed", "quoted"),
    [
        ("revision=6e39871", "revision='6e39871'"),
        ("revision=1e3,0x1", "revision='1e3','0x1'"),
        ("loss.tag=007", "loss.tag='007'"),
        ("parts.mine.name=true", "parts.mine.name='true'"),
        *((same, same) for same in (
            "revision=null", "revision=main", "rate=1e3", "either=1e3", "no.such=1e3",
        )),
    ],
)  # fmt: skip
def test_only_what_hydra_would_change_is_quoted(typed: str, quoted: str) -> None:
    assert as_text(typed, Config, {"loss": {"named": Named}}) == quoted
