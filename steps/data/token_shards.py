"""One file of rows becomes one file of tokens: the work that :mod:`steps.data.workers` spreads.

Of every shard there are made `tokens.parquet` and `ledger.parquet`, what became of each row; and a
summary that adds up over shards: a tally, counts of what was noticed, and counted lengths.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import pyarrow as pa

from steps.data.ledger import Entry, Tally
from steps.data.parquet import iter_rows, write_rows
from steps.data.reasons import MalformedRow
from steps.data.rendering import load_tokenizer
from steps.data.rows import ConversationRow, PreferenceRow
from steps.data.tables import LEDGER, from_record
from steps.data.token_tables import CONVERSATION_TOKENS, PAIR_TOKENS
from steps.data.tokenizing import (
    Findings,
    Tokenization,
    TokenizeConfig,
    TokenizedConversation,
    TokenizedPair,
    tokenization,
    tokenize_conversations,
    tokenize_pairs,
)
from steps.data.workers import Finished, ProcessShard, Shard, Summary

BATCH = 128
"""Rows rendered and encoded together."""

TOKENS, ROW_LEDGER = "tokens.parquet", "ledger.parquet"


@dataclass(frozen=True)
class TokenizeShards:
    """The job: files of `rows` become tokens, with the tokenizer of a model folder."""

    rows: Literal["pairs", "conversations"]
    tokenizer: str
    config: TokenizeConfig

    @property
    def identity(self) -> str:
        settings = repr(replace(self.config, workers=1))
        return f"{self.rows} {settings} {_digest_of_tokenizer(Path(self.tokenizer))}"

    def open(self) -> ProcessShard:
        work = tokenization(load_tokenizer(self.tokenizer), self.config)
        if self.rows == "pairs":
            return partial(_process, work, _PAIRS)
        return partial(_process, work, _CONVERSATIONS)


@dataclass
class Report:
    """What there is to say of tokenised rows; adds up over shards.

    Attributes:
        merged: tokens across the edge of an assistant's text, which are not trained on.
        rewritten: kept rows whose prompt the template writes otherwise once it is answered.
        lengths: how many kept rows there are of each length, by what was measured.
    """

    tally: Tally = field(default_factory=Tally)
    merged: int = 0
    rewritten: int = 0
    lengths: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, findings: Findings, lengths: Mapping[str, int]) -> None:
        self.merged += findings.merged
        self.rewritten += findings.rewritten
        for name, length in lengths.items():
            self.lengths.setdefault(name, Counter())[length] += 1

    def merge(self, later: "Report") -> None:
        self.tally.merge(later.tally)
        self.merged += later.merged
        self.rewritten += later.rewritten
        for name, lengths in later.lengths.items():
            self.lengths.setdefault(name, Counter()).update(lengths)

    def to_json(self) -> dict[str, Any]:
        return {
            "tally": self.tally.to_json(),
            "merged": self.merged,
            "rewritten": self.rewritten,
            "lengths": {name: sorted(counts.items()) for name, counts in self.lengths.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        lengths = {name: Counter(dict(counts)) for name, counts in data["lengths"].items()}
        return cls(Tally.from_json(data["tally"]), data["merged"], data["rewritten"], lengths)


def merged_report(finished: Iterable[Finished]) -> Report:
    """The reports of all shards in one."""
    report = Report()
    for shard in finished:
        report.merge(Report.from_json(shard.summary))
    return report


def write_row_ledger(path: Path, finished: Iterable[Finished]) -> None:
    """The row ledgers of all shards in one file, in order."""
    parts = (iter_rows(shard.folder / ROW_LEDGER) for shard in finished)
    write_rows(path, LEDGER, chain.from_iterable(parts))


# --- the two kinds of rows -----------------------------------------------------------------------

_Row = TypeVar("_Row", PreferenceRow, ConversationRow)
_Tokens = TypeVar("_Tokens", TokenizedPair, TokenizedConversation)


@dataclass(frozen=True)
class _Rows(Generic[_Row, _Tokens]):
    """How rows of one kind are tokenised and written; `kept` columns are carried over as read."""

    kind: type[_Row]
    tokenize: Callable[[Tokenization, Sequence[_Row]], list[_Tokens | MalformedRow]]
    schema: pa.Schema
    kept: tuple[str, ...]
    columns: Callable[[_Tokens], dict[str, Any]]
    lengths: Callable[[_Tokens], dict[str, int]]


def _pair_columns(pair: TokenizedPair) -> dict[str, Any]:
    sides = {"prompt": pair.prompt, "chosen": pair.chosen, "rejected": pair.rejected}
    ids = {f"{side}_ids": tokens.ids for side, tokens in sides.items()}
    masks = {f"{side}_mask": tokens.mask for side, tokens in sides.items()}
    return {"pair_id": pair.pair_id, "shared_prefix": pair.shared_prefix, **ids, **masks}


def _pair_lengths(pair: TokenizedPair) -> dict[str, int]:
    prompt, chosen, rejected = len(pair.prompt), len(pair.chosen), len(pair.rejected)
    total = prompt + max(chosen, rejected)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "total": total}


def _conversation_columns(conversation: TokenizedConversation) -> dict[str, Any]:
    return {"input_ids": conversation.tokens.ids, "mask": conversation.tokens.mask}


def _conversation_lengths(conversation: TokenizedConversation) -> dict[str, int]:
    mask = conversation.tokens.mask
    return {"trained": sum(mask), "total": len(mask)}


_PAIRS = _Rows(
    PreferenceRow,
    tokenize_pairs,
    PAIR_TOKENS,
    ("score_chosen", "score_rejected", "prompt", "chosen", "rejected"),
    _pair_columns,
    _pair_lengths,
)
_CONVERSATIONS = _Rows(
    ConversationRow,
    tokenize_conversations,
    CONVERSATION_TOKENS,
    (),
    _conversation_columns,
    _conversation_lengths,
)


# --- one shard -----------------------------------------------------------------------------------


def _process(
    tokenization: Tokenization, rows: _Rows[_Row, _Tokens], shard: Shard, folder: Path
) -> Summary:
    report, entries = Report(), []

    def records() -> Iterator[dict[str, Any]]:
        for batch in _batches(iter_rows(shard.source)):
            parsed = [from_record(rows.kind, record) for record in batch]
            tokenized = rows.tokenize(tokenization, parsed)
            for record, tokens in zip(batch, tokenized, strict=True):
                entries.append(_entry(shard, record["row"], tokens))
                if not isinstance(tokens, MalformedRow):
                    report.add(tokens.findings, rows.lengths(tokens))
                    carried = {name: record[name] for name in rows.kept}
                    yield {"row": record["row"], **rows.columns(tokens), **carried}

    write_rows(folder / TOKENS, rows.schema, records())
    write_rows(folder / ROW_LEDGER, LEDGER, map(vars, entries))
    for entry in entries:
        report.tally.add(entry)
    return report.to_json()


def _batches(records: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(records, BATCH)):
        yield batch


def _entry(
    shard: Shard, row: str, tokens: TokenizedPair | TokenizedConversation | MalformedRow
) -> Entry:
    split, source = shard.name.rpartition("/")[0], f"{shard.name}.parquet"
    if isinstance(tokens, MalformedRow):
        return Entry.dropped(split, source, row, tokens)
    cut = {"prompt": tokens.findings.prompt_cut, "response": tokens.findings.response_cut}
    if any(cut.values()):
        parts = " and ".join(part for part, was_cut in cut.items() if was_cut)
        return Entry(split, source, row, "truncated", detail=f"{parts} cut to the limits")
    return Entry(split, source, row, "kept")


@cache
def _digest_of_tokenizer(folder: Path) -> str:
    """Of everything in a model folder but its weights."""
    hasher = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.is_file() and path.suffix not in (".safetensors", ".bin", ".gguf", ".pt"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            hasher.update(f"{path.name} {content}\n".encode())
    return hasher.hexdigest()
