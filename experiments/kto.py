"""KTO: a model learns from your own responses, each of which is labelled good or bad.

    temper run kto --data thumbs.jsonl --model MODEL
    temper run kto --data thumbs.jsonl --model MODEL kto.loss.undesirable_weight=1.5

A row is {"prompt": …, "completion": …, "label": true}, or false for a bad response.
"""

from dataclasses import dataclass, field

from pipeline import Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.config import TokenizeConfig
from steps.import_model import import_model
from steps.jax_backend.backend_choice import training_choices
from steps.load_unpaired import load_unpaired
from steps.losses.registry import UNPAIRED_LOSSES
from steps.reference_logprobs import reference_logprobs
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.tokenize_unpaired import tokenize_unpaired
from steps.train_kto import train_kto
from steps.training.config import KtoConfig


@dataclass
class Config(ExperimentConfig):
    """KTO on responses labelled good or bad."""

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    kto: KtoConfig = field(default_factory=KtoConfig)


def kto(cfg: Config) -> dict[str, Step]:
    """Labelled responses → tokens → reference logps → KTO."""
    base = load_model(import_model, cfg.model, dtype=cfg.kto.dtype)
    rows = load_rows(load_unpaired, cfg.data, needs_held_out=False)
    tokens = tokenize_unpaired(rows, tokenizer=base, config=cfg.tokenize)["train"]
    reference = reference_logprobs(tokens, model=base, config=cfg.kto.reference())
    return {"model": train_kto(tokens, policy=base, reference=reference, config=cfg.kto)}


if __name__ == "__main__":
    main(kto, {"kto.loss": UNPAIRED_LOSSES, **training_choices("kto")})
