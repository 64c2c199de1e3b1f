"""Does a preference signal transfer? A task whose answers can be checked, from scratch.

A small Llama learns two-digit addition from annotators, half of whom forget the carry. It then
samples answers, a rule decides which are right, and DPO learns to prefer right to wrong ones. The
claim can fail: held-out exact match must rise, but not if the labels are shuffled.

    python experiments/dpo_arithmetic.py
    python experiments/dpo_arithmetic.py control=false    without the shuffled-label control
    python experiments/dpo_arithmetic.py seed=1
    python experiments/dpo_arithmetic.py dpo/loss=ipo     another loss
    python experiments/dpo_arithmetic.py sft/backend=jax dpo/backend=jax

A search for the best beta and learning rate, which stops about half of the trials early by results
on held-out pairs:

    temper tune experiments/dpo_arithmetic.py held_out_pairs=0.1 dpo.eval_every_steps=5 \\
        dpo.loss.beta=0.1,0.3,1.0,3.0 dpo.optimizer.learning_rate=3e-5,1e-4,3e-4 \\
        --metric DPO.exact_match --trials 12 --sampler grid \\
        --stop-on train_dpo.eval_logps/chosen --rungs 5
"""

from dataclasses import dataclass, field

from pipeline import Step
from pipeline.experiment import ExperimentConfig, main
from steps.build_pairs import PairConfig, build_pairs
from steps.data.tokens.config import TokenizeConfig
from steps.generation.config import SamplingConfig
from steps.init_model import LlamaShape, init_model
from steps.jax_backend.backend_choice import training_choices
from steps.losses.dpo import Dpo
from steps.losses.registry import PAIR_LOSSES
from steps.make_arithmetic import make_arithmetic
from steps.sample_completions import sample_completions
from steps.score_completions import score_completions
from steps.tokenize_conversations import tokenize_conversations
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.train_sft import train_sft
from steps.training.config import PreferenceConfig, TrainConfig

CHOICES = {"dpo.loss": PAIR_LOSSES, **training_choices("dpo", "sft")}


@dataclass
class Config(ExperimentConfig):
    """Addition from careless annotators, then DPO from a checker's verdicts.

    Args:
        seed: the seed of the task, the weights, the training and the sampling.
        control: also train on shuffled labels, which should not improve the model.
        train_problems: the number of problems for training.
        test_problems: the number of held-out problems.
        max_pairs: the most pairs for DPO.
        held_out_pairs: the share of pairs that are held out from DPO for evaluation.
    """

    seed: int = 0
    control: bool = True
    train_problems: int = 1100
    test_problems: int = 500
    shape: LlamaShape = field(default_factory=LlamaShape)
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    sft: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_pairs: int = 640
    held_out_pairs: float = 0.0
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
        labels = PairConfig(
            cfg.max_pairs, shuffle_labels, cfg.seed, test_fraction=cfg.held_out_pairs
        )
        pairs = tokenize_preferences(build_pairs(samples, labels), base, cfg.tokenize)
        held_out = pairs["test"] if cfg.held_out_pairs else None
        return train_on_pairs(pairs["train"], policy=sft, config=cfg.dpo, held_out=held_out)

    results = {
        "untrained": exact_match(base),
        "SFT": exact_match(sft),
        "DPO": exact_match(dpo(shuffle_labels=False)),
    }
    if cfg.control:
        results["shuffled labels"] = exact_match(dpo(shuffle_labels=True))
    return results


if __name__ == "__main__":
    main(dpo_arithmetic, CHOICES)
