"""Several engines that draw side by side: each takes every n-th row.

If one of them fails, the others finish what they have, so that as little as can be is drawn again;
then its error is raised.
"""

import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from steps.generation.engine import Engine, Finished, Request


class Engines:
    """Some engines as one. Raises ValueError if there are none."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ValueError("there must be at least one engine")
        self.engines = tuple(engines)

    @property
    def weights(self) -> str:
        """The digest of the weights that all of them have; empty if they differ."""
        found = {engine.weights for engine in self.engines}
        return found.pop() if len(found) == 1 else ""

    def update_weights(self, source: Path | Mapping[str, Tensor], weights: str) -> None:
        """As `Engine.update_weights`, for each in turn. An engine that fails leaves the others with
        weights of another digest, and completions by these are refused until all have been given
        the same."""
        for engine in self.engines:
            engine.update_weights(source, weights)

    def sample(self, requests: Iterable[Request], weights: str) -> Iterator[Finished]:
        """As `Engine.sample`."""
        parts = zip(self.engines, self._shared(requests), strict=True)
        return side_by_side([engine.sample(part, weights) for engine, part in parts if part])

    def _shared(self, requests: Iterable[Request]) -> list[list[Request]]:
        """The requests by engine, those of a row together."""
        parts: list[list[Request]] = [[] for _ in self.engines]
        rows: dict[str, int] = {}
        for request in requests:
            number = rows.setdefault(request.row, len(rows))
            parts[number % len(parts)].append(request)
        return parts


def side_by_side(sources: Sequence[Iterator[Finished]]) -> Iterator[Finished]:
    """What all sources give, each in a thread, as it comes.

    The first error of a source is raised once the others have ended. Who closes this iterator waits
    for nobody: each source is left after its next completion.
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
