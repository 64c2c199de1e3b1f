"""Record twenty steps of TRL's trainers with each loss that Temper has too, for a test without TRL.

    PYTHON benchmarks/trl_losses.py     write tests/golden/trl_losses.json

PYTHON is an interpreter that can import trl. Model and pairs are those of `trl_steps.py`. For ORPO
they have prompts of one token, since TRL's likelihood term includes prompts, except their first
token. For losses of single responses, every pair gives one of its two.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.trl_steps import BATCH_SIZE, RATE, STEPS, pairs, texts, write_model

GOLDEN = Path(__file__).resolve().parents[1] / "tests/golden/trl_losses.json"
WITH_REFERENCE: dict[str, dict[str, Any]] = {
    "hinge": {"loss_type": "hinge"},
    "ipo": {"loss_type": "ipo"},
    "robust": {"loss_type": "robust", "label_smoothing": 0.1},
    "exo_pair": {"loss_type": "exo_pair", "label_smoothing": 0.1},
    "nca_pair": {"loss_type": "nca_pair"},
    "bco_pair": {"loss_type": "bco_pair"},
    "sppo_hard": {"loss_type": "sppo_hard"},
    "aot": {"loss_type": "aot"},
    "aot_unpaired": {"loss_type": "aot_unpaired"},
    "apo_zero": {"loss_type": "apo_zero"},
    "apo_down": {"loss_type": "apo_down"},
    "discopop": {"loss_type": "discopop"},
    "sigmoid_norm": {"loss_type": "sigmoid_norm"},
    "forward_kl": {"f_divergence_type": "forward_kl"},
    "js": {"f_divergence_type": "js_divergence"},
    "alpha": {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.5},
    "ld_dpo": {"ld_alpha": 0.5},
    "wpo": {"use_weighting": True},
}
WITHOUT: dict[str, dict[str, Any]] = {
    "cpo": {"loss_type": "sigmoid", "cpo_alpha": 1.0},
    "cpo_hinge": {"loss_type": "hinge", "cpo_alpha": 1.0},
    "cpo_ipo": {"loss_type": "ipo", "cpo_alpha": 1.0},
    "simpo": {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5},
    "alphapo": {"loss_type": "alphapo", "cpo_alpha": 0.0, "simpo_gamma": 0.5, "alpha": 0.25},
}
ORPO: dict[str, dict[str, Any]] = {"orpo": {}}
UNPAIRED: dict[str, dict[str, Any]] = {
    "kto": {"desirable_weight": 1.5},
    "apo_zero_unpaired": {"loss_type": "apo_zero_unpaired", "undesirable_weight": 0.5},
}
BETA = 0.5


def with_short_prompts() -> list[tuple[list[int], list[int], list[int]]]:
    """The pairs, with only the last token of each prompt."""
    return [(prompt[-1:], chosen, rejected) for prompt, chosen, rejected in pairs()]


def labelled() -> list[tuple[list[int], list[int], bool]]:
    """A prompt, a response and its label from each pair, in the order in which they are seen."""
    return [
        (prompt, chosen if number % 3 else rejected, number % 3 > 0)
        for number, (prompt, chosen, rejected) in enumerate(pairs())
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder / "model")
        recorded = dict(_recorded(folder))
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n")


def _recorded(folder: Path) -> Iterator[tuple[str, list[float]]]:
    from trl import (  # pyright: ignore[reportMissingImports]
        DPOConfig,
        DPOTrainer,
        KTOConfig,
        KTOTrainer,
    )
    from trl.experimental import cpo, orpo  # pyright: ignore[reportMissingImports]

    whole, short = pairs(), with_short_prompts()
    single = [
        {
            "prompt": text["prompt"],
            "completion": text["chosen" if label else "rejected"],
            "label": label,
        }
        for text, (_, _, label) in zip(texts(), labelled(), strict=True)
    ]
    for trainer, config, losses, rows, made in (
        (DPOTrainer, DPOConfig, WITH_REFERENCE, texts(), whole),
        (cpo.CPOTrainer, cpo.CPOConfig, WITHOUT, texts(), whole),
        (orpo.ORPOTrainer, orpo.ORPOConfig, ORPO, texts(short), short),
        (KTOTrainer, KTOConfig, UNPAIRED, single, labelled()),
    ):
        given = list(rows)
        for name, settings in losses.items():
            yield name, _losses(folder, trainer, config, settings, given, made)


def _losses(
    folder: Path,
    trainer: Any,
    config: Any,
    settings: dict[str, Any],
    rows: list[dict[str, Any]],
    tokens: Sequence[tuple[Any, ...]],
) -> list[float]:
    """The loss of every step on `rows`, which TRL must turn into the `tokens`."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    arguments = config(
        output_dir=str(folder / "output"),
        per_device_train_batch_size=BATCH_SIZE,
        max_steps=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        beta=BETA,
        bf16=False,
        use_cpu=True,
        train_sampling_strategy="sequential",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        **settings,
    )
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32")
    made = trainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )
    _require_same_tokens(made.train_dataset, tokens)
    made.train()
    return [line["loss"] for line in made.state.log_history if "loss" in line]


def _require_same_tokens(rows: Any, tokens: Sequence[tuple[Any, ...]]) -> None:
    for row, (prompt, *responses) in zip(rows, tokens, strict=True):
        sides = ("completion",) if "completion_ids" in row else ("chosen", "rejected")
        for side, ids in zip(sides, responses, strict=False):
            whole = row.get(f"{side}_input_ids") or row["prompt_ids"] + row[f"{side}_ids"]
            if whole != prompt + ids:
                raise SystemExit(f"TRL made other tokens: {whole} for {prompt + ids}")


if __name__ == "__main__":
    main()
