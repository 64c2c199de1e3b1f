"""Does a preference signal transfer? A task whose answers can be checked, from scratch.

A small Llama is taught two-digit addition by annotators half of whom forget the carry. It then
samples answers, a rule says which are right, and DPO learns from right against wrong. The claim
can fail: held-out exact match must rise, and must not when the labels are shuffled.

    python experiments/dpo_arithmetic.py
    python experiments/dpo_arithmetic.py control=false    without the shuffled-label control
    python experiments/dpo_arithmetic.py seed=1
    python experiments/dpo_arithmetic.py dpo/loss=ipo     another loss
"""

from dataclasses import dataclass, field

from pipeline import Step
from pipeline.experiment import ExperimentConfig, main
from steps.build_pairs import PairConfig, build_pairs
from steps.data.tokenizing import TokenizeConfig
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.make_arithmetic import make_arithmetic
from steps.sample_completions import sample_completions
from steps.score_completions import score_completions
from steps.tokenize_conversations import tokenize_conversations
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.train_sft import train_sft
from steps.training.choices import ADAPTERS, PAIR_LOSSES
from steps.training.config import PreferenceConfig, TrainConfig
from steps.training.losses.dpo import Dpo


@dataclass
class Config(ExperimentConfig):
    seed: int = 0
    control: bool = True
    train_problems: int = 1100
    test_problems: int = 500
    shape: LlamaShape = field(default_factory=LlamaShape)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_pairs: int = 640
    dpo: PreferenceConfig = field(default_factory=lambda: PreferenceConfig(loss=Dpo(beta=1.0)))
    answering: SamplingConfig = field(default_factory=SamplingConfig)


def dpo_arithmetic(cfg: Config) -> dict[str, Step]:
    """SFT from scratch → sample → check and pair → reference → DPO → exact match on held-out."""
    task = make_arithmetic(cfg.train_problems, cfg.test_problems, cfg.seed)
    base = init_model(cfg.shape, cfg.seed)
    demonstrations = tokenize_conversations(task["sft"], tokenizer=base, config=cfg.tokenize)
    sft = train_sft(demonstrations, init=base, config=cfg.sft)
    samples = sample_completions(task["train"], model=sft, config=cfg.sampling)

    def exact_match(model: Step) -> Step:
        return score_completions(sample_completions(task["test"], model, cfg.answering))

    def dpo(shuffle_labels: bool) -> Step:
        labels = PairConfig(cfg.max_pairs, shuffle_labels, cfg.seed)
        pairs = tokenize_preferences(build_pairs(samples, labels), base, cfg.tokenize)["train"]
        return train_on_pairs(pairs, policy=sft, config=cfg.dpo)

    results = {"SFT": exact_match(sft), "DPO": exact_match(dpo(shuffle_labels=False))}
    if cfg.control:
        results["shuffled labels"] = exact_match(dpo(shuffle_labels=True))
    return results


if __name__ == "__main__":
    main(dpo_arithmetic, {"dpo.loss": PAIR_LOSSES, "dpo.lora": ADAPTERS, "sft.lora": ADAPTERS})
