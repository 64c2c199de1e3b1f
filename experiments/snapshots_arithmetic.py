"""Which model of a run of DPO is the best one? Its own answers say it; its margins do not.

DPO runs too long on the pairs of ``dpo_arithmetic``, at a beta that lets it go far. The margins of
held-out pairs rise to the end, while the answers get worse. One run keeps a snapshot every few
steps. The exact match on problems of validation chooses one, and other problems judge the choice.

    python experiments/snapshots_arithmetic.py
    python experiments/snapshots_arithmetic.py seed=1
"""

from dataclasses import dataclass

from experiments.dpo_arithmetic import CHOICES
from experiments.dpo_arithmetic import Config as Arithmetic
from pipeline import Input, Step
from pipeline.experiment import main
from steps.build_pairs import PairConfig, build_pairs
from steps.init_model import init_model
from steps.make_arithmetic import make_arithmetic
from steps.sample_completions import sample_completions
from steps.score_completions import score_completions
from steps.select_model import select_model
from steps.tokenize_conversations import tokenize_conversations
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.train_sft import train_sft


@dataclass
class Config(Arithmetic):
    """DPO that runs too long, with a snapshot every few steps.

    Args:
        validation_problems: the number of problems that choose a snapshot; `test_problems` others
            judge it.
    """

    validation_problems: int = 200


def snapshots_arithmetic(cfg: Config) -> dict[str, Step]:
    """Exact match of SFT, of DPO's last model, and of those that margins and answers choose."""
    seen = cfg.train_problems + cfg.validation_problems
    task = make_arithmetic(cfg.train_problems, cfg.validation_problems, cfg.seed)
    unseen = make_arithmetic(seen, cfg.test_problems, cfg.seed)["test"]
    base = init_model(cfg.shape, cfg.seed)
    demonstrations = tokenize_conversations(task["sft"], tokenizer=base, config=cfg.tokenize)
    sft = train_sft(demonstrations, init=base, config=cfg.sft)
    samples = sample_completions(task["train"], model=sft, config=cfg.sampling)
    labels = PairConfig(cfg.max_pairs, seed=cfg.seed, test_fraction=cfg.held_out_pairs)
    pairs = tokenize_preferences(build_pairs(samples, labels), base, cfg.tokenize)
    dpo = train_on_pairs(pairs["train"], policy=sft, config=cfg.dpo, held_out=pairs["test"])

    def exact_match(model: Step | Input, prompts: Step | Input) -> Step:
        return score_completions(sample_completions(prompts, model, cfg.answering))

    last, every = cfg.dpo.max_steps or 0, cfg.dpo.snapshot_every_steps or 1
    snapshots = {f"step-{n}": dpo[f"step-{n}"] for n in range(every, last, every)}
    answers = {name: exact_match(model, task["test"]) for name, model in snapshots.items()}
    models = {
        "SFT": sft,
        "last snapshot": snapshots[list(snapshots)[-1]],
        "chosen by margins": dpo,
        "chosen by answers": select_model(snapshots, answers),
    }
    return {name: exact_match(model, unseen) for name, model in models.items()}


if __name__ == "__main__":
    main(snapshots_arithmetic, CHOICES)
