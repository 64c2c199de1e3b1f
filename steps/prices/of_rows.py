"""Estimates of steps that read rows and tokenise them."""

from collections.abc import Mapping
from typing import Any

from pipeline.price.estimator import Call, Estimator, Foreseen, Sizes
from steps.prices.row_sizes import BYTES_A_TOKEN, of_rows, of_source, of_tokens

START_BARE, _START_TABLES, _START_READING, _START_TOKENIZING = 0.15, 0.5, 1.0, 0.5
"""Seconds until a step begins, in a process whose parent has imported its libraries: a step that
uses none, one that writes tables, one that reads sources, and one that tokenises."""
_ROWS_READ, _ROWS_TOKENIZED, _TOKENS_WRITTEN, _WORDS_LOADED = 4e3, 4e3, 5e5, 1e5
"""Rows, tokens, and entries of a tokenizer's vocabulary per second of one process."""
_READING, _TOKENIZING, _A_TOKEN = 0.14e9, 0.455e9, 1250.0
"""Bytes of a process that reads or tokenises, and bytes for each token of the vocabulary."""
_TEMPLATE_TOKENS = 25
"""Tokens that a chat template adds to a conversation, including a system prompt."""
_SPELLING = 0.75
"""The share of text, without names of fields, in a row of pairs. The row has the prompt three
times."""


def _loaded(call: Call) -> Foreseen:
    source = of_source(call.arguments["train"])
    test = call.arguments["test"]
    if not source:
        return Foreseen()
    config = call.arguments["config"]
    fraction = config.test_fraction
    held_out = (
        of_source(test) if test is not None else {**source, "rows": source["rows"] * fraction}
    )
    kept = 1.0 if test is not None else 1 - fraction
    parts = {
        "train": _limited(source, kept, config.max_train),
        "test": _limited(held_out, 1.0, config.max_test),
    }
    read = source["rows"] + held_out.get("rows", 0)
    rows = sum(part.get("rows", 0) for part in parts.values())
    size = sum(p.get("rows", 0) * p.get("text", 0) * 0.3 + 3500 for p in parts.values())
    sizes = {"rows": rows, "parts": parts, "bytes": size}
    return Foreseen(sizes, _START_READING + read / _ROWS_READ, _READING)


def _limited(sizes: Sizes, share: float, most: int | None) -> Sizes:
    if not sizes:
        return {}
    rows = round(sizes["rows"] * share)
    return {**sizes, "rows": rows if most is None else min(rows, most)}


def _pairs(call: Call) -> Foreseen:
    config: Any = call.arguments["config"]
    given = call.size("pairs")
    parts = {
        name: {"rows": part["rows"], **_pair_lengths(part, config)}
        for name, part in given.get("parts", {}).items()
        if "rows" in part
    }
    return _tokenized(parts, call)


def _pair_lengths(part: Sizes, config: Any) -> Sizes:
    """The mean numbers of tokens of a pair's parts, if half of the text is three copies of the
    prompt."""
    text = part.get("text")
    if text is None and "bytes" in part:  # from the size of a compressed Parquet file
        text = max(200.0, 1.5 * (part["bytes"] - 2500) / max(part["rows"], 1))
    if text is None:
        return {}
    tokens = text * _SPELLING / BYTES_A_TOKEN
    prompt = min(tokens / 6 + _TEMPLATE_TOKENS, config.max_prompt_length or tokens)
    chosen = min(tokens / 4, (config.max_length or tokens) - prompt)
    return {"prompt": prompt, "chosen": chosen, "rejected": chosen}


def _conversations(call: Call) -> Foreseen:
    given = call.size("conversations")
    if "rows" not in given:
        return Foreseen()
    foreseen = _tokenized({"": {"rows": given["rows"], "total": given.get("total", 40.0)}}, call)
    parts = foreseen.sizes["parts"][""]
    return Foreseen({**parts, "bytes": foreseen.sizes["bytes"]}, foreseen.seconds, foreseen.memory)


def _tokenized(parts: dict[str, Any], call: Call) -> Foreseen:
    if not parts or any("rows" not in part for part in parts.values()):
        return Foreseen()
    rows = sum(part["rows"] for part in parts.values())
    tokens = sum(part["rows"] * tokens_of(part) for part in parts.values())
    vocabulary = call.size("tokenizer").get("vocabulary", 0)
    sizes = {"rows": rows, "parts": parts, "bytes": vocabulary * 32.0 + 6000 + tokens * 1.5}
    taken = _START_TOKENIZING + vocabulary / _WORDS_LOADED
    taken += rows / _ROWS_TOKENIZED + tokens / _TOKENS_WRITTEN
    return Foreseen(sizes, taken, _TOKENIZING + _A_TOKEN * vocabulary)


def tokens_of(sizes: Sizes) -> float:
    """The mean number of tokens of a row; a prompt that several responses share counts once."""
    if "prompt" in sizes:
        others = (sizes.get(name, 0.0) for name in ("chosen", "rejected", "completion"))
        return sizes["prompt"] + sum(others)
    return sizes.get("total", 0.0)


def _arithmetic(call: Call) -> Foreseen:
    train = call.arguments["train"]
    sizes = {"rows": train, **_parts_of_task(call.arguments), "bytes": 26 * train + 8000}
    return Foreseen(sizes, _START_TABLES, _READING)


def _parts_of_task(counts: Mapping[str, Any]) -> Sizes:
    """The sizes of a task's parts, from the numbers of its training and test problems."""
    row = {"total": 26.0, "prompt": 14.0}
    rows = {"sft": counts["train"], "train": counts["train"], "test": counts["test"]}
    return {"parts": {name: {"rows": count, **row} for name, count in rows.items()}}


def _built(call: Call) -> Foreseen:
    """Pairs from sampled completions: two for each prompt, but at most ``max_pairs``."""
    most = call.arguments["config"].max_pairs
    completions = call.size("completions")
    if "prompts" not in completions:
        return Foreseen()
    rows = min(most or 2 * completions["prompts"], 2 * completions["prompts"])
    parts = {"train": {"rows": rows, "prompt": 14.0, "text": 110.0}}
    return Foreseen(
        {"rows": rows, "parts": parts, "bytes": 18.0 * rows + 3000}, _START_TABLES, _READING
    )


LOADED = Estimator(_loaded, of_rows)
TOKENIZED_PAIRS = Estimator(_pairs, of_tokens, version=3)
TOKENIZED_CONVERSATIONS = Estimator(_conversations, of_tokens, version=3)
ARITHMETIC = Estimator(_arithmetic, lambda made: _parts_of_task(made.manifest.metrics))
BUILT_PAIRS = Estimator(_built, of_rows)
