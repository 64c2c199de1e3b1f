"""Looking at one row of tokens in the terminal: what is trained on, and what is only read.

Token ids are decoded by the `tokenizer.json` that lies with them, the very one that made them, so
nothing else is needed. Text from a data set is never trusted: it is printed without mark-up, and
characters that could steer a terminal or turn text around are spelled out.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from steps.data.parquet import count_rows, iter_rows, shards

if TYPE_CHECKING:
    from rich.console import Console
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"

TRAINED, CONTEXT = "bold green", "dim"
SPECIAL = " reverse"


@dataclass(frozen=True)
class Section:
    """A named stretch of tokens."""

    name: str
    ids: Sequence[int]
    mask: Sequence[bool]


def show_row(folder: Path, row: str, console: "Console") -> None:
    """Print the tokens of a row of `folder`, a tokens artifact or one of its splits.

    Trained tokens, others and special tokens differ in style; where the console has no colours,
    trained tokens stand between ⟦ and ⟧. A row that was dropped is shown by its entry in the
    ledger. A row that is in several splits is shown for each.

    Raises:
        LookupError: there is no such row; the message names the most similar ones.
        FileNotFoundError: `folder` holds no tokens, or no tokenizer lies with them.
    """
    found = list(_find(folder, row))
    if not found:
        raise LookupError(_no_such_row(folder, row))
    core = _tokenizer(folder)
    for split, record in found:
        _print_record(core, split, record, console)


def _find(folder: Path, row: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for part in _parts(folder):
        for file in shards(part):
            opened = pq.ParquetFile(file)
            for group in range(opened.num_row_groups):
                labels = opened.read_row_group(group, columns=["row"])["row"].to_pylist()
                if row in labels:
                    record = opened.read_row_group(group).slice(labels.index(row), 1)
                    yield part.name, record.to_pylist()[0]
    for entry in _ledger(folder):
        if entry["row"] == row and entry["outcome"] == "dropped":
            yield entry["split"], entry


def _parts(folder: Path) -> list[Path]:
    pattern = "tokens-*.parquet"
    parts = sorted({path.parent for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}"))})
    if not parts:
        raise FileNotFoundError(f"{folder}: no tokens-*.parquet in it; name a tokens artifact")
    return parts


def _ledger(folder: Path) -> Iterator[Mapping[str, Any]]:
    path = folder / "ledger.parquet"
    return iter_rows(path) if path.is_file() else iter(())


def _tokenizer(folder: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    for place in (folder, folder.parent):
        if (place / TOKENIZER).is_file():
            return Tokenizer.from_file(str(place / TOKENIZER))
    raise FileNotFoundError(f"{folder}: no {TOKENIZER} lies with the tokens; tokenise again")


def _no_such_row(folder: Path, row: str) -> str:
    labels = [r["row"] for part in _parts(folder) for r in iter_rows(part, ["row"])]
    near = difflib.get_close_matches(row, labels, n=3, cutoff=0.5) or labels[:3]
    rows = sum(count_rows(part) for part in _parts(folder))
    return f"no row {row!r} among {rows}; there are, for example, {', '.join(near)}"


# --- printing ------------------------------------------------------------------------------------


def _print_record(
    core: "Tokenizer", split: str, record: Mapping[str, Any], console: "Console"
) -> None:
    from rich.text import Text

    console.print(Text(f"{split}  row {visible(record['row'])}", style="bold"))
    if "outcome" in record:
        why = f"dropped: {record['reason']}: {visible(record['detail'] or '')}"
        console.print(Text(why), soft_wrap=True)
        return
    console.print(Text(_facts(record)), soft_wrap=True)
    for section in _sections(record):
        console.print()
        trained = sum(section.mask)
        title = f"{section.name}: {len(section.ids)} tokens, {trained} trained on"
        console.print(Text(title, style="underline"))
        console.print(_styled(core, section, console), soft_wrap=True)
    console.print()


def _facts(record: Mapping[str, Any]) -> str:
    names = ("pair_id", "shared_prefix", "score_chosen", "score_rejected")
    facts = (f"{name} {record[name]}" for name in names if record.get(name) is not None)
    return ", ".join(facts) or f"{len(record['input_ids'])} tokens"


def _sections(record: Mapping[str, Any]) -> list[Section]:
    if "input_ids" in record:
        return [Section("conversation", record["input_ids"], record["mask"])]
    return [
        Section(side, record[f"{side}_ids"], record[f"{side}_mask"])
        for side in ("prompt", "chosen", "rejected")
    ]


def _styled(core: "Tokenizer", section: Section, console: "Console") -> Any:
    """The section's text: one style for each run of tokens that are alike."""
    from rich.text import Text

    plain = console.no_color or console.color_system is None
    special = {index for index, token in core.get_added_tokens_decoder().items() if token.special}
    text = Text()
    tokens = zip(section.ids, section.mask, strict=True)
    for trained, run in groupby(tokens, key=lambda token: token[1]):
        style = TRAINED if trained else CONTEXT
        text.append("⟦" if plain and trained else "")
        for is_special, ids in groupby((token for token, _ in run), key=special.__contains__):
            piece = core.decode(list(ids), skip_special_tokens=False)
            text.append(visible(piece), style + SPECIAL if is_special else style)
        text.append("⟧" if plain and trained else "")
    return text


def visible(text: str) -> str:
    """Text without characters that could steer a terminal: spelled out, but for line breaks."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
