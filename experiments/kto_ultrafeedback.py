"""KTO: learning from responses that are each labelled good or bad, without pairs.

The training rows are the pairs of ``dpo_ultrafeedback``, split into single responses; or, with
``feedback=``, your own responses: ``{"prompt": …, "completion": …, "label": true}``. The models
before and after KTO are evaluated on held-out pairs, as in DPO, so that the two can be compared.

python experiments/kto_ultrafeedback.py                          the embedded demo's data
python experiments/kto_ultrafeedback.py feedback=thumbs.jsonl    thumbs up and down
python experiments/kto_ultrafeedback.py kto.loss.undesirable_weight=1.5
"""

from dataclasses import dataclass, field

from experiments.dpo_ultrafeedback import CHOICES
from experiments.dpo_ultrafeedback import Config as OnPairs
from pipeline import Step
from pipeline.experiment import main
from steps.evaluate import evaluate
from steps.import_model import import_model
from steps.jax_backend.backend_choice import training_choices
from steps.load_preferences import load_preferences
from steps.load_unpaired import load_unpaired
from steps.losses.dpo import Dpo
from steps.losses.kto import Kto
from steps.losses.registry import UNPAIRED_LOSSES
from steps.reference_logprobs import reference_logprobs
from steps.sources import data_at, load_model, load_rows
from steps.tokenize_preferences import tokenize_preferences
from steps.tokenize_unpaired import tokenize_unpaired
from steps.train_kto import train_kto
from steps.train_sft import train_sft
from steps.training.config import KtoConfig
from steps.unpair import unpair


@dataclass
class Config(OnPairs):
    """KTO beside DPO, on the same held-out pairs.

    Args:
        feedback: a file of your own labelled responses, in place of the split pairs.
    """

    kto: KtoConfig = field(default_factory=KtoConfig)
    feedback: str | None = None


def kto_ultrafeedback(cfg: Config) -> dict[str, Step]:
    """SFT → reference logps of single responses → KTO → evaluate before and after on pairs."""
    base = load_model(import_model, cfg.model, dtype=(cfg.sft or cfg.kto).dtype)
    pairs = load_rows(load_preferences, cfg.data)
    tokens = tokenize_preferences(pairs, tokenizer=base, config=cfg.tokenize)
    sft = train_sft(tokens["train"], init=base, config=cfg.sft) if cfg.sft else base

    rated = unpair(pairs) if cfg.feedback is None else load_unpaired(data_at(cfg.feedback))
    responses = tokenize_unpaired(rated, tokenizer=base, config=cfg.tokenize)["train"]
    reference = reference_logprobs(responses, model=sft, config=cfg.kto.reference())
    kto = train_kto(responses, policy=sft, reference=reference, config=cfg.kto)

    assert isinstance(cfg.kto.loss, Kto)
    rewards = Dpo(beta=cfg.kto.loss.beta)  # both reward log(π/π_ref), scaled by beta
    before = evaluate(tokens["test"], model=sft, config=cfg.evaluate)
    after = evaluate(tokens["test"], kto, cfg.evaluate, before, rewards, baseline_model=sft)
    return {"training": kto, "before KTO": before, "after KTO": after}


if __name__ == "__main__":
    main(kto_ultrafeedback, CHOICES | {"kto.loss": UNPAIRED_LOSSES} | training_choices("kto"))
