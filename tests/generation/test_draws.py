"""Draws: numbers that follow from their place, looked up in a distribution."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

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


def test_temperature_zero_takes_the_likeliest_token_with_its_logp_at_one() -> None:
    found, logp = drawn([0.0, math.log(3)], 0.0, 0.0)
    assert found == 1
    assert math.exp(logp) == pytest.approx(3 / 4)


def test_logits_that_are_not_numbers_give_a_logp_that_is_none() -> None:
    assert math.isnan(drawn([0.0, math.nan], 0.5)[1])


# --- tokens that are left out ---------------------------------------------------------------------

Cuts = tuple[float, float, float]
"""top_k, top_p and min_p."""
WHOLE: Cuts = (0, 1, 0)
SETTINGS: dict[str, Cuts] = {
    "top_k": (7, 1, 0),
    "top_p": (0, 0.8, 0),
    "min_p": (0, 1, 0.1),
    "as Qwen 3 advises": (20, 0.95, 0),
    "top_p of what top_k leaves": (9, 0.7, 0),
    "top_p before min_p": (0, 0.6, 0.3),
    "all": (30, 0.9, 0.02),
    "more than there are": (10_000, 1, 0),
}


def by_transformers(logits: Tensor, heat: float, cuts: Cuts) -> Tensor:
    """The probabilities [N, V] that `generate` draws from, in float64."""
    top_k, top_p, min_p = cuts
    ids, scores = torch.zeros((len(logits), 1), dtype=torch.int64), logits.double()
    scores = TemperatureLogitsWarper(heat)(ids, scores)  # type: ignore[arg-type]
    if top_k:
        scores = TopKLogitsWarper(int(top_k))(ids, scores)  # type: ignore[arg-type]
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)  # type: ignore[arg-type]
    if min_p:
        scores = MinPLogitsWarper(min_p)(ids, scores)  # type: ignore[arg-type]
    return scores.softmax(dim=-1)


def drawn_of_grid(logits: Tensor, heat: float, cuts: Cuts, size: int) -> tuple[Tensor, Tensor]:
    """What so many equally distant numbers draw from one row."""
    numbers = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    heats = torch.full((size,), heat, dtype=torch.float64)
    left = torch.tensor(cuts, dtype=torch.float64).expand(size, -1)
    return draw(logits.expand(size, -1), heats, numbers, left)


def some_logits(rows: int, tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, tokens, generator=generator)


@pytest.mark.parametrize("cuts", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("heat", [0.6, 1.0, 1.7])
def test_tokens_are_drawn_from_the_distribution_that_transformers_draws_from(
    heat: float, cuts: Cuts
) -> None:
    size = 2000
    for logits in some_logits(3, 60).split(1):
        (expected,) = by_transformers(logits, heat, cuts)
        tokens, logps = drawn_of_grid(logits, heat, cuts, size)
        counts = torch.bincount(tokens, minlength=60)
        assert (counts - size * expected).abs().max() <= 1
        assert logps == pytest.approx(expected[tokens].log(), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_of_few_bits_of_which_many_are_equal_leave_as_much_as_in_transformers(
    dtype: torch.dtype,
) -> None:
    """There, which of equal ones stay is left open."""
    for seed, cuts in enumerate(SETTINGS.values()):
        logits = (some_logits(1, 200, seed) * 2).round().div(4).to(dtype)
        (expected,) = by_transformers(logits, 1.0, cuts)
        tokens, logps = drawn_of_grid(logits, 1.0, cuts, 2000)
        drawn = logits[0, tokens].double()
        best = expected.max().log() - logits.double().max()
        assert logps == pytest.approx(drawn + best, abs=1e-12)  # so all have as much probability
        assert drawn.min() >= logits[0, expected > 0].min()


def test_equal_tokens_at_the_border_of_top_k_stay_and_at_that_of_top_p_the_first_ones() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0, 1.0]])

    def kept(cuts: Cuts) -> set[int]:
        return set(drawn_of_grid(logits, 1.0, cuts, 500)[0].tolist())

    assert kept((2, 1, 0)) == {0, 1, 2, 3, 5}
    assert kept((0, 0.6, 0)) == {0, 1, 2}
    assert kept((2, 0.6, 0)) == {0, 1, 2}
    assert kept((0, 1e-9, 0)) == kept((1, 1, 0)) == kept((0, 1, 1)) == {1}
    assert kept((0, 1, math.exp(-1) * 1.001)) == {1}
    assert kept((0, 1, math.exp(-1) * 0.999)) == {0, 1, 2, 3, 5}


@pytest.mark.parametrize("tokens", [50, 2000])
def test_what_is_left_out_of_one_row_changes_no_bit_of_another(tokens: int) -> None:
    every = [WHOLE, *SETTINGS.values(), (3, 1, 0), (tokens, 1, 0), (0, 0.999, 0)]
    logits = some_logits(len(every), tokens)
    heats = torch.linspace(0, 2, len(every), dtype=torch.float64)
    numbers = torch.linspace(0.1, 0.9, len(every), dtype=torch.float64)
    cuts = torch.tensor(every, dtype=torch.float64)
    together = draw(logits, heats, numbers, cuts)
    alone = [
        draw(logits[n, None], heats[n, None], numbers[n, None], cuts[n, None])
        for n in range(len(every))
    ]
    for one, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(one, torch.cat(parts))


@pytest.mark.parametrize("cuts", SETTINGS.values(), ids=SETTINGS)
def test_at_the_borders_of_numbers_the_likeliest_is_drawn_and_what_is_no_number_is_told(
    cuts: Cuts,
) -> None:
    none = -math.inf
    for heat in (5e-324, 1e-308, 1.0):
        tokens, logps = drawn_of_grid(torch.tensor([[none, 90.0, -90.0, none]]), heat, cuts, 5)
        assert set(tokens.tolist()) == {1}
        assert logps == pytest.approx(torch.zeros(5, dtype=torch.float64))
    logits = some_logits(1, 2000)
    logits[0, 77] = math.nan
    assert drawn_of_grid(logits, 1.0, cuts, 3)[1].isnan().all()
