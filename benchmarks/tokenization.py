"""CPU seconds and memory of tokenising preference pairs, compared with TRL's dataset preparation.

    python benchmarks/tokenization.py ROWS.jsonl --tokenizer FOLDER --trl PYTHON [--rounds 5]

ROWS has UltraFeedback's columns; FOLDER is a saved tokenizer with a chat template; PYTHON is an
interpreter that can import trl (it is not a dependency of Temper). The two take turns, each sample
in a separate process on one core: samples share no cache, and other load affects both equally. The
script times only the preparation, from existing rows (Parquet in Temper, a dataset in memory in
TRL) to tokens on disk, after all imports and with a loaded tokenizer. No row is cut or dropped, and
the tokens of both are compared.

Memory is the peak of a whole process, for the rows once and 20 times over.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
ROWS_A_SHARD = 1000
NO_LIMIT = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--trl", help="an interpreter that can import trl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=20, help="rows over again, for memory")
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
        for _ in range(options.rounds):
            for kind in kinds:
                samples[kind].append(sample(options, kind, Path(folder) / kind, 1))
        for kind in kinds:
            cpu = [1000 * s["cpu"] / s["rows"] for s in samples[kind]]
            print(f"{kind}: {statistics.median(cpu):.3f} CPU ms a row ({min(cpu):.3f} lowest)")
        if options.trl:
            pairs = zip(samples["trl"], samples["temper"], strict=True)
            ratio = statistics.median(theirs["cpu"] / ours["cpu"] for theirs, ours in pairs)
            print(
                f"rows per CPU second: {ratio:.2f} times those of TRL (median of {options.rounds})"
            )
            print(same_tokens(Path(folder) / "temper", Path(folder) / "trl"))
        for times in (1, options.times):
            for kind in kinds:
                peak = sample(options, kind, Path(folder) / kind, times)["peak"]
                print(f"{kind}: peak of {peak:.0f} MiB for the rows {times} times over")


def sample(options: argparse.Namespace, kind: str, output: Path, times: int) -> dict[str, float]:
    """Run one preparation in a separate process."""
    python = options.trl if kind == "trl" else sys.executable
    command = [python, __file__, options.rows, "--tokenizer", options.tokenizer,
               "--sample", kind, "--output", output, "--times", str(times)]  # fmt: skip
    environment = os.environ | {
        "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY), "HF_DATASETS_CACHE": str(output) + "-cache",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measured(rows: int, cpu: float, wall: float) -> dict[str, float]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows": rows, "cpu": cpu, "wall": wall, "peak": peak}


def records(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for _ in range(options.times):
        with options.rows.open() as lines:
            yield from map(json.loads, lines)


def temper(options: argparse.Namespace) -> dict[str, float]:
    """From rows in Parquet, as `load_preferences` writes them, to tokens in Parquet."""
    from steps.data.rows.parquet import count_rows
    from steps.data.tokens.token_shards import TokenizeShards
    from steps.data.tokens.tokenizing import TokenizeConfig
    from steps.data.work.workers import Shard

    files = write_pairs(options)
    process = TokenizeShards(
        "pairs", str(options.tokenizer), TokenizeConfig(NO_LIMIT, NO_LIMIT)
    ).open()
    rows = sum(map(count_rows, files))
    cpu, wall = time.process_time(), time.perf_counter()
    for file in files:
        folder = options.output / "tokens" / file.stem
        folder.mkdir(parents=True, exist_ok=True)
        process(Shard(f"train/{file.stem}", file), folder)
    result = measured(rows, time.process_time() - cpu, time.perf_counter() - wall)
    if options.times == 1:
        from steps.data.rows.parquet import read_rows

        tokens = [
            r
            for f in files
            for r in read_rows(options.output / "tokens" / f.stem / "tokens.parquet")
        ]
        write_tokens(options, tokens)
    return result


def write_pairs(options: argparse.Namespace) -> list[Path]:
    from itertools import islice

    from steps.data.rows.parquet import write_rows
    from steps.data.rows.rows import PreferenceRow
    from steps.data.rows.tables import PAIRS, to_record

    def row(record: dict[str, Any]) -> PreferenceRow:
        chosen, rejected = tuple(record["chosen"]), tuple(record["rejected"])
        return PreferenceRow(record["id"], chosen[:-1], chosen[-1:], rejected[-1:])

    rows = map(row, records(options))
    files = []
    while shard := list(islice(rows, ROWS_A_SHARD)):
        files.append(options.output / f"rows{options.times}" / f"pairs-{len(files):05d}.parquet")
        write_rows(files[-1], PAIRS, map(to_record, shard))
    return files


def trl(options: argparse.Namespace) -> dict[str, float]:
    """From a dataset with prompts, as TRL's documentation recommends, to tokens in its cache."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOTrainer  # pyright: ignore[reportMissingImports]

    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    dataset = Dataset.from_generator(
        lambda: (
            {"prompt": r["chosen"][:-1], "chosen": r["chosen"][-1:], "rejected": r["rejected"][-1:]}
            for r in records(options)
        ),
        cache_dir=str(options.output / f"cache{time.time()}"),
    )
    settings = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    cpu, wall = time.process_time(), time.perf_counter()
    prepared = DPOTrainer._prepare_dataset(trainer, dataset, tokenizer, settings, "train")
    result = measured(len(prepared), time.process_time() - cpu, time.perf_counter() - wall)
    if options.times == 1:
        write_tokens(options, prepared)
    return result


def write_tokens(options: argparse.Namespace, rows: Any) -> None:
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    tokens = [[row[name] for name in names] for row in rows]
    (options.output / "tokens.json").write_text(json.dumps(tokens))


def same_tokens(ours: Path, theirs: Path) -> str:
    """Whether both made the same tokens of every row. TRL also keeps the template's text after a
    turn."""
    rows = zip(
        *(json.loads((path / "tokens.json").read_text()) for path in (ours, theirs)), strict=True
    )
    equal = [
        our[0] == their[0]
        and all(r == t[: len(r)] for r, t in zip(our[1:], their[1:], strict=True))
        for our, their in rows
    ]
    return f"{sum(equal)} of {len(equal)} rows have the same tokens, up to the end of the turn"


SAMPLES = {"temper": temper, "trl": trl}

if __name__ == "__main__":
    main()
