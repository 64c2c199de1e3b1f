"""What the steps that load rows have in common: sources as a config names them, read and told of.

``load_preferences``, ``load_conversations`` and the like differ in the kind of row alone.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from pipeline import File, HubDataset, Metrics, Output, TemperError
from steps.data.formats.registry import FormatChoice, format_name
from steps.data.ledger import Tally, check_max_dropped
from steps.data.loading import Load, Loaded, Part, Reading, load_rows, part_of
from steps.data.rows import EXTRA_KEYS
from steps.data.sources import FileShard, Source, hub_source, is_empty, source_of
from steps.sources import DataSource, Files, Mixed


def write_splits(
    out: Output,
    kind: type,
    train: DataSource,
    test: DataSource | None,
    *,
    test_fraction: float,
    max_train: int | None,
    max_test: int | None,
    format: FormatChoice,
    deduplicate: bool,
    max_dropped: float,
) -> Metrics:
    """Write the rows of ``train`` and ``test`` and the ledger, and count them.

    Raises:
        TemperError: a source has no valid row, or too few of them; a split comes out empty.
    """
    try:
        check_max_dropped(max_dropped)
        load = Load(
            kind,
            _reading(train, format, kind),
            None if test is None else _reading(test, format, kind),
            test_fraction,
            {"train": max_train, "test": max_test},
            deduplicate,
        )
        loaded = load_rows(
            load, out.path, out.scratch, lambda done, shown: out.progress(done, None, shown)
        )
        _check(load, loaded, max_dropped)
    except (ValueError, FileNotFoundError) as error:
        raise TemperError(str(error)) from error
    return _metrics(load, loaded)


def _reading(source: DataSource, choice: FormatChoice, kind: type) -> Reading:
    if isinstance(source, Mixed):
        parts = tuple(
            part_of(_source(part.source), part.format, kind, part.weight, part.name)
            for part in source.parts
        )
        if empty := [part.name for part in parts if is_empty(part.source)]:
            raise TemperError(
                f"data.mixture: {' and '.join(empty)} has no rows; name other files, or take it out"
            )
        return Reading(" + ".join(part.name for part in source.parts), parts, source.until)
    part = part_of(_source(source), choice, kind)
    return Reading(part.source.name, (part,))


def _source(source: File | Files | HubDataset) -> Source:
    if isinstance(source, HubDataset):
        return hub_source(source.repo, source.revision, source.split)
    if isinstance(source, File):
        return source_of(source.url)
    named = zip(source.files, source.names, strict=True)
    shards = tuple(FileShard(file.url, name) for file, name in named)
    return Source(f"{shards[0].name} and {len(shards) - 1} more files", shards)


def _check(load: Load, loaded: Loaded, max_dropped: float) -> None:
    """Refuse data that cannot be what was meant."""
    for split, reading in load.readings():
        tally = loaded.tallies[split]
        if not tally.rows:
            raise TemperError(f"{reading.name} has no rows")
        if tally.unusable_rows == tally.rows:
            raise TemperError(
                f"{reading.name} has no valid row: all {tally.rows} were dropped: "
                f"{tally.worst_reasons()}"
            )
        tally.check(max_dropped, reading.name)
    for split in ("train", "test"):
        if not loaded.kept[split] and (split == "train" or load.test or load.test_fraction):
            raise TemperError(_empty(split, load))


def _empty(split: str, load: Load) -> str:
    if load.test is None:
        return (
            f"no row is left for {split} when test_fraction={load.test_fraction} of the prompts "
            "is held out; change data.test_fraction, add rows, or name a file with data.test_path"
        )
    return f"every row of {split} equals one of train; name other rows, or deduplicate=false"


def _metrics(load: Load, loaded: Loaded) -> dict[str, Any]:
    every = Tally()
    for tally in loaded.tallies.values():
        every.merge(tally)
    metrics = {
        "rows": every.rows,
        **{split: kept for split, kept in loaded.kept.items() if kept},
        "formats": {split: _formats(reading.parts) for split, reading in load.readings()},
        **_drawn(load, loaded),
        **({"ignored_keys": loaded.ignored} if loaded.ignored else {}),
        **every.metrics(),
    }
    told = (_unread(load, loaded), _leaked(loaded), _ignored(loaded), _scored(loaded))
    if notices := [*metrics.get("notices", []), *chain(*told)]:
        metrics["notices"] = notices
    return metrics


def _formats(parts: tuple[Part, ...]) -> str | dict[str, str]:
    if len(parts) == 1:
        return format_name(parts[0].format)
    return {part.name: format_name(part.format) for part in parts}


def _drawn(load: Load, loaded: Loaded) -> dict[str, Any]:
    """Of mixtures, how many rows of each source are in them."""
    drawn = {
        split: dict(zip([part.name for part in reading.parts], loaded.drawn[split], strict=True))
        for split, reading in load.readings()
        if len(reading.parts) > 1
    }
    return {"drawn": drawn} if drawn else {}


def _ignored(loaded: Loaded) -> Iterator[str]:
    """What messages hold that nothing reads."""
    if loaded.ignored:
        found = ", ".join(f"{key} ({rows} rows)" for key, rows in loaded.ignored.items())
        yield f"keys of messages that are not read: {found}; read are {', '.join(EXTRA_KEYS)}"


def _scored(loaded: Loaded) -> Iterator[str]:
    """Pairs that contradict themselves."""
    if loaded.scored_lower:
        yield (
            f"{loaded.scored_lower} of {sum(loaded.kept.values())} pairs score the rejected side "
            "higher than the chosen one; they are kept as they are: check which field is which"
        )


def _leaked(loaded: Loaded) -> Iterator[str]:
    """What is both trained and tested on."""
    if loaded.trained_on:
        yield (
            f"{loaded.trained_on} of the {loaded.kept['test']} test rows have a prompt that train "
            "has too: what is measured on them was learned; deduplicate=true leaves out those "
            "whose responses are equal as well"
        )


def _unread(load: Load, loaded: Loaded) -> Iterator[str]:
    """Which source ended a mixture early, and how far the others were read."""
    for split, reading in load.readings():
        if (index := loaded.ended_by[split]) is None:
            continue
        counts = zip(reading.parts, loaded.drawn[split], strict=True)
        others = [f"{n} of {part.name}" for i, (part, n) in enumerate(counts) if i != index]
        yield (
            f"the mixture of {split} ended when {reading.parts[index].name} had no more rows "
            f"(number {loaded.drawn[split][index] + 1} was due); rows read until then: "
            f"{', '.join(others)}, the rest of which are not in it"
        )
