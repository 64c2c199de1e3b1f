"""Tokenise folders of rows: distribute shards to workers, and combine their results.

    SPLIT/pairs-00000.parquet     →  SPLIT/tokens-00000.parquet     one for each shard
                                     ledger.parquet                 one line for every row
                                     SPLIT/tokenizer.json           decodes the ids
                                     SPLIT/chat_template.json       wrote the texts, if one did
                                     tokenizer.json and so on       copies, outside of the splits
                                     summary.md                     statistics of lengths

If all rows of a shard are dropped, its file is empty, so the numbers of files stay the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from steps.data.images.image_table import IMAGES, copy_images
from steps.data.images.placeholders import Placeholders, reads_images
from steps.data.rows.parquet import shards
from steps.data.tokens.config import TextConfig, TokenizeConfig, TrainOn
from steps.data.tokens.encoding import save_tokenizer
from steps.data.tokens.length_summaries import Packing, packed, plot, quantiles
from steps.data.tokens.token_shards import (
    PACKED,
    TOKENS,
    Report,
    RowKind,
    TokenizeShards,
    merged_report,
    write_row_ledger,
)
from steps.data.vocabularies import copy_tokenizer
from steps.data.work.workers import Finished, Shard, place, process_shards


def tokenize_folders(
    rows: RowKind,
    source: Path,
    splits: Sequence[str],
    tokenizer: Path,
    config: TokenizeConfig | TextConfig,
    output: Path,
    scratch: Path,
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Tokenise every split (a folder in `source`; "" means `source` itself), and return metrics.

    Progress counts shards.

    Raises:
        ValueError: no row of a split is left, or more were dropped than `config.max_dropped`.
        ShardFailed: the work on a shard, which the message names, failed; for example, a row
            exceeds a limit whose policy is `error`.
    """
    on = config.train_on if isinstance(config, TokenizeConfig) else None
    if on is TrainOn.everything and rows != "conversations":
        raise ValueError(
            f"tokenize.train_on=everything is for conversations, and these rows are {rows}, whose "
            "prompts are only read; take answer, last_turn or all_turns"
        )
    work = [
        Shard(f"{split}/{file.stem}".lstrip("/"), file)
        for split in splits
        for file in shards(source / split)
    ]
    job = TokenizeShards(rows, str(tokenizer), config)
    finished = process_shards(job, work, scratch / "shards", config.workers, on_progress)
    counts = {}
    for split in splits:
        of_split = [done for done in finished if done.shard.source.parent == source / split]
        counts[split or rows] = _place_split(of_split, output / split, split or rows)
    _place_images(source, splits, tokenizer, output)
    write_row_ledger(output / "ledger.parquet", finished)
    save_tokenizer(tokenizer, output, renders=rows != "texts")
    for split in filter(None, splits):
        copy_tokenizer(output, output / split)
    report = merged_report(finished)
    if config.max_dropped is not None:
        report.tally.check(config.max_dropped, f"the {rows}")
    packing = _packing(report, config.max_length)
    output.joinpath("summary.md").write_text(_summary(report, packing), "utf-8")
    told = {"sequences": packing.sequences, "filled": round(packing.filled, 3)}
    return {**counts, **_metrics(report), "packing": told}


def _place_split(finished: Sequence[Finished], folder: Path, name: str) -> int:
    """Put a split's files into the output folder; return the number of its rows."""
    tally = merged_report(finished).tally
    if not tally.rows:
        raise ValueError(
            f"{name} has no rows: let the step that wrote it keep some, or leave the split out"
        )
    if tally.rows == tally.dropped_rows:
        raise ValueError(
            f"all {tally.rows} rows of {name} were dropped when tokenised: {tally.worst_reasons()}"
        )
    for done in finished:
        number = done.shard.name.rpartition("-")[2]
        place(done.folder / TOKENS, folder / f"tokens-{number}.parquet")
    return tally.rows - tally.dropped_rows


