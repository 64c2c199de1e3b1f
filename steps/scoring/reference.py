"""Reference logps: a frozen model's log-probabilities of responses, computed once for all runs.

    OUTPUT/logps-00000.parquet    group_id     what the group's tokens and masks are hashed to
                                  logps        for each response, the sum over its scored tokens
                                  scored       for each response, the number of its scored tokens
                                  token_logps  for each response, the logp of each scored token

A reader looks logps up by `group_id`, never by position. So neither another order of rows nor a
changed tokenisation can give a policy another row's reference. It also compares the numbers of
scored tokens, because other masks over the same tokens would give other sums. The metadata of each
file records how it was computed (`ScoredBy`).

Several ranks share the packs of every shard, and the first rank writes it.

For single responses the reference also scores each prompt with the response of the row before it;
KTO estimates its baseline from these.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.config import Dtype
from steps.models.folders import load_model, vocabulary_size
from steps.models.positions import beyond_training
from steps.models.ranks import Ranks
from steps.models.workplace import Left, Workplace
from steps.scoring.config import ReferenceConfig
from steps.scoring.examples import (
    Groups,
    TokenGroup,
    facts_of,
    longest,
    mismatched,
    read_pairs,
    read_unpaired,
)
from steps.scoring.logps import TokenLogps
from steps.scoring.packing import lengths_of
from steps.scoring.parity import Packing, choose_attention, slow_on_gpu
from steps.scoring.scored_by import ScoredBy, model_digest
from steps.scoring.scorer import LOGPS, Logps, Readout, Scorer, build_scorer

MODEL = b"model"
_SIDES = {1: ("response",), 2: ("chosen", "rejected")}


def run_reference(
    model: Path,
    records: Iterable[Mapping[str, Any]],
    config: ReferenceConfig,
    place: Workplace,
    loaded: PreTrainedModel | None = None,
) -> dict[str, Any]:
    """Score every distinct group of `records` (pairs, or labelled responses) with a model folder.

    Finished shards stay in `scratch` and are not computed again. Progress counts groups.

    Args:
        loaded: the model of the folder in `config.dtype`, if it is in memory, for a single rank
            without another backend or quantization. Its attention is changed.

    Returns the metrics `groups`, `tokens`, the means `logps/chosen` and `logps/rejected` (or
    `logps/response`), and `notices` if there are any. Only the first rank writes files and returns
    metrics; the others return an empty dict.

    Raises:
        FloatingPointError: the logps of a row, which the message names, are not finite.
        Left: `place.stopping` is true on any rank; raised between two shards.
    """
    opened = open_model(model, config, place.ranks, loaded)
    groups = distinct(_groups_of(records, opened.vocabulary))
    scored_by, notices = opened.make_ready(groups)
    schema = _schema(scored_by, model_digest(model) if place.ranks.is_first else "")
    form = ScoredFiles("logps", schema, _columns)
    tables = write_scores(opened, groups, config.groups_per_shard, form, place)
    sums = [_array(table["logps"]) for table in tables]
    if not place.ranks.is_first:
        return {}
    sides = _SIDES[len(groups[0].responses)]
    means = np.concatenate(sums).mean(axis=0)
    return {
        "groups": len(groups),
        "tokens": int(groups.facts["tokens"].sum()),
        **{f"logps/{side}": float(mean) for side, mean in zip(sides, means, strict=True)},
        **({"notices": notices} if notices else {}),
    }


@dataclass(frozen=True)
class ScoredFiles:
    """What files of scores hold: `NAME-00000.parquet` and so on.

    schema: `group_id` first; its metadata say how the scores were computed.
    columns: the other columns, from groups and what the readout gives for the scored tokens of each
        of their responses.
    """

    name: str
    schema: pa.Schema
    columns: Callable[[Sequence[TokenGroup], Sequence[Tensor]], list[pa.Array]]


def write_scores(
    opened: "OpenModel",
    groups: Sequence[TokenGroup],
    per_shard: int,
    form: ScoredFiles,
    place: Workplace,
) -> Iterator[pa.Table]:
    """Score `groups`, of which no two have one id, and write them as files of `per_shard` groups to
    the output; yield their tables, on the first rank only. Closes the scorer at the end.

    Finished files stay in `scratch` and are not computed again. Progress counts groups.

    Raises Left when `place.stopping` is true on any rank, between two files.
    """
    ranks, done = place.ranks, 0
    shards = [
        _Shard(
            place.scratch / "shards" / f"{form.name}-{number:05d}.parquet",
            groups[start : start + per_shard],
            form,
        )
        for number, start in enumerate(range(0, len(groups), per_shard))
    ]
    for shard, table in _finished(shards, opened, ranks):
        if table is not None:
            yield table
        done += len(shard.groups)
        place.on_progress(done, len(groups), {})
        (leaving,) = ranks.any(place.stopping())
        if leaving and done < len(groups):
            raise Left(f"left after {done} of {len(groups)} examples, whose logps are kept")
    opened.scorer.close()
    if ranks.is_first:
        place.output.mkdir(parents=True, exist_ok=True)
        for shard in shards:
            shutil.copyfile(shard.path, place.output / shard.path.name)


def write_file(
    file: Path, opened: "OpenModel", groups: Sequence[TokenGroup], form: ScoredFiles, ranks: Ranks
) -> None:
    """Score `groups` and write them as one file, unless it has them; no rank returns before."""
    list(_finished([_Shard(file, groups, form)], opened, ranks))
    ranks.wait()


class OpenModel(Protocol):
    """A loaded model that computes logps.

    known: for the ids of some groups the logps that `make_ready` computed: of each response, those
        of its scored tokens.
    """

    @property
    def scorer(self) -> Scorer: ...

    @property
    def known(self) -> Mapping[str, Sequence[Tensor]]: ...

    @property
    def vocabulary(self) -> int: ...

    def make_ready(self, groups: Sequence[TokenGroup]) -> tuple[ScoredBy, list[str]]:
        """Choose how the model computes `groups`. Returns a record of that, and notices for the
        user. Call it before the first batch is prepared."""
        ...


def open_model(
    folder: Path,
    config: ReferenceConfig,
    ranks: Ranks,
    loaded: PreTrainedModel | None = None,
    readout: Callable[[int], Readout] | None = None,
) -> OpenModel:
    """Load the model of a folder with the backend of `config`; see `run_reference`.

    Args:
        readout: what is read of the model, given the number of its tokens, without another backend;
            by default log-probabilities.
    """
    if config.backend is not None:
        return config.backend.open_model(folder, config, ranks)
    model = loaded
    if model is None:
        model = load_model(folder, config.dtype, ranks.count > 1, config.quantization)
    return _TorchModel(model, config, ranks, readout)


class _TorchModel:
    """A transformers model, on this process's device or sharded over ranks."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: ReferenceConfig,
        ranks: Ranks,
        readout: Callable[[int], Readout] | None = None,
    ) -> None:
        self._model = model
        self._config, self._ranks = config, ranks
        self.vocabulary = vocabulary_size(self._model)
        read = LOGPS if readout is None else readout(self.vocabulary)
        self.scorer = build_scorer(self._model, config.tokens_per_forward, ranks, read)
        self.known: Mapping[str, Sequence[Tensor]] = {}

    def make_ready(self, groups: Sequence[TokenGroup]) -> tuple[ScoredBy, list[str]]:
        config, model = self._config, self._model
        packing = choose_attention(self.scorer, groups, config.attention, self._ranks)
        of_logps = self.scorer.readout is LOGPS
        if of_logps and model.device.type == "cpu" and self._ranks.count == 1:
            self.known = _by_group(packing)  # the bits of any other pack
        slow = slow_on_gpu(model, config.tokens_per_forward)
        told = (packing.notice, beyond_training(model, *longest(groups)), slow)
        scored_by = ScoredBy.of(model, config.dtype, packing.attention, config.tokens_per_forward)
        return scored_by, [notice for notice in told if notice]


