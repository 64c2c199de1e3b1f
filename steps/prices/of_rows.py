"""Estimates of steps that read, choose and tokenise rows."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.price.estimator import Call, Estimator, Foreseen, Sizes
from steps.prices.row_sizes import BYTES_A_TOKEN, of_rows, of_source, of_tokens

START_BARE, _START_TABLES, _START_READING, _START_TOKENIZING = 0.15, 0.5, 0.6, 0.5
"""Seconds until a step begins, in a process whose parent has imported its libraries: a step that
uses none, one that writes tables, one that reads sources, and one that tokenises."""
_ROWS_READ, _ROWS_TOKENIZED, _TOKENS_WRITTEN, _WORDS_LOADED = 4e3, 4e3, 3e5, 1e5
"""Rows, tokens, and entries of a tokenizer's vocabulary per second of one process."""
_READING, _TOKENIZING, TOKENIZER = 0.155e9, 0.455e9, 1250.0
"""Bytes of a process that reads or tokenises, and bytes for each token of the vocabulary."""
_TEMPLATE_TOKENS = 28
"""Tokens that a chat template adds to a conversation, including a system prompt."""
_PACKED = 0.43
"""The ratio of a row's share of a compressed Parquet file to its text."""
_EMPTY = 2500
"""Bytes of a Parquet file without rows."""
_REPORT = 0.19e9, 0.2e6
"""Bytes of the process that writes a report, and of the page, most of which is the same in all."""


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
    size = sum(p.get("rows", 0) * p.get("text", 0) * _PACKED + 3500 for p in parts.values())
    sizes = {"rows": rows, "parts": parts, "bytes": size}
    return Foreseen(sizes, _START_READING + read / _ROWS_READ, _READING)


def _limited(sizes: Sizes, share: float, most: int | None) -> Sizes:
    if not sizes:
        return {}
    rows = round(sizes["rows"] * share)
    return {**sizes, "rows": rows if most is None else min(rows, most)}


# --- lengths ----------------------------------------------------------------------------------


def _text_tokens(part: Sizes) -> float | None:
    """The mean number of tokens of a row's text; ``None`` if it is unknown."""
    text = part.get("text")
    if text is None and "bytes" in part:
        text = max(40.0, (part["bytes"] - _EMPTY) / max(part["rows"], 1) / _PACKED)
    return None if text is None else text / BYTES_A_TOKEN


def _within(config: Any, prompt: float, response: float) -> tuple[float, float]:
    """The lengths of a prompt and its response within the limits of `config`, if there is one."""
    if config is None:
        return prompt, response
    prompt = min(prompt, config.max_prompt_length or math.inf)
    return prompt, max(1.0, min(response, (config.max_length or math.inf) - prompt))


def _pair_lengths(part: Sizes, config: Any = None) -> Sizes:
    """The mean numbers of tokens of a pair's parts, if a quarter of the text is the prompt."""
    if "chosen" in part:
        return {name: part[name] for name in ("prompt", "chosen", "rejected")}
    if (tokens := _text_tokens(part)) is None:
        return {}
    return _lengths_of_pair(*_within(config, tokens / 4 + _TEMPLATE_TOKENS, 3 * tokens / 8))


def _completion_lengths(part: Sizes, config: Any) -> Sizes:
    """The mean numbers of tokens of a prompt and its completion, if they share the text."""
    tokens = _text_tokens(part)
    if "completion" in part:
        lengths = part["prompt"], part["completion"]
    elif tokens is not None:
        lengths = tokens / 2 + _TEMPLATE_TOKENS, tokens / 2
    else:
        return {}
    return dict(zip(("prompt", "completion"), _within(config, *lengths), strict=True))


def tokens_of(sizes: Sizes) -> float:
    """The mean number of tokens of a row; a prompt that several responses share counts once."""
    if "prompt" in sizes:
        others = (sizes.get(name, 0.0) for name in ("chosen", "rejected", "completion"))
        return sizes["prompt"] + sum(others)
    return sizes.get("total", 0.0)


# --- tokenising -------------------------------------------------------------------------------


def _tokenized_splits(
    call: Call, argument: str, lengths: Callable[[Sizes, Any], Sizes]
) -> Foreseen:
    config: Any = call.arguments["config"]
    parts = {
        name: {"rows": part["rows"], **lengths(part, config)}
        for name, part in call.size(argument).get("parts", {}).items()
        if "rows" in part
    }
    return _tokenized(parts, call)


def _conversations(call: Call) -> Foreseen:
    most = call.arguments["config"].max_length or math.inf
    return _tokenized_rows(call, call.size("conversations"), _TEMPLATE_TOKENS, most)


def _texts(call: Call) -> Foreseen:
    return _tokenized_rows(call, call.size("texts"), 0.0, call.arguments["config"].max_length)


def _tokenized_rows(call: Call, given: Sizes, more: float, most: float) -> Foreseen:
    """Rows of a single split, each with `more` tokens than its text has."""
    text = _text_tokens(given)
    total = given.get("total", None if text is None else text + more)
    if "rows" not in given or total is None:
        return Foreseen()
    row = {"rows": given["rows"], "total": min(total, most)}
    foreseen = _tokenized({"": row}, call)
    return replace(foreseen, sizes={**row, "bytes": foreseen.sizes["bytes"]})