def _place_images(source: Path, splits: Sequence[str], tokenizer: Path, output: Path) -> None:
    """Put the images of the rows beside their tokens, and which token stands for them."""
    seen = [split for split in splits if (source / split / IMAGES).is_dir()]
    if not seen or not reads_images(tokenizer):
        return
    token = Placeholders(tokenizer).token_id
    for split in seen:
        copy_images(source / split, output / split)
        (output / split / IMAGES / "placeholder.json").write_text(json.dumps({"token": token}))


def _metrics(report: Report) -> dict[str, Any]:
    dropped = report.tally.metrics()
    return {
        "truncated": report.tally.truncated,
        **{metric: report.noticed[finding] for finding, (metric, _) in _NOTICED.items()},
        "lengths": {name: quantiles(report.lengths[name]) for name in _plotted(report)},
        **dropped,
        "notices": [
            *dropped.get("notices", ()),
            *(f"{n} {said}" for name, (_, said) in _NOTICED.items() if (n := report.noticed[name])),
        ],
    }


_NOTICED: Mapping[str, tuple[str, str]] = {
    "merged": (
        "boundary_tokens_merged",
        "tokens were merged across the edge of an assistant's text by the tokenizer; they are "
        "trained on only where the text's first word took in white space before it",
    ),
    "rewritten": (
        "prompts_rewritten",
        "rows are trained on after another prompt than generation gives: the chat template writes "
        "it otherwise once it is answered, or without an answer's header before",
    ),
    "tools_lost": (
        "tools_not_written",
        "rows have tools that the chat template does not write, so that the model never sees "
        "them; use a template that does, or leave the tools out",
    ),
    "messages_lost": (
        "messages_not_written",
        "rows have a message that the chat template does not write, or not as it is, so that the "
        "model never sees it; use a template that does, or leave such rows out with "
        "tokenize.lost=dropped",
    ),
    "calls_lost": (
        "calls_not_written",
        "rows have a call of a tool in an earlier turn that the chat template does not write, so "
        "that the model never sees it; tokenize.lost=dropped leaves such rows out",
    ),
    "reasoning_lost": (
        "reasoning_not_written",
        "rows have reasoning in a turn that is trained on which the chat template does not write, "
        "so that it is not trained on; use a template that does",
    ),
    "several_turns": (
        "pairs_of_several_turns",
        "pairs part before their last turn and are trained on every turn in which their sides "
        "differ; tokenize.train_on=last_turn trains on the last one alone",
    ),
    "read_only": (
        "earlier_turns_not_trained",
        "conversations have answers before their last turn, which are not trained on; "
        "tokenize.train_on=all_turns trains on them, too, and last_turn says that none is meant",
    ),
    "spelled": (
        "special_tokens_spelled",
        "rows spell special tokens in their own text, which become those tokens and may look "
        "like turns to the model",
    ),
    "unended": (
        "turns_without_end",
        "rows are trained on without an end-of-turn token, so that the model does not learn to "
        "stop; name one with tokenize.end_of_turn, or use a template that writes one, within "
        "{% generation %} if it has that",
    ),
    "unknown": (
        "unknown_tokens",
        "trained tokens stand for text outside the tokenizer's vocabulary",
    ),
}
"""For each field of `tokenizing.Findings`: its metric, and the text of its notice after the number.
"""


_MEASURES: Mapping[str, str] = {
    "prompt": "prompt, in tokens",
    "chosen": "chosen response",
    "rejected": "rejected response",
    "completion": "completion",
    "trained": "tokens trained on",
    "total": "whole sequence (of a pair: the longer one)",
}


def _plotted(report: Report) -> list[str]:
    return [name for name in report.lengths if name in _MEASURES]


def _packing(report: Report, max_length: int) -> Packing:
    """How rows fill sequences. A pair has its prompt once and may take twice the limit."""
    pairs = report.lengths.get(PACKED)
    lengths = pairs or report.lengths.get("total", {})
    return packed(lengths, 2 * max_length if pairs else max_length)


def _summary(report: Report, packing: Packing) -> str:
    plots = (plot(_MEASURES[name], report.lengths[name]) for name in _plotted(report))
    return "\n".join(["### Lengths", "", *plots, "### Packing", "", f"{packing}.", ""])