def _by_group(packing: Packing) -> dict[str, Sequence[Tensor]]:
    """The logps of the groups that were compared, if packs are correct."""
    if packing.read is None:
        return {}
    tokens = iter(packing.read.split([r.num_scored for g in packing.compared for r in g.responses]))
    return {g.group_id: [next(tokens) for _ in g.responses] for g in packing.compared}


@dataclass(frozen=True)
class Reference:
    """The content of a folder that `run_reference` wrote. `model` is the model's digest."""

    folder: Path
    scored_by: ScoredBy
    model: str
    _ids: np.ndarray
    _logps: np.ndarray
    _scored: np.ndarray

    def of(self, groups: Sequence[TokenGroup]) -> Tensor:
        """The logps of `groups`, float64 [n, responses of a group], in their order.

        Raises ValueError, which names the row, if a group is missing or if it has another number of
        scored tokens.
        """
        return torch.from_numpy(self._logps[self._positions(groups)])

    def _positions(self, groups: Sequence[TokenGroup]) -> np.ndarray:
        facts, order = facts_of(groups), self._order
        found = np.searchsorted(self._ids, facts["group_id"], sorter=order)
        found = order[found.clip(max=len(order) - 1)]
        missing = np.flatnonzero(self._ids[found] != facts["group_id"])
        if len(missing):
            first = groups[int(missing[0])]
            raise ValueError(
                f"the reference in {self.folder} lacks {len(missing)} of {len(groups)} rows, the "
                f"first of them {first.group_id} (row {first.row!r}); compute it from the same "
                "tokens"
            )
        differs = np.flatnonzero((self._scored[found] != facts["scored"]).any(axis=1))
        if len(differs):
            number = int(differs[0])
            group, scored = groups[number], self._scored[found[number]].tolist()
            raise ValueError(
                f"the reference in {self.folder} scored {scored} tokens of the responses of "
                f"{group.group_id} (row {group.row!r}), but these tokens mark "
                f"{facts['scored'][number].tolist()}; compute it from the same tokens"
            )
        return found

    @cached_property
    def _order(self) -> np.ndarray:
        return self._ids.argsort()

    def tokens_of(self, groups: Sequence[TokenGroup]) -> TokenLogps:
        """The logps of `groups`, in their order, token by token; raises ValueError as `of` does."""
        positions = self._positions(groups)
        files = sorted(self.folder.glob("logps-*.parquet"))
        column = pa.concat_tables(verified(file, ["token_logps"]) for file in files)["token_logps"]
        wanted = column.take(numbers(positions))
        tokens = np.from_dlpack(wanted.combine_chunks().flatten().flatten())
        return TokenLogps(torch.from_numpy(tokens.astype(np.float64)), lengths_of(groups))


