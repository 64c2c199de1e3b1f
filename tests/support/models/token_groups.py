"""Prompts with responses of random tokens, of every length that matters to tiny models."""

import random
from collections.abc import Sequence

import oracle
import torch
from tiny_models import VOCABULARY
from torch import Tensor

from steps.scoring.examples import TokenGroup, TokenResponse


def ids(draw: random.Random, count: int) -> tuple[int, ...]:
    return tuple(draw.randrange(VOCABULARY) for _ in range(count))


def group(prompt: Sequence[int], *responses: Sequence[int]) -> TokenGroup:
    name = f"{prompt}{responses}"
    return TokenGroup(name, name, tuple(prompt), tuple(TokenResponse(tuple(r)) for r in responses))


def pairs() -> list[TokenGroup]:
    """Of ordinary lengths, longer and shorter than a window, and everything at its least."""
    draw = random.Random(11)
    same = ids(draw, 6)
    return [
        group(ids(draw, 7), ids(draw, 5), ids(draw, 9)),
        group(ids(draw, 14), ids(draw, 13), ids(draw, 3)),
        group(ids(draw, 1), ids(draw, 4), ids(draw, 6)),
        group((), ids(draw, 5), ids(draw, 8)),
        group(ids(draw, 6), ids(draw, 1), ids(draw, 7)),
        group(ids(draw, 6), ids(draw, 7), ids(draw, 1)),
        group(ids(draw, 3), ids(draw, 1), ids(draw, 1)),
        group(ids(draw, 5), same, same),
        group(ids(draw, 3), ids(draw, 30), ids(draw, 28)),
    ]


def unscored(pair: TokenGroup, draw: random.Random) -> TokenGroup:
    """The same pair with gaps in what is scored, at the ends too."""
    responses = []
    for response in pair.responses:
        flags = [draw.random() < 0.5 for _ in response.ids]
        flags[len(flags) // 2] = True
        responses.append(TokenResponse(response.ids, tuple(flags)))
    return TokenGroup(pair.row, pair.group_id + "masked", pair.prompt_ids, tuple(responses))


def responses(group: TokenGroup) -> list[tuple[Sequence[int], Sequence[int], oracle.Scored]]:
    return [(group.prompt_ids, response.ids, response.scored) for response in group.responses]


def reference_logps(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return -20 * torch.rand((count, 2), generator=generator, dtype=torch.float64) - 5
