"""Draws: numbers that follow from their place, looked up in a distribution."""

import math
from itertools import islice

import numpy as np
import pytest
import torch

from steps.generation import draws
from steps.generation.draws import NUMBERS, Streams, draw, stream_key, uniforms

LARGEST = 1 - 2.0**-53


def drawn(logits: list[float], number: float, temperature: float = 1.0) -> tuple[int, float]:
    tokens, logps = draw(
        torch.tensor([logits]),
        torch.tensor([temperature], dtype=torch.float64),
        torch.tensor([number], dtype=torch.float64),
    )
    return int(tokens), float(logps)


def test_the_numbers_of_a_completion_are_the_same_on_every_day() -> None:
    """Written down once: with other numbers, nothing that is drawn could be drawn again."""
    assert list(islice(uniforms((0,), "row", 0), 3)) == [
        0.32961645461831224, 0.36342859888771295, 0.9433582611879883,
    ]  # fmt: skip
    assert list(islice(uniforms((7, 2), "zeile ü", 3), 34))[-2:] == [
        0.23046182378861346, 0.01370788708796511,
    ]  # fmt: skip


def test_the_numbers_of_many_completions_at_once_are_those_of_each() -> None:
    """Also of blocks out of order, as a completion goes on behind a reply."""
    places = [(0, 2), (1, 0), (0, 1), (2, 7)]
    keys = [stream_key((5,), "row", k) for k, _ in places]
    together = Streams().numbers(keys, [block for _, block in places])
    for row, (k, block) in zip(together.tolist(), places, strict=True):
        start = block * NUMBERS
        assert row == list(islice(uniforms((5,), "row", k), start, start + NUMBERS))


def test_completions_are_independent_of_each_other() -> None:
    """Of 2,000 completions, 10 numbers each: uniform, and uncorrelated with the next one's."""
    numbers = np.array([list(islice(uniforms((0,), "row", k), 10)) for k in range(2000)])
    assert numbers.mean() == pytest.approx(0.5, abs=4 / math.sqrt(12 * numbers.size))
    correlations = np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())
    assert abs(correlations[0, 1]) < 4 / math.sqrt(numbers.size)


@pytest.mark.parametrize(
    ("number", "token"), [(0.0, 1), (0.249, 1), (0.251, 2), (0.749, 2), (0.751, 4), (LARGEST, 4)]
)
def test_a_number_takes_the_token_whose_stretch_it_lies_in_and_never_one_of_no_mass(
    number: float, token: int
) -> None:
    none = -math.inf
    logits = [none, math.log(1), math.log(2), none, math.log(1), none]
    found, logp = drawn(logits, number)
    assert found == token
    assert math.exp(logp) == pytest.approx(0.5 if token == 2 else 0.25)


def test_a_temperature_sharpens_the_distribution_and_its_logps() -> None:
    logits = [0.0, math.log(3)]
    assert math.exp(drawn(logits, 0.0, 0.5)[1]) == pytest.approx(1 / 10)
    assert drawn(logits, 0.0, 0.5)[0] == 0
    assert drawn(logits, 0.11, 0.5)[0] == 1


def test_temperature_zero_takes_the_likeliest_token_with_its_logp_at_one() -> None:
    found, logp = drawn([0.0, math.log(3)], 0.0, 0.0)
    assert found == 1
    assert math.exp(logp) == pytest.approx(3 / 4)


@pytest.mark.parametrize("heat", [5e-324, 1e-308, 1e308])
def test_temperatures_at_the_borders_of_numbers_are_temperatures(heat: float) -> None:
    """The coldest takes one of the likeliest tokens, the hottest any token."""
    among = 2 if heat < 1 else 3
    for number in (0.0, 0.49, 0.51, 0.99):
        token, logp = drawn([90.0, -90.0, 90.0], number, heat)
        assert token == ((0, 2) if heat < 1 else (0, 1, 2))[int(number * among)]
        assert logp == pytest.approx(-math.log(among))


def test_a_table_that_is_taken_in_pieces_gives_what_it_gives_in_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(37, 50, generator=generator)
    heats = torch.linspace(0, 2, 37, dtype=torch.float64)
    numbers = torch.rand(37, generator=generator, dtype=torch.float64)
    tokens, logps = draw(logits, heats, numbers)
    monkeypatch.setattr(draws, "_ELEMENTS", 200)
    again = draw(logits, heats, numbers)
    assert torch.equal(tokens, again[0])
    assert torch.equal(logps, again[1])


def test_logits_that_are_not_numbers_give_a_logp_that_is_none() -> None:
    assert math.isnan(drawn([0.0, math.nan], 0.5)[1])
