"""Tokenise one file of rows; :mod:`steps.data.work.workers` runs this on many files.

For every shard it writes `tokens.parquet` and `ledger.parquet`, the outcome of each row. It returns
a summary that can be added up over shards: a tally, counts of findings, and counts of lengths.
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

from steps.data.images.placeholders import Placeholders, reads_images
from steps.data.rows.ledger import Entry, Tally
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, Row, TextRow, UnpairedRow
from steps.data.rows.tables import LEDGER, from_record
from steps.data.tokens.config import TextConfig, TokenizeConfig
from steps.data.tokens.pairs import TokenizedPair, tokenize_pairs
from steps.data.tokens.rendering import load_bare_tokenizer, load_tokenizer
from steps.data.tokens.texts import TokenizedText, text_tokenization, tokenize_texts
from steps.data.tokens.token_tables import COMPLETION_TOKENS, CONVERSATION_TOKENS, PAIR_TOKENS
from steps.data.tokens.tokenizing import (
    Findings,
    TokenizedCompletion,
    TokenizedConversation,
    Tokens,
    tokenization,
    tokenize_completions,
    tokenize_conversations,
)
from steps.data.work.workers import Finished, ProcessShard, Shard, Summary, rarely_collecting

BATCH = 128
"""Rows rendered and encoded together."""

RowKind = Literal["pairs", "conversations", "completions", "texts"]
"""The kinds of rows by the names of their files (`tables.STEMS`)."""

Tokenized = TokenizedPair | TokenizedConversation | TokenizedCompletion | TokenizedText

PACKED = "packed"
"""The name of a pair's length with the prompt counted once."""

TOKENS, ROW_LEDGER = "tokens.parquet", "ledger.parquet"


@dataclass(frozen=True)
class TokenizeShards:
    """The job: files of `rows` become tokens, with the tokenizer of a model folder."""

    rows: RowKind
    tokenizer: str
    config: TokenizeConfig | TextConfig

    @property
    def identity(self) -> str:
        settings = repr(replace(self.config, workers=1))
        return f"{self.rows} {settings} {_digest_of_tokenizer(Path(self.tokenizer))}"

    def open(self) -> ProcessShard:
        rows = _KINDS[self.rows]
        return partial(_process, rows, rows.open(self.tokenizer, self.config))


