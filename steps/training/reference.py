"""Reference logps: what a frozen model thinks of each pair, computed once and read by every run.

    OUTPUT/logps.parquet   pair_id; chosen_logps, rejected_logps: sums over scored tokens;
                           chosen_tokens, rejected_tokens: how many those are

They are looked up by `pair_id`, a hash of a pair's tokens, never by position, so neither the order
of the pairs nor a changed tokenisation can pair a policy with another row's reference; and counted,
as other masks over the same tokens would give sums of other tokens. The file also records the dtype
it was computed in: across dtypes, logps of a long response differ by more than a reward.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.training.config import Dtype, ReferenceConfig
from steps.training.examples import TokenPair, read_pairs
from steps.training.logps import score_pairs
from steps.training.metrics import OnProgress, StepMetrics, ignore_progress
from steps.training.models import load_model, vocabulary_size

_SCHEMA = pa.schema(
    [
        pa.field("pair_id", pa.string(), nullable=False),
        pa.field("chosen_logps", pa.float64(), nullable=False),
        pa.field("rejected_logps", pa.float64(), nullable=False),
        pa.field("chosen_tokens", pa.int32(), nullable=False),
        pa.field("rejected_tokens", pa.int32(), nullable=False),
    ]
)
_FILE = "logps.parquet"


def run_reference(
    model: Path,
    records: Iterable[Mapping[str, Any]],
    config: ReferenceConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
) -> StepMetrics:
    """Scores every distinct pair of `records` with the model folder `model`.

    Finished shards are kept in `scratch` and not computed again. Progress counts pairs. Returns
    `pairs`, `tokens`, and the means `logps/chosen` and `logps/rejected`. Raises FloatingPointError
    naming a pair whose logps are not finite.
    """
    scorer = load_model(model, config.dtype)
    pairs = _distinct(read_pairs(records, vocabulary_size(scorer)))
    shard_size = config.micro_batch_size * config.micro_batches_per_shard
    shards = []
    for number, start in enumerate(range(0, len(pairs), shard_size)):
        shard_pairs = pairs[start : start + shard_size]
        path = scratch / "shards" / f"shard-{number:05d}.parquet"
        shard = _finished_shard(path, shard_pairs)
        if shard is None:
            shard = _score_shard(scorer, shard_pairs, config.micro_batch_size)
            _write_table(path, shard)
        shards.append(shard)
        on_progress(start + len(shard_pairs), len(pairs), {})
    table = pa.concat_tables(shards).combine_chunks()
    _write_table(output / _FILE, table.replace_schema_metadata({"dtype": str(config.dtype)}))
    return {
        "pairs": len(pairs),
        "tokens": sum(map(len, pairs)),
        "logps/chosen": float(table["chosen_logps"].to_numpy().mean()),
        "logps/rejected": float(table["rejected_logps"].to_numpy().mean()),
    }


def read_reference(folder: Path, pairs: Sequence[TokenPair], dtype: Dtype) -> tuple[Tensor, Tensor]:
    """The reference's chosen and rejected logps, float64 [n] each, in the order of `pairs`.

    Raises ValueError naming a pair that has no reference, or both dtypes if the reference was
    computed in another than `dtype`.
    """
    table = pq.read_table(folder / _FILE)
    computed_in = (table.schema.metadata or {}).get(b"dtype", dtype.encode()).decode()
    if computed_in != dtype:
        raise ValueError(
            f"the reference in {folder} was computed in {computed_in} but the policy runs in "
            f"{dtype}; compute it again with dtype={dtype}"
        )
    positions = {pair_id: row for row, pair_id in enumerate(table["pair_id"].to_pylist())}
    missing = [pair for pair in pairs if pair.pair_id not in positions]
    if missing:
        raise ValueError(
            f"the reference in {folder} lacks {len(missing)} of {len(pairs)} pairs, the first of "
            f"them {missing[0].pair_id} (row {missing[0].row!r}); compute it from the same tokens"
        )
    selected = [positions[pair.pair_id] for pair in pairs]
    _check_scored(folder, table.take(selected), pairs)
    chosen = torch.tensor(table["chosen_logps"].to_pylist(), dtype=torch.float64)
    rejected = torch.tensor(table["rejected_logps"].to_pylist(), dtype=torch.float64)
    return chosen[selected], rejected[selected]


def _check_scored(folder: Path, table: pa.Table, pairs: Sequence[TokenPair]) -> None:
    columns = (table[name].to_pylist() for name in ("chosen_tokens", "rejected_tokens"))
    for pair, *scored in zip(pairs, *columns, strict=True):
        marked = [pair.chosen.num_scored, pair.rejected.num_scored]
        if scored != marked:
            raise ValueError(
                f"the reference in {folder} scored {scored} tokens of the two sides of pair "
                f"{pair.pair_id} (row {pair.row!r}), but these tokens mark {marked}; compute it "
                "from the same tokens"
            )


def _distinct(pairs: Iterable[TokenPair]) -> list[TokenPair]:
    return list({pair.pair_id: pair for pair in pairs}.values())


def _score_shard(
    model: PreTrainedModel, pairs: Sequence[TokenPair], micro_batch_size: int
) -> pa.Table:
    chosen, rejected = score_pairs(model, pairs, micro_batch_size)
    for pair, finite in zip(pairs, torch.isfinite(chosen + rejected).tolist(), strict=True):
        if not finite:
            raise FloatingPointError(
                f"pair {pair.pair_id} (row {pair.row!r}) has logps that are not finite; "
                "try dtype=float32, or drop the row"
            )
    columns = [
        [pair.pair_id for pair in pairs],
        chosen.numpy(),
        rejected.numpy(),
        [pair.chosen.num_scored for pair in pairs],
        [pair.rejected.num_scored for pair in pairs],
    ]
    return pa.table(columns, schema=_SCHEMA)


def _finished_shard(path: Path, pairs: Sequence[TokenPair]) -> pa.Table | None:
    """The shard at `path`, unless it is missing, torn or of other pairs."""
    try:
        shard = pq.read_table(path, schema=_SCHEMA)
    except (OSError, pa.ArrowException):
        return None
    wanted = [pair.pair_id for pair in pairs]
    return shard if shard["pair_id"].to_pylist() == wanted else None


def _write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)