def _tokenized(parts: dict[str, Any], call: Call) -> Foreseen:
    if not parts or any("rows" not in part for part in parts.values()):
        return Foreseen()
    rows = sum(part["rows"] for part in parts.values())
    tokens = sum(part["rows"] * tokens_of(part) for part in parts.values())
    vocabulary = call.size("tokenizer").get("vocabulary", 0)
    tokenizers = 1 + sum(split != "" for split in parts)
    size = tokenizers * vocabulary * 32.0 + 6000 + tokens * 1.5
    sizes = {"rows": rows, "parts": parts, "bytes": size}
    taken = _START_TOKENIZING + vocabulary / _WORDS_LOADED
    taken += rows / _ROWS_TOKENIZED + tokens / _TOKENS_WRITTEN
    return Foreseen(sizes, taken, _TOKENIZING + TOKENIZER * vocabulary)


# --- rows that Temper makes or chooses --------------------------------------------------------


def _task(lengths: Sizes, size: int, version: int = 1) -> Estimator:
    """The estimator of a task whose rows have these lengths, with `size` bytes for each training
    problem."""

    def parts(counts: Mapping[str, Any]) -> Sizes:
        rows = {"sft": counts["train"], "train": counts["train"], "test": counts["test"]}
        return {"parts": {name: {"rows": count, **lengths} for name, count in rows.items()}}

    def foreseen(call: Call) -> Foreseen:
        train = call.arguments["train"]
        sizes = {"rows": train, **parts(call.arguments), "bytes": size * train + 8000}
        return Foreseen(sizes, _START_TABLES, _READING)

    return Estimator(foreseen, lambda made: parts(made.manifest.metrics), version)


def _separated(call: Call) -> Foreseen:
    """Both responses of each pair, alone."""
    parts = {}
    for name, part in call.size("pairs").get("parts", {}).items():
        lengths = _pair_lengths(part)
        row = {"prompt": lengths["prompt"], "completion": lengths["chosen"]} if lengths else {}
        parts[name] = {"rows": 2 * part["rows"], **row}
    if not parts:
        return Foreseen()
    rows = sum(part["rows"] for part in parts.values())
    text = sum(part["rows"] * tokens_of(part) for part in parts.values()) * BYTES_A_TOKEN
    sizes = {"rows": rows, "parts": parts, "bytes": _EMPTY * len(parts) + _PACKED * text}
    return Foreseen(sizes, _START_TABLES + rows / _ROWS_READ, _READING)


def _built(call: Call) -> Foreseen:
    """Pairs from sampled completions: two for each prompt, but at most ``max_pairs``."""
    most = call.arguments["config"].max_pairs
    completions = call.size("completions")
    if "prompts" not in completions:
        return Foreseen()
    rows = min(most or 2 * completions["prompts"], 2 * completions["prompts"])
    pair = _lengths_of_pair(completions.get("prompt", 13.0), completions.get("completion", 8.0))
    sizes = {"rows": rows, "parts": {"train": {"rows": rows, **pair}}, "bytes": 18.0 * rows + 3000}
    return Foreseen(sizes, _START_TABLES, _READING)


def _chosen(call: Call, lengths: Callable[[float, float], Sizes]) -> Foreseen:
    """At most one row of each prompt's completions; `lengths` are its lengths, from those of a
    prompt and of a completion."""
    drawn = call.size("rollouts")
    if "prompts" not in drawn or "completion" not in drawn:
        return Foreseen()
    rows, row = drawn["prompts"], lengths(drawn["prompt"], drawn["completion"])
    size = _EMPTY + 1.5 * rows * tokens_of(row)
    return Foreseen({"rows": rows, **row, "bytes": size}, _START_TABLES, _READING)


def _lengths_of_pair(prompt: float, response: float) -> Sizes:
    return {"prompt": prompt, "chosen": response, "rejected": response}


def _length_of_demonstration(prompt: float, response: float) -> Sizes:
    return {"total": prompt + response}


def _rest_of(argument: str) -> Callable[[Call], Foreseen]:
    """What a step leaves of an input: at most all of it. Its time depends on what it looks for."""
    return lambda call: Foreseen(call.size(argument))


def _reported(call: Call) -> Foreseen:
    memory, size = _REPORT
    return Foreseen({"bytes": size}, 2 * _START_TABLES, memory)


LOADED = Estimator(_loaded, of_rows, version=2)
TOKENIZED_PAIRS = Estimator(
    partial(_tokenized_splits, argument="pairs", lengths=_pair_lengths), of_tokens, version=5
)
TOKENIZED_UNPAIRED = Estimator(
    partial(_tokenized_splits, argument="unpaired", lengths=_completion_lengths),
    of_tokens,
    version=2,
)
TOKENIZED_CONVERSATIONS = Estimator(_conversations, of_tokens, version=4)
TOKENIZED_TEXTS = Estimator(_texts, of_tokens)
ARITHMETIC = _task({"total": 18.0, "prompt": 13.0}, 26, version=2)
SUMS = _task({"total": 43.0, "prompt": 20.0}, 51)
SEPARATED = Estimator(_separated, of_rows)
BUILT_PAIRS = Estimator(_built, of_rows, version=2)
CHOSEN_PAIRS = Estimator(partial(_chosen, lengths=_lengths_of_pair), of_tokens)
CHOSEN_DEMONSTRATIONS = Estimator(partial(_chosen, lengths=_length_of_demonstration), of_tokens)
REST_OF_PAIRS = Estimator(_rest_of("pairs"), of_rows)
REST_OF_CONVERSATIONS = Estimator(_rest_of("conversations"), of_rows)
REST_OF_PROMPTS = Estimator(_rest_of("prompts"), of_rows)
REST_OF_UNPAIRED = Estimator(_rest_of("unpaired"), of_rows)
REST_OF_TEXTS = Estimator(_rest_of("texts"), of_rows)
REST_OF_TOKENS = Estimator(_rest_of("tokens"), of_tokens)
REPORTED = Estimator(_reported)
