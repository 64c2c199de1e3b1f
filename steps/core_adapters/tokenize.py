"""The shared implementation of the steps that tokenise rows."""

from typing import TYPE_CHECKING

from pipeline import Artifact, Metrics, Output, TemperError
from steps.data.tokens.config import TextConfig, TokenizeConfig
from steps.kinds import Model

if TYPE_CHECKING:
    from steps.data.tokens.token_shards import RowKind


def write_split_tokens(
    out: Output, rows: "RowKind", source: Artifact, tokenizer: Model, config: TokenizeConfig
) -> Metrics:
    """Write ``SPLIT/tokens-00000.parquet`` and so on for every split of ``source``, the outcome of
    each row in ``ledger.parquet``, a ``summary.md`` of lengths, and the ``tokenizer.json``.

    Raises:
        TemperError: no row of a split is left, or more were dropped than allowed.
    """
    splits = sorted({path.parent.name for path in source.path.glob(f"*/{rows}-*.parquet")})
    if not splits:
        raise TemperError(f"{source.step} holds no SPLIT/{rows}-*.parquet; pass the whole artifact")
    return write_tokens(out, rows, source, tokenizer, config, splits)


def write_tokens(
    out: Output,
    rows: "RowKind",
    source: Artifact,
    tokenizer: Model,
    config: TokenizeConfig | TextConfig,
    splits: list[str] | None = None,
) -> Metrics:
    """Like :func:`write_split_tokens`, for the named splits. Without ``splits``, ``source`` is a
    single split, whose files are in its root."""
    from steps.data.tokens.token_folders import tokenize_folders
    from steps.data.work.workers import ShardFailed

    try:
        return tokenize_folders(
            rows,
            source.path,
            splits or [""],
            tokenizer.path,
            config,
            out.path,
            out.scratch,
            out.progress,
        )
    except (ShardFailed, FileNotFoundError, ValueError) as error:
        raise TemperError(str(error)) from error
