"""DPO on UltraFeedback-style preference pairs: raw rows in, an exported Hugging Face model out.

python experiments/dpo_ultrafeedback.py                     the embedded demo, a few CPU minutes
python experiments/dpo_ultrafeedback.py dpo.loss.beta=0.05  reruns DPO and what follows it
python experiments/dpo_ultrafeedback.py dpo/loss=simpo      another loss; docs/training.md has all
python experiments/dpo_ultrafeedback.py data.path=my.jsonl  one's own pairs
python experiments/dpo_ultrafeedback.py scale=full --plan   UltraFeedback and Llama-3.1-8B
"""

from dataclasses import dataclass, field

from pipeline import File, Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokenizing import TokenizeConfig
from steps.evaluate import EvaluateConfig, evaluate
from steps.export.card import ModelCard
from steps.export_hf import export_hf
from steps.import_model import import_model
from steps.lm_eval import HarnessConfig, lm_eval
from steps.load_preferences import load_preferences
from steps.measure_kl import KlConfig, measure_kl
from steps.sources import ModelSource, PreferenceData
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.train_sft import train_sft
from steps.training.choices import ADAPTERS, PAIR_LOSSES
from steps.training.config import Dtype, PreferenceConfig, TrainConfig


@dataclass
class Config(ExperimentConfig):
    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    dpo: PreferenceConfig = field(default_factory=PreferenceConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    export_dtype: Dtype = Dtype.float32
    measure_kl: bool = False
    kl: KlConfig = field(default_factory=KlConfig)
    lm_eval_tasks: str | None = None
    lm_eval: HarnessConfig = field(default_factory=HarnessConfig)


def load_pairs(data: PreferenceData) -> Step:
    """The rows that a config names, read and split."""
    return load_preferences(
        data.train_source(),
        data.test_source(),
        test_fraction=data.test_fraction,
        max_train=data.max_train,
        max_test=data.max_test,
        format=data.choice(),
        deduplicate=data.deduplicate,
        max_dropped=data.max_dropped,
    )


def dpo_ultrafeedback(cfg: Config) -> dict[str, Step]:
    """Prepare → tokenise → SFT → reference logps → DPO → evaluate before and after, export."""
    base = import_model(cfg.model.source(), cfg.model.template(), dtype=cfg.sft.dtype)
    pairs = load_pairs(cfg.data)
    tokens = tokenize_preferences(pairs, tokenizer=base, config=cfg.tokenize)
    train, test = tokens["train"], tokens["test"]

    sft_held_out = None if cfg.sft.eval_every_steps is None else test
    sft = train_sft(train, init=base, config=cfg.sft, held_out=sft_held_out)
    dpo = train_on_pairs(train, policy=sft, config=cfg.dpo, held_out=test)

    untouched = evaluate(test, model=base, config=cfg.evaluate)
    before = evaluate(test, model=sft, config=cfg.evaluate)
    after = evaluate(test, model=dpo, config=cfg.evaluate, baseline=before, loss=cfg.dpo.loss)
    card = ModelCard(
        f"{cfg.model.name} DPO", cfg.model.name, cfg.data.name, cfg.sft, cfg.dpo, cfg.model.license
    )
    export = export_hf(
        dpo, evaluation=after, card=card, dtype=cfg.export_dtype, before=before, base=base
    )
    results = {
        "training": dpo,
        "base model": untouched,
        "before DPO": before,
        "after DPO": after,
        "export": export,
    }
    if cfg.measure_kl:
        results["divergence"] = measure_kl(test, model=dpo, reference=sft, config=cfg.kl)
    if cfg.lm_eval_tasks:
        folder = File(cfg.lm_eval_tasks)
        results["tasks before DPO"] = lm_eval(folder, model=sft, config=cfg.lm_eval)
        results["tasks after DPO"] = lm_eval(folder, model=dpo, config=cfg.lm_eval)
    return results


if __name__ == "__main__":
    main(dpo_ultrafeedback, {"dpo.loss": PAIR_LOSSES, "dpo.lora": ADAPTERS, "sft.lora": ADAPTERS})
