"""Rollouts: the completions that a policy sampled, as token ids.

    FOLDER/rollouts-00000.parquet    one row per completion, ordered by iteration, row and number k
           prompts-00000.parquet     the prompts, with the right answers if known
           tokenizer.json            decodes the ids
           chat_template.json        wrote the prompts
           engine.json               describes the sampling engine

Training uses the token ids; text is only for checkers and people. A text does not show how the
completion ended, and tokenising it again may give other tokens than the policy sampled.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from steps.checking.verdicts import Verdict
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.tables import ROW, ROWS_PER_SHARD
from steps.generation.engine import Finish, Finished, Request

if TYPE_CHECKING:  # whoever reads rollouts needs no torch
    from steps.models.ranks import Ranks

_IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))
ROLLOUTS = pa.schema(
    [
        pa.field("iteration", pa.int32(), nullable=False),
        ROW,
        pa.field("k", pa.int32(), nullable=False),
        pa.field("prompt_ids", _IDS, nullable=False),
        pa.field("ids", _IDS, nullable=False),
        pa.field("scored", pa.list_(pa.bool_()), nullable=False),
        pa.field("logps", pa.list_(pa.float32()), nullable=False),
        pa.field("policy_logps", pa.list_(pa.float64())),
        pa.field("finish", pa.string(), nullable=False),
        pa.field("rewards", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("verdict", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("weights", pa.string(), nullable=False),
    ]
)
"""The fields of `Rollout`."""
_LARGEST_REWARD = 1e100
"""The square of a larger one could be no number."""
OF_DATA = "data"
"""In place of a digest of weights: an answer of data, with the logps of the policy."""
_ROUNDING = 0.01
"""What rounding may add to a logp of 0."""


@dataclass(frozen=True)
class Rollout:
    """One completion of a prompt.

    iteration: the iteration of an online run; 0 for other rollouts.
    k: the number of the completion among those of its row.
    ids: the tokens after the prompt, including the stop token if there is one.
    scored: for each of `ids`, whether the policy sampled it; the output of a tool is context.
    logps: for each of `ids`, its log-probability under the sampler, in the distribution that it was
        drawn from; 0 if it is not scored.
    policy_logps: the log-probabilities under the trainer with the same weights; None until they are
        computed.
    rewards: the rewards by name; None of a checker without a verdict, or of a reward model without
        a score.
    verdict, reason: from the checker; None before a checker has judged the completion.
    weights: the digest of the sampler's weights.
    """

    row: str
    k: int
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    scored: tuple[bool, ...]
    logps: tuple[float, ...]
    finish: Finish
    weights: str
    iteration: int = 0
    policy_logps: tuple[float, ...] | None = None
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    verdict: Verdict | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        lengths = {"scored": self.scored, "logps": self.logps, "policy_logps": self.policy_logps}
        for name, values in lengths.items():
            if values is not None and len(values) != len(self.ids):
                raise ValueError(
                    f"row {self.row!r}, completion {self.k}: {name} has {len(values)} values for "
                    f"{len(self.ids)} ids; sample it again"
                )
        for name, reward in self.rewards.items():
            if reward is not None and not abs(reward) <= _LARGEST_REWARD:  # nor for a NaN
                raise ValueError(
                    f"row {self.row!r}, completion {self.k}: its reward {name} is {reward}, with "
                    "which others cannot be compared; give null where there is none"
                )
        if any(min(ids, default=0) < 0 for ids in (self.prompt_ids, self.ids)):
            raise ValueError(
                f"row {self.row!r}, completion {self.k}: it has a negative token id; sample it "
                "again"
            )
        # The sum shows NaN and infinities; this runs several times for every completion.
        if not math.isfinite(sum(self.logps)) or max(self.logps, default=0) >= _ROUNDING:
            raise ValueError(
                f"row {self.row!r}, completion {self.k}: its logps are no log-probabilities; see "
                "whether the weights of the model that sampled it are finite"
            )

    @property
    def is_rewarded(self) -> bool:
        """Whether its rewards can be compared with those of others: where one is missing, the rest
        is a part of the sum only."""
        is_whole = bool(self.rewards) and None not in self.rewards.values()
        return is_whole and self.verdict is not Verdict.none

    @property
    def reward(self) -> float:
        """The sum of its rewards, if it `is_rewarded`."""
        return sum(reward for reward in self.rewards.values() if reward is not None)

    @property
    def is_cut(self) -> bool:
        """Whether the completion has no stop token from the policy: it was cut, or it failed."""
        return self.finish is not Finish.stop

    @property
    def last_turn(self) -> tuple[int, ...]:
        """What the policy drew behind the last reply; all of `ids`, where there was none."""
        drawn_last = self.scored[::-1].index(False) if False in self.scored else len(self.ids)
        return self.ids[len(self.ids) - drawn_last :]


def as_rollout(request: Request, finished: Finished, iteration: int = 0) -> Rollout:
    """What an engine gave to a request."""
    return Rollout(
        request.row,
        request.k,
        request.prompt_ids,
        finished.ids,
        (True,) * len(finished.ids) if finished.scored is None else finished.scored,
        finished.logps,
        finished.finish,
        finished.weights,
        iteration,
    )


def write_rollouts(folder: Path, rollouts: Iterable[Rollout]) -> int:
    """Write ``rollouts-*.parquet`` in the given order; return the number of rollouts.

    Logps become float32; `policy_logps` stay float64, so that the first ratio to them is exactly 1.
    """
    rest = iter(rollouts)
    total = 0
    for number in count():
        shard = list(islice(rest, ROWS_PER_SHARD))
        if shard or number == 0:
            total += write_rollout_file(folder / f"rollouts-{number:05d}.parquet", shard)
        if len(shard) < ROWS_PER_SHARD:
            break
    return total


def write_rollout_file(file: Path, rollouts: Iterable[Rollout]) -> int:
    """Writes one file of rollouts, whole or not at all; how many there are."""
    return write_rows(file, ROLLOUTS, map(_to_record, rollouts))


def read_rollouts(path: Path) -> Iterator[Rollout]:
    """The rollouts of a folder, or of one file.

    Raises:
        FileNotFoundError: there are none.
        ValueError: a file holds something else, or a row that cannot be a rollout; it names it.
    """
    source = path if path.is_file() else None
    files = [source] if source else sorted(path.glob("rollouts-*.parquet"))
    if not files:
        raise FileNotFoundError(f"{path} holds no rollouts; sample them with sample_rollouts")
    for file in files:
        for record in iter_rows(file, ROLLOUTS.names):
            try:
                yield _from_record(record)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{file}: {error}") from error


def read_recording(folder: Path) -> dict[tuple[int, str], list[Rollout]]:
    """The completions of each row of each iteration of a recording; see `by_row`.

    Raises, besides what `read_rollouts` does, ValueError for a row that does not have as many
    completions as the others of its iteration, in order, which one policy sampled for one prompt.
    """
    rows = by_row(read_rollouts(folder))
    most = {number: len(drawn) for (number, _), drawn in sorted(rows.items(), key=_by_count)}
    for (iteration, row), drawn in rows.items():
        numbers = list(range(most[iteration]))
        shared = {(rollout.prompt_ids, rollout.weights) for rollout in drawn}
        if [r.k for r in drawn] != numbers or len(shared) > 1 or not drawn[0].prompt_ids:
            raise ValueError(
                f"{folder}: iteration {iteration}, row {row!r}: it does not have {len(numbers)} "
                "completions in order, of one prompt by one policy, like other rows; use the "
                "recording as it was sampled"
            )
    return rows


def _by_count(row: tuple[tuple[int, str], list[Rollout]]) -> int:
    return len(row[1])


def of_first(ranks: "Ranks", rollouts: Sequence[Rollout] | None) -> list[Rollout]:
    """The first rank's rollouts, on every rank; the others' are ignored."""
    return of_all(ranks, (rollouts or ()) if ranks.is_first else ())


def of_all(ranks: "Ranks", own: Iterable[Rollout]) -> list[Rollout]:
    """The rollouts of all ranks, rank after rank."""
    if ranks.count == 1:
        return list(own)
    told = ranks.gather(list(map(_to_record, own)))
    return [_from_record(record) for of_rank in told for record in of_rank]


def by_row(rollouts: Iterable[Rollout]) -> dict[tuple[int, str], list[Rollout]]:
    """The completions of each row of each iteration, in the order in which rows come first."""
    groups: dict[tuple[int, str], list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault((rollout.iteration, rollout.row), []).append(rollout)
    return groups


def texts(folder: Path, completions: Iterable[Sequence[int]]) -> list[str]:
    """What token ids say, without special tokens, by the folder's ``tokenizer.json``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode_batch(list(map(list, completions)), skip_special_tokens=True)


def _to_record(rollout: Rollout) -> dict[str, Any]:
    return {**vars(rollout), "rewards": sorted(rollout.rewards.items())}


def _from_record(record: Mapping[str, Any]) -> Rollout:
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    verdict = values["verdict"]
    return Rollout(
        **{
            **values,
            "rewards": dict(values["rewards"]),
            "finish": Finish(values["finish"]),
            "verdict": None if verdict is None else Verdict(verdict),
        }
    )
