"""DPO on UltraFeedback-style preference pairs: raw rows in, an exported Hugging Face model out.

python experiments/dpo_ultrafeedback.py                     the embedded demo, one to two minutes
python experiments/dpo_ultrafeedback.py dpo.loss.beta=0.05  reruns DPO and what follows it
python experiments/dpo_ultrafeedback.py dpo/loss=simpo      another loss; docs/training.md has all
python experiments/dpo_ultrafeedback.py sft=none            DPO alone, from the model as it is
python experiments/dpo_ultrafeedback.py data=mine data.path=my.jsonl scale=own  your own pairs
python experiments/dpo_ultrafeedback.py scale=full --plan   UltraFeedback and Llama-3.1-8B
"""

from dataclasses import dataclass, field

from pipeline import Step, TemperError
from pipeline.experiment import ExperimentConfig, main
from steps.benchmark import benchmark
from steps.benchmarks.config import AnsweringConfig, BenchmarkConfig
from steps.checking.compared import PairJudge
from steps.checking.config import JudgeConfig
from steps.compare_completions import compare_completions
from steps.comparing.pair_judges import PAIR_JUDGES
from steps.data.tokens.config import TokenizeConfig
from steps.evaluate import evaluate
from steps.evaluation.config import EvaluateConfig, KlConfig
from steps.export.card import ModelCard
from steps.export.config import Adapters, GgufType
from steps.export_gguf import export_gguf
from steps.export_hf import export_hf
from steps.generation.config import SamplingConfig
from steps.import_model import import_model
from steps.jax_backend.backend_choice import scoring_choices, training_choices
from steps.load_preferences import load_preferences
from steps.losses.registry import PAIR_LOSSES
from steps.measure_kl import measure_kl
from steps.models.config import Dtype
from steps.prompts_of_pairs import prompts_of_pairs
from steps.sample_completions import sample_completions
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.train_sft import train_sft
from steps.training.config import PreferenceConfig, TrainConfig

CHOICES = {
    "dpo.loss": PAIR_LOSSES,
    "judge": PAIR_JUDGES,
    **training_choices("dpo", "sft"),
    **scoring_choices("evaluate"),
}
"""The options of a config's choices, by name, as in ``dpo/loss=simpo``."""


@dataclass
class Config(ExperimentConfig):
    """Raw pairs in, an exported model out.

    Args:
        sft: training on the chosen responses first; none: the model as it is goes into DPO.
        export_dtype: the dtype of the exported weights.
        adapters: how the adapters of a LoRA run are exported: merged into the weights, or also
            kept separately. They belong to the model after SFT.
        export_gguf: also write the trained model as a GGUF file with this type of weights.
        measure_kl: also measure the KL divergence of the model after DPO from the model before.
        judge: who says whether the model after DPO answers held-out prompts better than the one
            before; null: nobody does.
        answering: how both answer them.
        benchmark: a benchmark that is run before and after DPO, such as FOLDER@lm-eval; null: none.
        asking: which of its tasks are asked, and how.
        benchmarking: how the model answers them.
    """

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig | None = field(default_factory=TrainConfig)
    dpo: PreferenceConfig = field(default_factory=PreferenceConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    export_dtype: Dtype = Dtype.float32
    adapters: Adapters = Adapters.kept
    export_gguf: GgufType | None = None
    measure_kl: bool = False
    kl: KlConfig = field(default_factory=KlConfig)
    judge: PairJudge | None = None
    judging: JudgeConfig = field(default_factory=lambda: JudgeConfig(time_limit=600.0))
    answering: SamplingConfig = field(default_factory=SamplingConfig)
    benchmark: str | None = None
    asking: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    benchmarking: AnsweringConfig = field(default_factory=AnsweringConfig)


def dpo_ultrafeedback(cfg: Config) -> dict[str, Step]:
    """Prepare → tokenise → SFT → reference logps → DPO → evaluate before and after, export."""
    if cfg.sft is not None and cfg.adapters is Adapters.alone:
        raise TemperError(
            "adapters=alone: the adapters of DPO belong to the model after SFT, which nobody else "
            f"has, and on {cfg.model.name} they give another model; use adapters=kept, which "
            "exports the whole model with its adapters, or sft=none"
        )
    base = load_model(import_model, cfg.model, dtype=(cfg.sft or cfg.dpo).dtype)
    pairs = load_rows(load_preferences, cfg.data)
    tokens = tokenize_preferences(pairs, tokenizer=base, config=cfg.tokenize)
    train, test = tokens["train"], tokens["test"]

    sft = base
    if cfg.sft is not None:
        sft_held_out = None if cfg.sft.eval_every_steps is None else test
        sft = train_sft(train, init=base, config=cfg.sft, held_out=sft_held_out)
    dpo = train_on_pairs(train, policy=sft, config=cfg.dpo, held_out=test)

    before = evaluate(test, model=sft, config=cfg.evaluate)
    compared = {"baseline": before, "loss": cfg.dpo.loss, "baseline_model": sft}
    after = evaluate(test, model=dpo, config=cfg.evaluate, **compared)
    title = f"{cfg.model.title}, trained by {cfg.dpo.loss.name.upper()} on {cfg.data.title}"
    card = ModelCard(title, cfg.model.name, cfg.data.called, cfg.sft, cfg.dpo, cfg.model.license)
    export = export_hf(
        dpo,
        evaluation=after,
        card=card,
        dtype=cfg.export_dtype,
        before=before,
        base=base,
        data=pairs,
        adapters=cfg.adapters,
    )
    results = {"training": dpo, "before DPO": before, "after DPO": after, "export": export}
    if cfg.sft is not None:
        untouched = evaluate(test, model=base, config=cfg.evaluate)
        results = {"training": dpo, "base model": untouched} | results
    if cfg.export_gguf is not None:
        results["gguf"] = export_gguf(
            dpo, cfg.export_gguf, f"{cfg.model.title}-{cfg.dpo.loss.name}"
        )
    if cfg.measure_kl:
        results["divergence"] = measure_kl(test, model=dpo, reference=sft, config=cfg.kl)
    if cfg.judge is not None:
        prompts = prompts_of_pairs(pairs)["test"]
        answers = [
            sample_completions(prompts, model, cfg.answering, cfg.evaluate.dtype)
            for model in (dpo, sft)
        ]
        results["after DPO beside before"] = compare_completions(*answers, cfg.judge, cfg.judging)
    if cfg.benchmark:
        how = cfg.benchmark, cfg.asking, cfg.benchmarking
        results["benchmark before DPO"] = benchmark(sft, *how)
        results["benchmark after DPO"] = benchmark(dpo, *how)
    return results


if __name__ == "__main__":
    main(dpo_ultrafeedback, CHOICES)
