"""CPU seconds and memory of preparing preference pairs, compared with TRL's dataset preparation.

    python benchmarks/tokenization.py ROWS.jsonl --tokenizer FOLDER --trl PYTHON [--rounds 5]
    python benchmarks/tokenization.py ROWS.jsonl … --made 1000000 --words 30    # short pairs
    python benchmarks/tokenization.py ROWS.jsonl … --made 50000 --words 1400    # long ones

ROWS has UltraFeedback's columns; FOLDER is a saved tokenizer with a chat template; PYTHON is an
interpreter that can import trl (it is not a dependency of Temper). The two take turns, each sample
in a separate process on one core: samples share no cache, and other load affects both equally. Both
read the same JSON lines, of TRL's columns, with imports done and a loaded tokenizer. The script
times two parts: reading (to Parquet in Temper, which checks every row and writes its ledger; to a
dataset in TRL), and from there to tokens on disk. No row is cut or dropped, and the tokens of both
are compared. With `--made` the rows are that many, of random words of the given ones.

Memory is the peak of a whole process, for the rows once and `--times` times over.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.measuring import ONE_THREAD

NO_LIMIT = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--trl", help="an interpreter that can import trl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=20, help="rows over again, for memory")
    parser.add_argument("--made", type=int, help="so many pairs made of the words of the rows")
    parser.add_argument("--words", type=int, default=30, help="the most words in a response")
    parser.add_argument("--sample", choices=SAMPLES, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        print(json.dumps(SAMPLES[options.sample](options)))
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Take turns, and print the medians."""
    kinds = ["temper", *(["trl"] if options.trl else [])]
    samples: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        write_rows(options, Path(folder) / "rows.jsonl")
        for _ in range(options.rounds):
            for kind in kinds:
                samples[kind].append(sample(options, kind, Path(folder) / kind, 1))
        for kind in kinds:
            read, made = (
                statistics.median(1000 * s[part] / s["rows"] for s in samples[kind])
                for part in ("reading", "cpu")
            )
            print(f"{kind}: {read:.3f} CPU ms a row to read, {made:.3f} to tokenise")
        if options.trl:
            pairs = list(zip(samples["trl"], samples["temper"], strict=True))
            print(f"rows per CPU second, times those of TRL (median of {options.rounds}):")
            for what, parts in (("tokenising", ("cpu",)), ("both", ("reading", "cpu"))):
                ratios = (sum(t[p] for p in parts) / sum(o[p] for p in parts) for t, o in pairs)
                print(f"  {what} {statistics.median(ratios):.2f}")
            print(same_tokens(Path(folder) / "temper", Path(folder) / "trl"))
        for kind in kinds:
            peak = max(s["peak"] for s in samples[kind])
            print(f"{kind}: peak of {peak:.0f} MiB for the rows once")
            if options.times > 1:
                peak = sample(options, kind, Path(folder) / kind, options.times)["peak"]
                print(f"{kind}: peak of {peak:.0f} MiB for the rows {options.times} times over")


