"""Show one row of tokens in the terminal: which tokens are trained on, and which are context.

The artifact contains the `tokenizer.json` that made the token ids, and this module decodes them
with it. The row ledger gives a row's file; of that file, only the column of labels and one row
group are read, also from a remote store. Text from a data set is never trusted: it is printed
without mark-up, and control characters, also those that reverse text, are escaped.
"""

import difflib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow.parquet as pq

from steps.shared.common_prefix import shared_length

if TYPE_CHECKING:
    from rich.console import Console
    from tokenizers import Tokenizer

TRAINED, CONTEXT = "bold green", "dim"
SPECIAL = " reverse"

_MOST_COMPARED = 10_000
"""The most labels that the search for labels similar to a missing one compares in full."""


@dataclass(frozen=True)
class Section:
    """A named stretch of tokens."""

    name: str
    ids: Sequence[int]
    mask: Sequence[bool]


def show_row(url: str, row: str, split: str | None, console: "Console") -> None:
    """Print the tokens of a row of the tokens artifact at `url`, a local path or fsspec URL.

    Trained, context and special tokens have different styles; without colours, trained tokens are
    between ⟦ and ⟧. A dropped row is shown by its entry in the ledger, a text in pieces with all
    its pieces. Without `split`, a row that is in several splits is shown for each of them.

    Raises:
        LookupError: there is no such row (the message names similar ones), or no such split.
        FileNotFoundError: a file of a tokens artifact is missing.
    """
    folder = _Folder(*fsspec.url_to_fs(url))
    found = list(_find(folder, row, split))
    if not found:
        raise LookupError(_no_such_row(folder, row, split))
    core = _tokenizer(folder)
    for place, record in found:
        _print_record(core, place, record, _images(folder, place, record), console)


# --- finding -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Folder:
    """The files of an artifact, wherever they lie."""

    fs: Any
    path: str

    def open(self, name: str) -> Any:
        return self.fs.open(f"{self.path}/{name}", "rb")


def _find(folder: _Folder, row: str, split: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of a row, or its ledger entry if it was dropped."""
    entries = _labelled(folder, "ledger.parquet", row)
    if not entries and "#" in row:  # a piece of a text has a label of its own
        entries = _labelled(folder, "ledger.parquet", row.rpartition("#")[0])
    for entry in entries:
        if split is not None and entry["split"] != split:
            continue
        place = entry["split"] or entry["source"].partition("-")[0]
        if entry["outcome"] == "dropped":
            yield place, entry
            continue
        number = entry["source"].rpartition("-")[2]
        tokens = f"{entry['split']}/tokens-{number}".lstrip("/")
        yield from ((place, record) for record in _labelled(folder, tokens, row))


def _labelled(folder: _Folder, name: str, row: str) -> list[dict[str, Any]]:
    """The records of a file that are labelled `row`, or as a piece of it."""
    found: list[dict[str, Any]] = []
    piece = f"{row}#"
    with folder.open(name) as opened:
        file = pq.ParquetFile(opened)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=["row"], use_threads=False)
            labels = table["row"].to_pylist()
            hits = [i for i, label in enumerate(labels) if label == row or label.startswith(piece)]
            if hits:
                found += file.read_row_group(group, use_threads=False).take(hits).to_pylist()
    return found


def _tokenizer(folder: _Folder) -> "Tokenizer":
    from tokenizers import Tokenizer

    with folder.open("tokenizer.json") as opened:
        return Tokenizer.from_buffer(opened.read())


def _no_such_row(folder: _Folder, row: str, split: str | None) -> str:
    with folder.open("ledger.parquet") as opened:
        table = pq.ParquetFile(opened).read(columns=["row", "split"], use_threads=False)
    places = table["split"].to_pylist()
    if split is not None and split not in places:
        return f"there is no split {split!r}; there is {', '.join(sorted(set(places)))}"
    labelled = zip(table["row"].to_pylist(), places, strict=True)
    labels = [label for label, place in labelled if split in (None, place)]
    similar = _similar(labels, row)
    known = f"similar are {', '.join(similar)}" if similar else f"the first is {labels[0]}"
    return (
        f"no row {row!r} among {len(labels)}; {known}; a row that was dropped before, when the "
        "data was loaded, is in ledger.parquet of the load step"
    )


def _similar(labels: list[str], row: str) -> list[str]:
    """Up to three labels similar to `row`. Of very many labels, only those with the longest common
    prefix are compared."""
    if len(labels) > _MOST_COMPARED:
        labels = heapq.nlargest(_MOST_COMPARED, labels, partial(shared_length, row))
    return difflib.get_close_matches(row, labels, n=3, cutoff=0.5)


# --- printing ------------------------------------------------------------------------------------


def _print_record(
    core: "Tokenizer",
    split: str,
    record: Mapping[str, Any],
    images: Sequence[str],
    console: "Console",
) -> None:
    from rich.text import Text

    console.print(Text(f"{split}  row {visible(record['row'])}", style="bold"))
    if "outcome" in record:
        why = f"dropped: {record['reason']}: {visible(record['detail'] or '')}"
        console.print(Text(why), soft_wrap=True)
        return
    for line in (_facts(record), *images):
        console.print(Text(line), soft_wrap=True)
    for section in _sections(record):
        console.print()
        trained = sum(section.mask)
        title = f"{section.name}: {len(section.ids)} tokens, {trained} trained on"
        console.print(Text(title, style="underline"))
        console.print(_styled(core, section, console), soft_wrap=True)
    console.print()


_FACTS = (
    "pair_id",
    "completion_id",
    "label",
    "shared_prefix",
    "score_chosen",
    "score_rejected",
    "weight",
)


def _facts(record: Mapping[str, Any]) -> str:
    facts = (f"{name} {record[name]}" for name in _FACTS if record.get(name) is not None)
    return ", ".join(facts) or f"{len(record['input_ids'])} tokens"


def _images(folder: _Folder, split: str, record: Mapping[str, Any]) -> list[str]:
    """The images of a record's prompt, and where among its tokens their placeholders lie."""
    extras = (message["extra"] for message in record.get("prompt") or ())
    images = [image for extra in extras if extra for image in json.loads(extra).get("images", ())]
    lines = [
        f"image {number}: {image['width']} x {image['height']} pixels, sha256 {image['sha256']}"
        for number, image in enumerate(images, start=1)
    ]
    if not lines:
        return []
    for name in (f"{split}/images/placeholder.json", "images/placeholder.json"):
        if folder.fs.isfile(f"{folder.path}/{name}"):
            with folder.open(name) as opened:
                return [*lines, _placeholders(json.load(opened)["token"], record["prompt_ids"])]
    return lines


def _placeholders(token: int, prompt: Sequence[int]) -> str:
    runs = groupby(enumerate(prompt), key=lambda place: place[1] == token)
    found = [[index for index, _ in run] for stands, run in runs if stands]
    listed = ", ".join(f"{run[0]} to {run[-1]}" for run in found)
    return f"placeholders: {sum(map(len, found))} of the prompt's tokens, counted from 0: {listed}"


def _sections(record: Mapping[str, Any]) -> list[Section]:
    if "input_ids" in record:
        return [Section("sequence", record["input_ids"], record["mask"])]
    names = [column.removesuffix("_ids") for column in record if column.endswith("_ids")]
    return [Section(name, record[f"{name}_ids"], record[f"{name}_mask"]) for name in names]


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
    """Text in which characters that could control a terminal, except line breaks, are escaped."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
