"""Rollouts by iteration: those in a segment's scratch, and those of a finished recording."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from steps.online.rollouts import Rollout, read_recording, read_rollouts, write_rollouts


class Kept:
    """A segment's rollouts in scratch: one folder for each iteration, written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Store an iteration's rollouts, replacing earlier ones."""
        final = self._of(iteration)
        unfinished = final.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write_rollouts(unfinished, rollouts)
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)

    def get(self, iteration: int, weights: str) -> list[Rollout] | None:
        """An iteration's rollouts, if they exist, are complete, and were sampled with `weights`."""
        try:
            rollouts = list(read_rollouts(self._of(iteration)))
        except (OSError, ValueError):
            return None
        return rollouts if {rollout.weights for rollout in rollouts} == {weights} else None

    def drop(self, iteration: int) -> None:
        """Remove an iteration's rollouts, if they exist."""
        shutil.rmtree(self._of(iteration), ignore_errors=True)

    def all(self, iterations: Iterable[int]) -> Iterator[Rollout]:
        """The rollouts of all these iterations.

        Raises ValueError, which names the iteration, if one is missing or damaged.
        """
        for iteration in iterations:
            try:
                yield from read_rollouts(self._of(iteration))
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"the rollouts of iteration {iteration + 1} were in the scratch and cannot be "
                    f"read any more ({error}); delete {self.folder.parent} to run the segment again"
                ) from error

    def _of(self, iteration: int) -> Path:
        return self.folder / f"iteration-{iteration:06d}"


class Recorded:
    """A finished recording as a source of rollouts.

    If the recording has several iterations, these are used; otherwise its rows are divided into
    iterations of `prompts` rows. `first` is the number of the first iteration in the reading run.

    Raises ValueError if nothing in the recording has a reward, where it `needs_rewards`.
    """

    def __init__(
        self, folder: Path, prompts: int, first: int = 0, needs_rewards: bool = True
    ) -> None:
        rows = read_recording(folder)
        named = sorted({iteration for iteration, _ in rows})
        if named and named != list(range(named[0], named[-1] + 1)):
            raise ValueError(f"{folder} lacks iterations between {named[0]} and {named[-1]}")
        keys = list(rows)
        if len(named) > 1:
            parts = [[key for key in keys if key[0] == number] for number in named]
        else:
            parts = [keys[start : start + prompts] for start in range(0, len(keys), prompts)]
        self.iterations = [list(chain.from_iterable(rows[key] for key in part)) for part in parts]
        self._first = first
        rewarded = (rollout.is_rewarded for drawn in rows.values() for rollout in drawn)
        if needs_rewards and not any(rewarded):
            raise ValueError(
                f"no rollout of {folder} has a reward; judge them first, or see in `verdict` and "
                "`reason` why the last checker gave none"
            )

    def draw(self, iteration: int) -> Sequence[Rollout]:
        """The rollouts for the 0-based `iteration` of the reading run."""
        return self.iterations[iteration - self._first]

    def forget(self, iteration: int) -> None:
        """As `Source.forget`: a recording stays what it is."""