def show_packing(references: Sequence[Reference], model: Path, packed: ScoredBy) -> bool:
    """Whether `references` were computed in the way `packed`, by the model in the folder `model`.
    Then packs of their examples were already compared with the model's own forward."""
    if not references or not all(r.scored_by.is_packed_alike(packed) for r in references):
        return False
    return {reference.model for reference in references} == {model_digest(model)}


def read_reference(folder: Path) -> Reference:
    """The reference logps in `folder`; raises ValueError if files are missing or damaged."""
    files = sorted(folder.glob("logps-*.parquet"))
    if not files:
        raise ValueError(f"{folder} has no reference logps; compute them with reference_logprobs")
    tables = [verified(file, ["group_id", "logps", "scored"]) for file in files]
    metadata = tables[0].schema.metadata or {}
    if any((table.schema.metadata or {}) != metadata for table in tables):
        raise ValueError(f"the files in {folder} were not computed in one way; compute them again")
    table = pa.concat_tables(tables)
    ids = [np.array(each["group_id"].cast(pa.binary()).to_pylist(), np.bytes_) for each in tables]
    return Reference(
        folder,
        ScoredBy.from_metadata(metadata),
        metadata.get(MODEL, b"").decode(),
        np.concatenate(ids),
        _array(table["logps"]),
        _array(table["scored"]),
    )


def verified(file: Path, columns: Sequence[str]) -> pa.Table:
    """Columns of a file that `run_reference` wrote; raises ValueError if it is damaged."""
    try:
        return _read(file, columns)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ValueError(f"{file} is damaged ({error}); compute it again") from error


def _read(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The columns of a file, or all. (`pq.read_table` would import pandas.)

    Raises KeyError if a column is missing.
    """
    with pq.ParquetFile(file, page_checksum_verification=True) as opened:
        table = opened.read(columns)
    return table if columns is None else table.select(columns)


@dataclass(frozen=True)
class _Shard:
    path: Path
    groups: Sequence[TokenGroup]
    form: ScoredFiles

    def finished(self) -> pa.Table | None:
        """The table at `path`; None if it is missing or damaged, or if it holds other groups or was
        computed in another way."""
        try:
            table = _read(self.path)
        except (OSError, pa.ArrowException):
            return None
        schema = self.form.schema
        # Types are not compared, because Parquet renames the elements of lists.
        if (table.schema.names, table.schema.metadata) != (schema.names, schema.metadata):
            return None
        wanted = [group.group_id for group in self.groups]
        return table if table["group_id"].to_pylist() == wanted else None

    def write(self, scores: Sequence[Tensor]) -> pa.Table:
        """Write the table atomically, from the scores of each response's scored tokens."""
        ids = texts([group.group_id for group in self.groups])
        table = pa.table([ids, *self.form.columns(self.groups, scores)], schema=self.form.schema)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".unfinished")
        pq.write_table(table, unfinished, compression="zstd", write_page_checksum=True)
        unfinished.replace(self.path)
        return table


