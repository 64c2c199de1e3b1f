"""Does influence find wrong labels, and is training without them better?

In the pairs of ``dpo_arithmetic``, the sides of a random share of the training pairs are exchanged.
``score_influence`` ranks these pairs by the gradient of trusted held-out pairs. DPO trains on all
of them, on those without the worst, and on those without equally many random ones: once half as
many as were exchanged, and once as many.

    python benchmarks/influence.py                       the table of influence.md, six seeds
    python benchmarks/influence.py 0.3 STORE 0 1 2       share, store and seeds

Needs ``pip install 'temper-ml[jax]'``.
"""

import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import Metrics, Output, Step, run, step
from steps.build_pairs import PairConfig, build_pairs
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.data.tokens.config import TokenizeConfig
from steps.generation.config import SamplingConfig
from steps.init_model import init_model
from steps.jax_backend.config import InfluenceConfig
from steps.kinds import Influences, PairTokens
from steps.losses.dpo import Dpo
from steps.make_arithmetic import make_arithmetic
from steps.sample_completions import sample_completions
from steps.score_completions import score_completions
from steps.score_influence import score_influence
from steps.select_rows import SelectionConfig, select_rows
from steps.tokenize_conversations import tokenize_conversations
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.train_sft import train_sft
from steps.training.config import OptimizerConfig, PreferenceConfig, TrainConfig

LENGTHS = TokenizeConfig(max_length=64, max_prompt_length=32)
LOSS = Dpo(beta=1.0)
NAMES = ("SFT", "all", "− worst half", "− random half", "− worst", "− random")
"""The models that are compared; "half": of as many pairs as were exchanged."""


@step(makes=PairTokens)
def exchange_sides(out: Output, tokens: PairTokens, share: float, seed: int) -> Metrics:
    """Exchange the sides of a random `share` of the pairs, and name these in ``planted.jsonl``."""
    import pyarrow.parquet as pq

    from steps.data.rows.parquet import iter_rows, shards, write_rows

    rows = list(iter_rows(tokens.path))
    planted = random.Random(seed).sample(rows, int(share * len(rows)))
    for row in planted:
        for column in ("ids", "mask"):
            sides = row[f"rejected_{column}"], row[f"chosen_{column}"]
            row[f"chosen_{column}"], row[f"rejected_{column}"] = sides
    write_rows(
        out.path / "tokens-00000.parquet", pq.read_schema(shards(tokens.path)[0]), iter(rows)
    )
    write_json_lines(
        out.path / "planted.jsonl", [{"row": r["row"], "pair": r["pair_id"]} for r in planted]
    )
    return {"rows": len(rows), "planted": len(planted)}


@step(makes=Influences)
def draw_influences(out: Output, tokens: PairTokens, seed: int) -> Metrics:
    """A ranking by chance, for the comparison."""
    from steps.data.rows.parquet import iter_rows

    draw = random.Random(seed)
    found = [
        {"row": row["row"], "pair": row["pair_id"], "influence": -draw.random()}
        for row in iter_rows(tokens.path)
    ]
    write_json_lines(out.path / "influences.jsonl", sorted(found, key=lambda r: r["influence"]))
    return {"rows": len(found)}


def steps_of(seed: int, share: float) -> dict[str, Step]:
    """The settings are those of conf/dpo_arithmetic.yaml."""
    task = make_arithmetic(1100, 500, seed)
    base = init_model(seed=seed)
    sft = train_sft(
        tokenize_conversations(task["sft"], tokenizer=base, config=LENGTHS),
        init=base,
        config=TrainConfig(
            seed=seed,
            epochs=50,
            max_steps=400,
            batch_size=128,
            tokens_per_forward=2048,
            optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=20),
        ),
    )
    drawn = SamplingConfig(
        seed=seed, temperature=1.0, num_completions=6, max_new_tokens=8, slots=512
    )
    labels = PairConfig(max_pairs=640, seed=seed, test_fraction=0.15)
    pairs = build_pairs(sample_completions(task["train"], sft, drawn), labels)
    tokens = tokenize_preferences(pairs, base, LENGTHS)
    given = exchange_sides(tokens["train"], share, seed)
    influences = score_influence(given, held_out=tokens["test"], model=sft, config=asked())
    by_chance = draw_influences(given, seed)
    half, as_many = (SelectionConfig(part, only_harmful=False) for part in (share / 2, share))
    kept = {
        "all": given,
        "− worst half": select_rows(given, influences, half),
        "− random half": select_rows(given, by_chance, half),
        "− worst": select_rows(given, influences, as_many),
        "− random": select_rows(given, by_chance, as_many),
    }
    config = PreferenceConfig(
        loss=LOSS,
        seed=seed,
        epochs=3,
        max_steps=20,
        batch_size=64,
        tokens_per_forward=2048,
        optimizer=OptimizerConfig(learning_rate=1e-4, schedule="constant"),  # pyright: ignore[reportArgumentType]
    )
    answers = SamplingConfig(temperature=0.0, max_new_tokens=8, slots=500)
    models = {name: train_on_pairs(rows, policy=sft, config=config) for name, rows in kept.items()}
    scores = {
        name: score_completions(sample_completions(task["test"], model, answers))
        for name, model in {"SFT": sft, **models}.items()
    }
    return {"planted": given, "ranked": influences, **scores}


def asked() -> InfluenceConfig:
    return InfluenceConfig(loss=LOSS, tokens_per_forward=2048, devices=1)


def main(share: float, store: str, seeds: Sequence[int]) -> None:
    found = ("seed", "planted", "among the worst half", "among the worst")
    print(f"| {' | '.join((*found, *NAMES))} |")
    for seed in seeds:
        made: dict[str, Any] = dict(run(steps_of(seed, share), store=store, verbosity=-1))
        planted, ranked = (
            [(r["row"], r["pair"]) for r in read_json_lines(Path(made[name].path) / file)]
            for name, file in (("planted", "planted.jsonl"), ("ranked", "influences.jsonl"))
        )
        precision = [
            len(set(planted) & set(ranked[:worst])) / worst
            for worst in (len(planted) // 2, len(planted))
        ]
        right = [made[name].metrics["exact_match"]["value"] for name in NAMES]
        row = [f"{value:.3f}" for value in (*precision, *right)]
        print(f"| {seed} | {len(planted)} of {len(ranked)} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("share", nargs="?", type=float, default=0.3, help="of exchanged pairs")
    parser.add_argument("store", nargs="?", default="store")
    parser.add_argument("seeds", nargs="*", type=int, default=[*range(6)])
    typed = parser.parse_args()
    main(typed.share, typed.store, typed.seeds)
