"""Reference logps: what a frozen model thinks of each response, computed once, read by every run.

    OUTPUT/logps-00000.parquet    group_id     what the group's tokens and masks are hashed to
                                  logps        of each response, the sum over its scored tokens
                                  scored       of each response, how many those are
                                  token_logps  of each response, token by token

They are looked up by `group_id`, never by position, so neither the order of the rows nor a changed
tokenisation can pair a policy with another row's reference; and counted, as other masks over the
same tokens would give sums of other tokens. Each file says how it was computed (`Scoring`).

Several ranks share the packs of every shard, and the first writes it.

For single responses the reference also scores each prompt with the response of the row before it,
on which the baseline of KTO is found.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from steps.training.backends.build import build_backend
from steps.training.backends.protocol import Backend, Logps
from steps.training.config import Dtype, ReferenceConfig
from steps.training.examples import TokenGroup, read_pairs, read_unpaired
from steps.training.leaving import Left
from steps.training.mismatched import mismatched
from steps.training.models import load_model, vocabulary_size
from steps.training.parity import choose_attention
from steps.training.positions import beyond_training
from steps.training.ranks import Ranks
from steps.training.scored_by import ScoredBy, model_digest
from steps.training.workplace import Workplace

START_TOLERANCE = {Dtype.float64: 1e-9, Dtype.float32: 1e-4, Dtype.bfloat16: 2e-2}
"""How far apart, in nats a scored token, logps may be that should be the same: what other kernels
and other packs change, over a response of 400 tokens or more. Roundings have both signs: of fewer
tokens, n, the mean may be √(400/n) times as far off."""

_MODEL = b"model"
_SIDES = {1: ("response",), 2: ("chosen", "rejected")}


def run_reference(
    model: Path,
    records: Iterable[Mapping[str, Any]],
    config: ReferenceConfig,
    place: Workplace,
) -> dict[str, Any]:
    """Scores every distinct group of `records` (pairs, or labelled responses) with a model folder.

    Finished shards are kept in `scratch` and not computed again. Progress counts groups. Returns
    `groups`, `tokens`, means (`logps/chosen` and `logps/rejected`, or `logps/response`) and perhaps
    `notices`; that is on the first of several ranks, which alone writes. Raises FloatingPointError
    naming a row whose logps are not finite, and Left between two shards once `stopping` says so on
    any rank.
    """
    ranks, output = place.ranks, place.output
    scorer = load_model(model, config.dtype, on_host=ranks.count > 1)
    groups = _distinct(_groups_of(records, vocabulary_size(scorer)))
    backend = build_backend(scorer, config.tokens_per_forward, ranks)
    packing = choose_attention(backend, groups, config.attention, ranks)
    scored_by = ScoredBy.of(scorer, config.dtype, packing.attention, config.tokens_per_forward)
    schema = _schema(scored_by, model_digest(model) if ranks.is_first else "")
    shards = [
        _Shard(
            place.scratch / "shards" / f"logps-{number:05d}.parquet",
            groups[start : start + config.groups_per_shard],
        )
        for number, start in enumerate(range(0, len(groups), config.groups_per_shard))
    ]
    done, sums = 0, []
    for shard, table in _finished(shards, backend, schema, ranks):
        sums += [] if table is None else [_array(table["logps"])]
        done += len(shard.groups)
        place.on_progress(done, len(groups), {})
        (leaving,) = ranks.any(place.stopping())
        if leaving and done < len(groups):
            raise Left(f"left after {done} of {len(groups)} examples, whose logps are kept")
    backend.close()
    if not ranks.is_first:
        return {}
    output.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        shutil.copyfile(shard.path, output / shard.path.name)
    notices = [told for told in (packing.notice, beyond_training(scorer, groups)) if told]
    sides = _SIDES[len(groups[0].responses)]
    means = np.concatenate(sums).mean(axis=0)
    return {
        "groups": len(groups),
        "tokens": sum(group.num_tokens for group in groups),
        **{f"logps/{side}": float(mean) for side, mean in zip(sides, means, strict=True)},
        **({"notices": notices} if notices else {}),
    }


@dataclass(frozen=True)
class Reference:
    """A folder that `run_reference` wrote, read. `model`: the digest of the model's folder."""

    folder: Path
    scored_by: ScoredBy
    model: str
    _positions: Mapping[str, int]
    _logps: np.ndarray
    _scored: np.ndarray

    def of(self, groups: Sequence[TokenGroup]) -> Tensor:
        """The logps of `groups`, float64 [n, responses of a group], in their order.

        Raises ValueError naming a row that has none, or has other scored tokens.
        """
        missing = [group for group in groups if group.group_id not in self._positions]
        if missing:
            raise ValueError(
                f"the reference in {self.folder} lacks {len(missing)} of {len(groups)} rows, the "
                f"first of them {missing[0].group_id} (row {missing[0].row!r}); compute it from "
                "the same tokens"
            )
        selected = [self._positions[group.group_id] for group in groups]
        for group, scored in zip(groups, self._scored[selected].tolist(), strict=True):
            marked = [response.num_scored for response in group.responses]
            if scored != marked:
                raise ValueError(
                    f"the reference in {self.folder} scored {scored} tokens of the responses of "
                    f"{group.group_id} (row {group.row!r}), but these tokens mark {marked}; "
                    "compute it from the same tokens"
                )
        return torch.from_numpy(self._logps[selected])

    def shows_packing(self, model: Path, packed: ScoredBy) -> bool:
        """Whether this was computed as `packed` says, of the `model` of this folder: then packs of
        what it has scored were compared with the model's own forward already."""
        return self.scored_by.is_packed_alike(packed) and self.model == model_digest(model)


