"""Sampling that is a fixed number of iterations behind training, so that both can work at once.

    iteration       5          6          7
    training     W5 ──► W6  W6 ──► W7  W7 ──► W8
    sampling     6, by W5   7, by W6   8, by W7        lag 1

Iteration i is drawn by the policy as it was at the start of iteration i - lag; the first ones by
the policy that the run starts from. So a run's weights follow from its recipe, of which the lag is
a part. Whether the two really work at once changes no bit.

A checkpoint and the state of a segment hold the weights of the last iterations, by which a resumed
run or the next segment draws its first ones.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from steps.generation.slots import SlotEngine
from steps.online.rollouts import Rollout
from steps.online.sampled import Sampled

_FILE = "earlier.safetensors"

Weights = Mapping[str, Tensor]


class Earlier:
    """The weights of the last `lag` iterations, each as they were at its start.

    end: the first iteration that is no longer of this segment.
    """

    def __init__(self, lag: int, end: int) -> None:
        self.lag = lag
        self.end = end
        self._of: dict[int, Weights] = {}

    def add(self, iteration: int, weights: Weights) -> None:
        """Take the weights at the start of an iteration, and forget those that nothing needs."""
        self._of[iteration] = weights
        for old in [number for number in self._of if number < iteration - self.lag]:
            del self._of[old]

    def that_draw(self, iteration: int) -> Weights:
        """The weights that draw the 0-based `iteration`."""
        return self._of[max(iteration - self.lag, 0)]

    def tensors(self, done: int) -> dict[str, Tensor]:
        """What `restore` takes, after so many iterations of the run."""
        return {
            f"{number}/{name}": tensor
            for number, weights in self._of.items()
            if number >= done - self.lag
            for name, tensor in weights.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` gave, in place of what is here."""
        self._of = {}
        for place, tensor in tensors.items():
            number, _, name = place.partition("/")
            self._of[int(number)] = {**self._of.get(int(number), {}), name: tensor}

    def save(self, state: Path) -> None:
        """Write what the next segment needs."""
        if self.lag:
            save_file(self.tensors(self.end), state / _FILE)

    def load(self, state: Path, done: int) -> None:
        """Take what an earlier segment, which ended after `done` iterations, has written.

        Raises ValueError if that segment had another lag.
        """
        file = state / _FILE
        self.restore(load_file(file) if file.is_file() else {})
        if sorted(self._of) != list(range(max(done - self.lag, 0), done)):
            raise ValueError(
                f"the state that start names holds the weights of {len(self._of)} earlier "
                f"iterations, and lag is {self.lag}; all segments of a run have one lag"
            )


@dataclass(frozen=True)
class Lagged:
    """A `Source` that draws the next iterations while the trainer works on this one.

    earlier: has the weights of this iteration and of those before it.
    thread: a single one, as an engine has the weights of one iteration at a time.
    """

    sampled: Sampled
    earlier: Earlier
    thread: Executor
    _drawing: dict[int, Future[Sequence[Rollout]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(engine := self.sampled.engine, SlotEngine):
            engine.replays = False  # while a forward is recorded, nobody may train in this process

    def draw(self, iteration: int) -> Sequence[Rollout]:
        """As `Source.draw`."""
        end = min(iteration + self.earlier.lag + 1, self.earlier.end)
        for later in range(iteration, end):
            if later not in self._drawing:
                weights = self.earlier.that_draw(later)
                self._drawing[later] = self.thread.submit(self.sampled.drawn_by, weights, later)
        return self._drawing.pop(iteration).result()

    def forget(self, iteration: int) -> None:
        """As `Source.forget`; what was drawn ahead is forgotten too."""
        wait(self._drawing.values())
        for number in (iteration, *self._drawing):
            self.sampled.forget(number)
