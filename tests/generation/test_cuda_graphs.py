"""Forwards that a GPU replays: the same tokens as without, and without where a model waits."""

from collections.abc import Callable, Iterable

import pytest
import torch
from families import FAMILIES, built
from tiny_models import VOCABULARY
from torch import Tensor
from transformers import PreTrainedModel

from steps.generation import cuda_graphs
from steps.generation.cache import BLOCK
from steps.generation.engine import Finished, Request
from steps.generation.slots import SlotEngine

Run = Callable[[], Tensor]


def some_requests() -> list[Request]:
    """Of unlike lengths, so that sequences are in unlike blocks."""
    prompts = [
        tuple(range(5, 5 + length)) for length in (3, BLOCK - 2, BLOCK + 1, BLOCK, 1, 7, 9, 20)
    ]
    return [
        Request(f"row {number}", k, tuple(i % VOCABULARY for i in ids), 3 + 5 * number, 1.0)
        for number, ids in enumerate(prompts)
        for k in range(8)
    ]


def drawn(
    model: PreTrainedModel, requests: Iterable[Request], replays: bool, slots: int = 50
) -> dict[tuple[str, int], Finished]:
    engine = SlotEngine(model, "w", slots)
    engine.replays = replays
    return {(done.row, done.k): done for done in engine.sample(requests, "w")}


OFTEN = ("gemma2", "gpt2", "gpt_oss")
"""What happens beside keys is another thing in each of these; long searches try all."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.attack) for name in FAMILIES],
)
def test_replayed_forwards_draw_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[int] = []

    def recorded(run: Run, device: torch.device) -> Run:
        kinds.append(len(kinds))
        return run  # which reads its inputs where they lie, as a graph does

    monkeypatch.setattr(cuda_graphs, "recorded", recorded)
    model, requests = built(family), some_requests()
    assert drawn(model, requests, replays=True) == drawn(model, requests, replays=False)
    assert len(kinds) == 2  # of one and of two blocks


def of(slots: int) -> cuda_graphs.Replays:
    cache = cuda_graphs.KeyValueCache(cuda_graphs.padded_rows(slots), torch.device("cpu"))
    return cuda_graphs.Replays(cache, lambda ids, positions, turn: ids, slots)