def read_reference(folder: Path) -> Reference:
    """The reference logps in `folder`; raises ValueError if there are none, or damaged ones."""
    files = sorted(folder.glob("logps-*.parquet"))
    if not files:
        raise ValueError(f"{folder} has no reference logps; compute them with reference_logprobs")
    tables = [_verified(file, ["group_id", "logps", "scored"]) for file in files]
    metadata = tables[0].schema.metadata or {}
    if any((table.schema.metadata or {}) != metadata for table in tables):
        raise ValueError(f"the files in {folder} were not computed in one way; compute them again")
    table = pa.concat_tables(tables)
    ids = table["group_id"].to_pylist()
    return Reference(
        folder,
        ScoredBy.from_metadata(metadata),
        metadata.get(_MODEL, b"").decode(),
        {group_id: row for row, group_id in enumerate(ids)},
        _array(table["logps"]),
        _array(table["scored"]),
    )


def _verified(file: Path, columns: Sequence[str]) -> pa.Table:
    """Columns of a file that `run_reference` wrote; raises ValueError if it is damaged."""
    try:
        return pq.read_table(file, columns=columns, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{file} is damaged ({error}); compute it again") from error


def check_start(
    now: Tensor,
    groups: Sequence[TokenGroup],
    policy: Path,
    scored_by: ScoredBy,
    reference: Reference,
) -> None:
    """That a policy which has not moved yet gives `groups` what its reference gives them.

    Then the first step has rewards of zero: exactly on a CPU, and up to a rounding of
    `START_TOLERANCE` elsewhere. Raises ValueError saying what does not match.

    Args:
        now: the policy's logps of the groups, float64 [n, responses of a group].
        policy: the folder that it was loaded from.
        scored_by: how `now` was computed.
    """
    before = reference.of(groups)
    scored = torch.tensor([[r.num_scored for r in group.responses] for group in groups])
    off = (now - before).abs() / scored
    allowed = START_TOLERANCE[scored_by.dtype] * (400 / scored).sqrt().clamp(min=1)
    excess = (off / allowed).nan_to_num(torch.inf)
    worst, response = divmod(int(excess.argmax()), excess.shape[1])
    if excess[worst, response] <= 1:
        return
    differing = scored_by.differences(reference.scored_by)
    if model_digest(policy) != reference.model:
        differing.insert(0, "model (its weights or its config)")
    raise ValueError(
        f"training would not start from its reference: of row {groups[worst].row!r} the policy has "
        f"logps {_rounded(now[worst])}, the reference in {reference.folder} "
        f"{_rounded(before[worst])}. That is {off[worst, response]:.2g} a token apart, and "
        f"{allowed[worst, response]:.2g} is "
        f"allowed in {scored_by.dtype}. What differs between the two: "
        f"{', '.join(differing) or 'nothing that is recorded, so look at the hardware'}. Compute "
        "the reference from this policy, or set check_start=false if it is meant to be another"
    )


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


@dataclass(frozen=True)
class _Shard:
    path: Path
    groups: Sequence[TokenGroup]

    def finished(self, schema: pa.Schema) -> pa.Table | None:
        """The table at `path`, unless it is missing, torn, of other groups or of another way."""
        try:
            table = pq.read_table(self.path, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            return None
        # Not the types: Parquet has its own names for what is in a list.
        if (table.schema.names, table.schema.metadata) != (schema.names, schema.metadata):
            return None
        wanted = [group.group_id for group in self.groups]
        return table if table["group_id"].to_pylist() == wanted else None

    def write(self, logps: Logps, schema: pa.Schema) -> pa.Table:
        """Writes the table, whole or not at all."""
        sums = logps.sequences.view(len(self.groups), -1)
        _require_finite(self.groups, sums)
        scored = [len(tokens) for tokens in logps.tokens]
        by_response = _lists(torch.cat(logps.tokens).numpy(), scored)
        per_group = [sums.shape[1]] * len(self.groups)
        columns = [
            pa.array([group.group_id for group in self.groups]),
            _lists(logps.sequences.numpy(), per_group),
            _lists(np.array(scored, np.int32), per_group),
            _lists(by_response, per_group),
        ]
        table = pa.table(columns, schema=schema)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        pq.write_table(table, unfinished, compression="zstd", write_page_checksum=True)
        unfinished.replace(self.path)
        return table


def _finished(
    shards: Sequence[_Shard], backend: Backend, schema: pa.Schema, ranks: Ranks
) -> Iterator[tuple[_Shard, pa.Table | None]]:
    """The shards in order, each as soon as it is there, with its table on the first rank; the next
    is queued before one is waited for, so that the device always has work."""
    waiting: tuple[_Shard, Future[Logps]] | None = None

    def written(shard: _Shard, scored: Future[Logps]) -> tuple[_Shard, pa.Table | None]:
        logps = scored.result()
        return shard, shard.write(logps, schema) if ranks.is_first else None

    for shard in shards:
        table = shard.finished(schema) if ranks.is_first else None
        (is_there,) = ranks.any(table is not None)
        queued = None if is_there else (shard, backend.logps(backend.prepare(shard.groups)))
        if waiting:
            yield written(*waiting)
        if is_there:
            yield shard, table
        waiting = queued
    if waiting:
        yield written(*waiting)


def _schema(scored_by: ScoredBy, digest: str) -> pa.Schema:
    per_token = pa.float64() if scored_by.dtype is Dtype.float64 else pa.float32()
    return pa.schema(
        [
            pa.field("group_id", pa.string(), nullable=False),
            pa.field("logps", pa.list_(pa.float64()), nullable=False),
            pa.field("scored", pa.list_(pa.int32()), nullable=False),
            pa.field("token_logps", pa.list_(pa.list_(per_token)), nullable=False),
        ],
        metadata={**scored_by.metadata(), _MODEL: digest},
    )


def _groups_of(records: Iterable[Mapping[str, Any]], vocabulary: int) -> list[TokenGroup]:
    """What training on `records` wants to know of the reference."""
    first, records = _peek(records)
    if "completion_ids" not in first:
        return read_pairs(records, vocabulary)
    groups = read_unpaired(records, vocabulary)
    return groups + mismatched(groups)


def _peek(
    records: Iterable[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]:
    rest = iter(records)
    first = list(islice(rest, 1))
    return (first[0] if first else {}), chain(first, rest)


def _distinct(groups: Iterable[TokenGroup]) -> list[TokenGroup]:
    return list({group.group_id: group for group in groups}.values())


def _require_finite(groups: Sequence[TokenGroup], sums: Tensor) -> None:
    for group, finite in zip(groups, torch.isfinite(sums).all(dim=1).tolist(), strict=True):
        if not finite:
            raise FloatingPointError(
                f"{group.group_id} (row {group.row!r}) has logps that are not finite; try "
                "dtype=float32, or drop the row"
            )


def _lists(values: np.ndarray | pa.Array, lengths: Sequence[int]) -> pa.ListArray:
    """`values` cut into lists of these lengths."""
    return pa.ListArray.from_arrays(np.cumsum([0, *lengths], dtype=np.int32), values)


def _array(column: pa.ChunkedArray) -> np.ndarray:
    """A column of lists of one length, as an array [rows, length]."""
    return column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