def sample(options: argparse.Namespace, kind: str, output: Path, times: int) -> dict[str, float]:
    python = options.trl if kind == "trl" else sys.executable
    command = [python, __file__, output.parent / "rows.jsonl", "--tokenizer", options.tokenizer,
               "--sample", kind, "--output", output, "--times", str(times)]  # fmt: skip
    environment = os.environ | ONE_THREAD | {"HF_DATASETS_CACHE": f"{output}-cache"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measured(rows: int, began: float, read: float) -> dict[str, float]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = time.process_time() - read
    return {"rows": rows, "reading": read - began, "cpu": cpu, "peak": peak}


def write_rows(options: argparse.Namespace, path: Path) -> None:
    """The given rows, or made ones, with a prompt and two responses each."""
    with options.rows.open() as lines:
        given = [json.loads(line) for line in lines]
    rows = ([r["chosen"][:-1], r["chosen"][-1:], r["rejected"][-1:]] for r in given)
    if options.made:
        words = [w for r in given for m in r["chosen"] for w in m["content"].split(" ")]
        drawn = random.Random(0)
        rows = (made_row(words, options.words, drawn) for _ in range(options.made))
    with path.open("w") as file:
        for prompt, chosen, rejected in rows:
            row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
            file.write(json.dumps(row) + "\n")


def made_row(words: list[str], most: int, drawn: random.Random) -> list[list[dict[str, str]]]:
    def said(role: str, most: int) -> list[dict[str, str]]:
        length = drawn.randint(5, max(6, most))
        at = drawn.randrange(len(words) - length)
        return [
            {"role": role, "content": " ".join(words[at : at + length]).strip() or f"Yes, {at}."}
        ]

    prompt, chosen = said("user", most // 2), said("assistant", most)
    while (rejected := said("assistant", most)) == chosen:
        pass  # a pair of equal responses would be dropped
    return [prompt, chosen, rejected]


def temper(options: argparse.Namespace) -> dict[str, float]:
    """From JSON lines to rows in Parquet, as `load_preferences` does, to tokens in Parquet."""
    import pandas  # noqa: F401  # which Arrow and TRL import: before the clock starts
    import pyarrow.parquet  # noqa: F401

    import steps.data.load.loading  # noqa: F401
    from steps.data.tokens.config import TokenizeConfig
    from steps.data.tokens.token_shards import TokenizeShards
    from steps.data.work.workers import Shard

    process = TokenizeShards(
        "pairs", str(options.tokenizer), TokenizeConfig(NO_LIMIT, NO_LIMIT)
    ).open()
    began = time.process_time()
    rows, files = load_pairs(options)
    read = time.process_time()
    for file in files:
        folder = options.output / "tokens" / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        process(Shard(f"train/{file.stem}", file), folder)
    result = measured(rows, began, read)
    if options.times == 1:
        from steps.data.rows.parquet import read_rows

        tokens = (options.output / "tokens" / f.stem / "tokens.parquet" for f in files)
        write_tokens(options, chain.from_iterable(map(read_rows, tokens)))
    return result


def load_pairs(options: argparse.Namespace) -> tuple[int, list[Path]]:
    from steps.data.formats.choice import FormatChoice
    from steps.data.load.loading import Load, Reading, load_rows, part_of
    from steps.data.load.shards import Source, source_of
    from steps.data.rows.rows import PreferenceRow

    shards = source_of(str(options.rows)).shards * options.times
    part = part_of(Source("rows", shards), FormatChoice("preference"), PreferenceRow)
    folder = options.output / f"rows{options.times}-{time.time()}"
    load = Load(PreferenceRow, Reading("rows", (part,)))
    loaded = load_rows(load, folder, folder.with_suffix(".scratch"), lambda *_: None)
    return loaded.kept["train"], sorted((folder / "train").glob("*.parquet"))


def trl(options: argparse.Namespace) -> dict[str, float]:
    """From JSON lines with prompts, as TRL's documentation recommends, to tokens in its cache."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOTrainer  # pyright: ignore[reportMissingImports]

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    began = time.process_time()
    files = [str(options.rows)] * options.times
    dataset = Dataset.from_json(files, cache_dir=str(options.output / f"cache{time.time()}"))
    read = time.process_time()
    settings = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    prepared = DPOTrainer._prepare_dataset(trainer, dataset, tokenizer, settings, "train")
    result = measured(len(prepared), began, read)
    if options.times == 1:
        write_tokens(options, prepared)
    return result


def write_tokens(options: argparse.Namespace, rows: Any) -> None:
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    with (options.output / "tokens.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps([list(row[name]) for name in names]) + "\n")


def same_tokens(ours: Path, theirs: Path) -> str:
    """Whether both made the same tokens of every row. TRL also keeps the template's text after a
    turn."""
    with (ours / "tokens.jsonl").open() as our_lines, (theirs / "tokens.jsonl").open() as lines:
        rows = zip(map(json.loads, our_lines), map(json.loads, lines), strict=True)
        equal = [
            our[0] == their[0]
            and all(r == t[: len(r)] for r, t in zip(our[1:], their[1:], strict=True))
            for our, their in rows
        ]
    return f"{sum(equal)} of {len(equal)} rows have the same tokens, up to the end of the turn"


SAMPLES = {"temper": temper, "trl": trl}

if __name__ == "__main__":
    main()