def _finished(
    shards: Sequence[_Shard], opened: OpenModel, ranks: Ranks
) -> Iterator[tuple[_Shard, pa.Table | None]]:
    """Yield the shards in order as they are finished; on the first rank with their tables.

    The next shard is queued before the code waits for the current one, so that the device always
    has work."""
    scorer = opened.scorer
    waiting: tuple[_Shard, Future[Logps] | None] | None = None

    def written(shard: _Shard, scored: Future[Logps] | None) -> tuple[_Shard, pa.Table | None]:
        rest = () if scored is None else scored.result().tokens
        logps = _with_known(shard.groups, opened.known, rest)
        return shard, shard.write(logps) if ranks.is_first else None

    for shard in shards:
        shard = replace(shard, groups=list(shard.groups))  # read once
        table = shard.finished() if ranks.is_first else None
        (is_there,) = ranks.any(table is not None)
        rest = [] if is_there else [g for g in shard.groups if g.group_id not in opened.known]
        queued = scorer.logps(scorer.prepare(rest)) if rest else None
        if waiting:
            yield written(*waiting)
        if is_there:
            yield shard, table
        waiting = None if is_there else (shard, queued)
    if waiting:
        yield written(*waiting)


def _with_known(
    groups: Sequence[TokenGroup], known: Mapping[str, Sequence[Tensor]], rest: Sequence[Tensor]
) -> list[Tensor]:
    """For each response of `groups` the logps of its scored tokens: `known` has those of some
    groups, and `rest` those of the others, in their order."""
    others = iter(rest)
    return [
        tokens
        for group in groups
        for tokens in known.get(group.group_id) or [next(others) for _ in group.responses]
    ]


def _columns(groups: Sequence[TokenGroup], logps: Sequence[Tensor]) -> list[pa.Array]:
    tokens, scored = torch.cat(list(logps)), [len(response) for response in logps]
    sums = TokenLogps(tokens.double(), lengths_of(groups)).sums()
    require_finite_scores(groups, sums)
    by_response = lists(tokens.numpy(), scored)
    per_group = [sums.shape[1]] * len(groups)
    return [
        lists(sums.flatten().numpy(), per_group),
        lists(np.array(scored, np.int32), per_group),
        lists(by_response, per_group),
    ]


def _schema(scored_by: ScoredBy, digest: str) -> pa.Schema:
    per_token = pa.float64() if scored_by.dtype is Dtype.float64 else pa.float32()
    return pa.schema(
        [
            pa.field("group_id", pa.string(), nullable=False),
            pa.field("logps", pa.list_(pa.float64()), nullable=False),
            pa.field("scored", pa.list_(pa.int32()), nullable=False),
            pa.field("token_logps", pa.list_(pa.list_(per_token)), nullable=False),
        ],
        metadata={**scored_by.metadata(), MODEL: digest},
    )


def _groups_of(records: Iterable[Mapping[str, Any]], vocabulary: int) -> Groups:
    """The groups whose reference logps a training on `records` needs."""
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


def distinct(groups: Groups) -> Groups:
    """One group of each id; raises ValueError, which names two rows, if groups with one id have
    other tokens or masks, as one would get the logps of the other."""
    _, places, of_each = np.unique(groups.facts["group_id"], return_index=True, return_inverse=True)
    of_each = places[of_each]
    for number in np.flatnonzero(of_each != np.arange(len(groups))).tolist():
        first, group = groups[int(of_each[number])], groups[number]
        if (first.prompt_ids, first.responses) != (group.prompt_ids, group.responses):
            raise ValueError(
                f"the rows {first.row!r} and {group.row!r} have other tokens or masks and one id, "
                f"{group.group_id}; tokenise them again"
            )
    return groups.take(np.sort(places))


def require_finite_scores(groups: Sequence[TokenGroup], sums: Tensor) -> None:
    for group, finite in zip(groups, torch.isfinite(sums).all(dim=1).tolist(), strict=True):
        if not finite:
            raise FloatingPointError(
                f"{group.group_id} (row {group.row!r}) has logps that are not finite; try "
                "dtype=float32, or drop the row"
            )


def lists(values: np.ndarray | pa.Array, lengths: Sequence[int]) -> pa.ListArray:
    """`values` cut into lists of these lengths."""
    items = numbers(values) if isinstance(values, np.ndarray) else values
    return pa.ListArray.from_arrays(numbers(_starts(lengths)), items)


def texts(values: Sequence[str]) -> pa.StringArray:
    data = [value.encode() for value in values]
    starts = pa.py_buffer(_starts([len(value) for value in data]))
    return pa.StringArray.from_buffers(len(data), starts, pa.py_buffer(b"".join(data)))


def numbers(values: np.ndarray) -> pa.Array:
    """An Arrow array of these bytes. (`pa.array` would import pandas.)"""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values)])


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int32)


def _array(column: pa.ChunkedArray) -> np.ndarray:
    """A column of lists of one length, as an array [rows, length]. (`to_numpy` would import
    pandas.)"""
    lists = column.combine_chunks()
    starts, values = np.from_dlpack(lists.offsets), np.from_dlpack(lists.values)
    return values[starts[0] : starts[-1]].reshape(len(column), -1)
