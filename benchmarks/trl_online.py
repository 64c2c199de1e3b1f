"""Record updates of TRL's `GRPOTrainer` on made-up completions, for a test without TRL.

    PYTHON benchmarks/trl_online.py     write tests/golden/trl_online.json

PYTHON is an interpreter that can import trl. The model is that of `trl_steps.py`. Completions and
rewards are made up rather than sampled, so that both sides learn from the same ones; all that comes
after sampling is the trainer's own.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.trl_steps import END, WORDS, draws, write_model

GOLDEN = Path(__file__).resolve().parents[1] / "tests/golden/trl_online.json"
ITERATIONS, PROMPTS, COMPLETIONS, LONGEST = 8, 4, 3, 9
RATE = 2e-3
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo, two passes": {"loss_type": "grpo", "num_iterations": 2},
    "grpo with KL, two passes": {"loss_type": "grpo", "beta": 0.04, "num_iterations": 2},
    "grpo with KL of the paper, two passes": {
        "loss_type": "grpo",
        "beta": 0.04,
        "use_bias_correction_kl": False,
        "num_iterations": 2,
    },
    "dr_grpo, two passes": {"loss_type": "dr_grpo", "num_iterations": 2, "scale_rewards": "none"},
    "dapo, two passes": {"loss_type": "dapo", "epsilon_high": 0.28, "num_iterations": 2},
    "cispo, two passes": {"loss_type": "cispo", "epsilon_high": 1.28, "num_iterations": 2},
    "dapo without what was cut": {
        "loss_type": "dapo",
        "epsilon_high": 0.28,
        "num_iterations": 2,
        "mask_truncated_completions": True,
    },
    "gspo, two passes": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "num_iterations": 2,
    },
}
"""The settings of TRL's that are not its defaults."""


@dataclass(frozen=True)
class Answered:
    """A prompt's ids, and the ids and reward of each of its completions."""

    prompt: list[int]
    completions: list[list[int]]
    rewards: list[float]


def answered() -> list[Answered]:
    """The prompts of all iterations, in order. Every fifth one has equal rewards, from which there
    is nothing to learn; a completion of `LONGEST` tokens is cut."""
    draw = draws(seed=3)

    def ids(least: int, most: int) -> list[int]:
        return [next(draw) % WORDS for _ in range(least + next(draw) % (most - least + 1))]

    made = []
    for number in range(ITERATIONS * PROMPTS):
        written = [[*ids(0, LONGEST), END][:LONGEST] for _ in range(COMPLETIONS)]
        rewards = [float(k if number % 5 else 1) + next(draw) % 2 * (number % 5 > 2)
                   for k in range(COMPLETIONS)]  # fmt: skip
        made.append(Answered(ids(2, 8), written, rewards))
    return made


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "model")
        recorded = {name: list(_updates(folder, settings)) for name, settings in RUNS.items()}
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")


def _updates(folder: Path, settings: dict[str, Any]) -> Iterator[dict[str, float]]:
    """The loss and the gradient's norm of every update."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    rows = answered()

    class Recorded(GRPOTrainer):
        """Completes each prompt as recorded."""

        def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any) -> Any:
            wanted = {tuple(row.prompt): iter(row.completions) for row in rows}
            return [next(wanted[tuple(ids)]) for ids in prompt_ids], None

    def rewards(number: list[int], **_: Any) -> list[float]:
        left = {row: iter(rows[row].rewards) for row in set(number)}
        return [next(left[row]) for row in number]

    config = GRPOConfig(
        output_dir=str(folder / "output"),
        per_device_train_batch_size=PROMPTS * COMPLETIONS,
        num_generations=COMPLETIONS,
        max_completion_length=LONGEST,
        max_steps=ITERATIONS * settings.get("num_iterations", 1),
        learning_rate=RATE,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        **settings,
    )
    prompts = [" ".join(f"w{id}" for id in row.prompt) for row in rows]
    trainer = Recorded(
        model=str(folder / "model"),
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts, "number": list(range(len(rows)))}),
    )
    trainer.train()
    for line in trainer.state.log_history:
        if "loss" in line:
            yield {name: line[name] for name in ("loss", "grad_norm")}


if __name__ == "__main__":
    main()
