"""Several engines that sample side by side: each takes every n-th row.

If one of them fails, the others finish their requests, so that a run that goes on has little to
sample again. Then the error is raised.
"""

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from steps.generation.engine import Engine, Finished, Request, share


class Engines:
    """Several engines as one. Raises ValueError if there are none."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ValueError("there must be at least one engine")
        self.engines = tuple(engines)

    @property
    def weights(self) -> str:
        """The digest of the weights of all engines; empty if they differ."""
        found = {engine.weights for engine in self.engines}
        return found.pop() if len(found) == 1 else ""

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `Engine.update_weights`, for one engine after the other. If one fails, the engines
        have weights of different digests, and completions are refused until all have the same."""
        for engine in self.engines:
            engine.update_weights(source, weights)

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`."""
        every, count = list(requests), len(self.engines)
        parts = ((engine, share(every, count, n)) for n, engine in enumerate(self.engines))
        return side_by_side([engine.sample(part, weights) for engine, part in parts if part])


def side_by_side(sources: Sequence[Iterator[Finished]]) -> Iterator[Finished]:
    """All items of several sources, each source in a thread, as they arrive.

    The first error of a source is raised when the other sources have ended. Closing this iterator
    does not wait: each source ends after its next item.
    """
    answers: queue.SimpleQueue[Finished | BaseException | None] = queue.SimpleQueue()
    leaving = threading.Event()

    def draw(source: Iterator[Finished]) -> None:
        try:
            for finished in source:
                answers.put(finished)
                if leaving.is_set():
                    return
            answers.put(None)
        except BaseException as error:
            answers.put(error)

    for source in sources:
        threading.Thread(target=draw, args=(source,), daemon=True).start()
    failure, running = None, len(sources)
    try:
        while running:
            answer = answers.get()
            if isinstance(answer, Finished):
                yield answer
            else:
                running -= 1
                failure = failure or answer
    finally:
        leaving.set()
    if failure is not None:
        raise failure
