"""Forwards that a GPU replays: the same tokens as without, and without where a model waits."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from unittest.mock import MagicMock

import pytest
import torch
from families import FAMILIES, built
from tiny_models import VOCABULARY, llama
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


def test_a_kind_has_one_place_for_the_inputs_of_all_its_forwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs: dict[int, set[int]] = {}

    def recorded(run: Run, device: torch.device) -> Run:
        first = run()  # a graph fills the tensor of its recording again

        def replay() -> Tensor:
            outputs.setdefault(id(first), set()).add(first.data_ptr())
            return first.copy_(run())

        return replay

    monkeypatch.setattr(cuda_graphs, "recorded", recorded)
    model = llama()
    assert drawn(model, some_requests(), True) == drawn(model, some_requests(), False)
    assert outputs


@pytest.mark.parametrize("at", ["the first forward", "the recording"])
def test_a_model_that_waits_is_read_without(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: Run, device: torch.device) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    model = llama()
    wanted = drawn(model, some_requests(), replays=False)
    if at == "the recording":
        monkeypatch.setattr(cuda_graphs, "recorded", refuse)
    else:

        @contextmanager
        def waiting(device: torch.device) -> Iterator[None]:
            yield
            raise RuntimeError("called a synchronizing CUDA operation")

        monkeypatch.setattr(cuda_graphs, "refusing_to_wait", waiting)
    engine = SlotEngine(model, "w", 50)
    engine.replays = True
    assert {(d.row, d.k): d for d in engine.sample(some_requests(), "w")} == wanted
    assert not engine.replays  # and does not try again


def test_where_memory_was_missing_the_next_call_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(run: Run, device: torch.device) -> Run:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(cuda_graphs, "recorded", full)
    engine = SlotEngine(llama(), "w", 50)
    drawn_without = drawn(engine.model, some_requests(), replays=False)
    engine.replays = True
    with_memory_missing = {(d.row, d.k): d for d in engine.sample(some_requests(), "w")}
    assert with_memory_missing == drawn_without
    assert engine.replays


@pytest.mark.parametrize("fault", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_an_error_in_a_recording_is_told_and_not_what_follows_from_it(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = MagicMock()
    monkeypatch.setattr(torch, "cuda", gpu)  # which no test has
    monkeypatch.setattr(torch, "zeros", MagicMock())
    monkeypatch.setattr(cuda_graphs, "_stream", MagicMock())
    broken, whole = MagicMock(), MagicMock()
    broken.capture_end.side_effect = RuntimeError("the capture was invalidated")
    gpu.CUDAGraph.side_effect = [broken, whole]

    def run() -> Tensor:
        raise fault

    second = torch.device("cuda", 1)
    with pytest.raises(fault):
        cuda_graphs.recorded(run, second)
    broken.capture_end.assert_called_once()
    assert {call.args for call in gpu.device.call_args_list} == {(second,)}


@pytest.mark.parametrize(("slots", "running", "rows"), [(256, 256, 256), (256, 129, 256)])
def test_rows_are_halved(slots: int, running: int, rows: int) -> None:
    assert of(slots).rows(running) == rows
    assert of(slots).rows(128) == 128
    assert {of(slots).rows(running) for running in range(1, slots + 1)} == {32, 64, 128, 256}


@pytest.mark.parametrize("slots", range(1, 200, 9))
def test_rows_fit_the_cache_and_the_sequences(slots: int) -> None:
    for running in range(1, slots + 1):
        assert running <= of(slots).rows(running) <= cuda_graphs.padded_rows(slots)


def of(slots: int) -> cuda_graphs.Replays:
    cache = cuda_graphs.KeyValueCache(cuda_graphs.padded_rows(slots), torch.device("cpu"))
    return cuda_graphs.Replays(cache, lambda ids, positions, turn: ids, slots)