@dataclass
class Report:
    """Statistics of tokenised rows, which can be added up over shards.

    Attributes:
        noticed: for each field of `tokenizing.Findings`, the number of kept rows or tokens to which
            it applies.
        lengths: for each measured length, the number of kept rows by their length.
    """

    tally: Tally = field(default_factory=Tally)
    noticed: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, findings: Findings, lengths: Iterable[Mapping[str, int]]) -> None:
        for name, count in vars(findings).items():
            if count:
                self.noticed[name] += int(count)
        for name, length in chain.from_iterable(line.items() for line in lengths):
            if name not in self.lengths:
                self.lengths[name] = Counter()
            self.lengths[name][length] += 1

    def merge(self, later: "Report") -> None:
        self.tally.merge(later.tally)
        self.noticed.update(later.noticed)
        for name, lengths in later.lengths.items():
            self.lengths.setdefault(name, Counter()).update(lengths)

    def to_json(self) -> dict[str, Any]:
        return {
            "tally": self.tally.to_json(),
            "noticed": dict(self.noticed),
            "lengths": {name: sorted(counts.items()) for name, counts in self.lengths.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        lengths = {name: Counter(dict(counts)) for name, counts in data["lengths"].items()}
        return cls(Tally.from_json(data["tally"]), Counter(data["noticed"]), lengths)


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


# --- the kinds of rows ---------------------------------------------------------------------------

_Row = TypeVar("_Row", bound=Row)
_Tokens = TypeVar("_Tokens", bound=Tokenized)

Line = tuple[dict[str, Any], dict[str, int]]
"""The output of a row: its columns, and the lengths to count."""


@dataclass(frozen=True)
class _Rows(Generic[_Row, _Tokens]):
    """How rows of one kind are tokenised and written; `kept` columns are copied from the input."""

    kind: type[_Row]
    schema: pa.Schema
    open: Callable[[str, Any], Callable[[Sequence[_Row]], list[_Tokens | MalformedRow]]]
    lines: Callable[[_Tokens], Iterable[Line]]
    kept: tuple[str, ...] = ()


def _with_template(tokenize: Any) -> Any:
    def opened(folder: str, config: TokenizeConfig) -> Any:
        images = Placeholders(Path(folder)) if reads_images(Path(folder)) else None
        return partial(tokenize, tokenization(load_tokenizer(folder), config, images))

    return opened


def _without_template(folder: str, config: TextConfig) -> Any:
    return partial(tokenize_texts, text_tokenization(load_bare_tokenizer(folder), config))


def _pair_lines(pair: TokenizedPair) -> Iterator[Line]:
    sides = {"chosen": pair.chosen, "rejected": pair.rejected}
    columns, lengths = _parts({"prompt": pair.prompt, **sides})
    named = {"row": pair.row, "pair_id": pair.pair_id, "shared_prefix": pair.shared_prefix}
    total = lengths["prompt"] + max(lengths["chosen"], lengths["rejected"])
    yield named | columns, lengths | {"total": total, PACKED: sum(lengths.values())}


def _completion_lines(made: TokenizedCompletion) -> Iterator[Line]:
    columns, lengths = _parts({"prompt": made.prompt, "completion": made.completion})
    named = {"row": made.row, "completion_id": made.completion_id}
    yield named | columns, lengths | {"total": sum(lengths.values())}


def _sequences(made: TokenizedConversation | TokenizedText) -> Iterator[Line]:
    is_text = isinstance(made, TokenizedText)
    for row, tokens in made.named_pieces() if is_text else [(made.row, made.tokens)]:
        columns = {"row": row, "input_ids": tokens.ids, "mask": tokens.mask, "length": len(tokens)}
        yield columns, {"trained": sum(tokens.mask), "total": len(tokens)}


def _parts(parts: Mapping[str, Tokens]) -> Line:
    columns: dict[str, Any] = {}
    lengths = {name: len(tokens) for name, tokens in parts.items()}
    for name, tokens in parts.items():
        columns[f"{name}_ids"], columns[f"{name}_mask"] = tokens.ids, tokens.mask
        columns[f"{name}_length"] = lengths[name]
    return columns, lengths


_TEMPLATE = ("tools", "template_kwargs")
_KINDS: Mapping[RowKind, _Rows[Any, Any]] = {
    "pairs": _Rows(
        PreferenceRow,
        PAIR_TOKENS,
        _with_template(tokenize_pairs),
        _pair_lines,
        ("score_chosen", "score_rejected", "weight", "prompt", "chosen", "rejected", *_TEMPLATE),
    ),
    "conversations": _Rows(
        ConversationRow, CONVERSATION_TOKENS, _with_template(tokenize_conversations), _sequences
    ),
    "completions": _Rows(
        UnpairedRow,
        COMPLETION_TOKENS,
        _with_template(tokenize_completions),
        _completion_lines,
        ("label", "weight", "prompt", "completion", *_TEMPLATE),
    ),
    "texts": _Rows(TextRow, CONVERSATION_TOKENS, _without_template, _sequences),
}


# --- one shard -----------------------------------------------------------------------------------


def _process(
    rows: _Rows[_Row, _Tokens],
    tokenize: Callable[[Sequence[_Row]], list[_Tokens | MalformedRow]],
    shard: Shard,
    folder: Path,
) -> Summary:
    report, entries = Report(), []

    def lines() -> Iterator[dict[str, Any]]:
        records = iter_rows(shard.source)
        while batch := list(islice(records, BATCH)):
            tokenized = tokenize([from_record(rows.kind, record) for record in batch])
            for record, tokens in zip(batch, tokenized, strict=True):
                entries.append(_entry(shard, record["row"], tokens))
                if not isinstance(tokens, MalformedRow):
                    carried = {name: record[name] for name in rows.kept}
                    made = list(rows.lines(tokens))
                    report.add(tokens.findings, [lengths for _, lengths in made])
                    yield from (columns | carried for columns, _ in made)

    with rarely_collecting():
        write_rows(folder / TOKENS, rows.schema, lines())
    write_rows(folder / ROW_LEDGER, LEDGER, map(vars, entries))
    for entry in entries:
        report.tally.add(entry)
    return report.to_json()


def _entry(shard: Shard, row: str, tokens: Tokenized | MalformedRow) -> Entry:
    split, source = shard.name.rpartition("/")[0], f"{shard.name}.parquet"
    if isinstance(tokens, MalformedRow):
        return Entry.dropped(split, source, row, tokens)
    cut = {"prompt": tokens.findings.prompt_cut, "response": tokens.findings.response_cut}
    if any(cut.values()):
        parts = " and ".join(part for part, was_cut in cut.items() if was_cut)
        what = "text" if isinstance(tokens, TokenizedText) else parts
        return Entry(split, source, row, "truncated", detail=f"{what} cut to the limits")
    if isinstance(tokens, TokenizedText) and len(tokens.pieces) > 1:
        return Entry(split, source, row, "kept", detail=f"in {len(tokens.pieces)} pieces")
    return Entry(split, source, row, "kept")


@cache
def _digest_of_tokenizer(folder: Path) -> str:
    """A digest of all files in a model folder except its weights."""
    hasher = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.is_file() and path.suffix not in (".safetensors", ".bin", ".gguf", ".pt"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            hasher.update(f"{path.name} {content}\n".encode())
    return hasher.hexdigest()
