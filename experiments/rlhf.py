"""RLHF on your own preference pairs: a reward model learns from them, and a policy learns from its
own answers, which the reward model scores.

    temper run rlhf --data pairs.jsonl --model MODEL
    temper run rlhf --data pairs.jsonl --model MODEL rl.method.kl_weight=0.1  twice the KL penalty
    temper run rlhf --data pairs.jsonl --model MODEL rl.method.kl=none rl.method.kl_weight=0  no KL
    temper run rlhf --data pairs.jsonl --model MODEL rl=grpo
    temper run rlhf --data prompts.jsonl --model MODEL reward_model=FOLDER  an existing one

A row is {"prompt": …, "chosen": …, "rejected": …}; with a reward model, {"prompt": …}.
Pairs without a column of prompts need the name of their format: data.format=hh_rlhf.
"""

from dataclasses import dataclass, field
from pathlib import Path

from pipeline import Input, Step, TemperError, adopt
from pipeline.experiment import main
from pipeline.store.names.recorded import recorded
from steps.data.formats.by_name import FORMATS
from steps.data.rows.rows import PreferenceRow
from steps.data.tokens.config import TokenizeConfig
from steps.evaluate_reward_model import evaluate_reward_model
from steps.generation.config import SamplingConfig
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.generation.engines_by_name import ENGINES
from steps.import_model import import_model
from steps.jax_backend.backend_choice import training_choices
from steps.judge_with_reward_model import judge_with_reward_model
from steps.kinds import RewardModel
from steps.load_preferences import load_preferences
from steps.load_prompts import load_prompts
from steps.models.config import ADAPTERS
from steps.online.config import RlConfig
from steps.online.methods.choices import METHODS
from steps.prompts_of_pairs import prompts_of_pairs
from steps.reward_models.config import RewardConfig, RewardScoring
from steps.reward_models.model_rewards import ModelRewards
from steps.sample_rollouts import sample_rollouts
from steps.score_with_reward_model import score_with_reward_model
from steps.segments import Segmented
from steps.sources import ModelSource, PreferenceData, load_model, load_rows
from steps.tokenize_preferences import tokenize_preferences
from steps.train_online_with_reward_model import train_online_with_reward_model
from steps.train_reward_model import train_reward_model


@dataclass
class Config(Segmented):
    """Online training with a reward model.

    Args:
        reward_model: the folder of a reward model, or ``EXPERIMENT/RESULT`` of an earlier run;
            without one, it is trained on the pairs.
        of_cut: the reward of an answer that was cut at ``rl.max_new_tokens``; null: it is left out.
        answering: how the held-out prompts are answered.
        engine: who draws what the policy learns from.
    """

    data: PreferenceData = field(default_factory=PreferenceData)
    model: ModelSource = field(default_factory=ModelSource)
    reward_model: str | None = None
    tokenize: TokenizeConfig = field(default_factory=TokenizeConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    scoring: RewardScoring = field(default_factory=RewardScoring)
    of_cut: float | None = None
    rl: RlConfig = field(default_factory=RlConfig)
    answering: SamplingConfig = field(default_factory=SamplingConfig)
    engine: EngineConfig = field(default_factory=OwnEngine)


def rlhf(cfg: Config) -> dict[str, Step]:
    """Pairs → reward model → segments of sampling, scoring and learning → held-out prompts."""
    policy = load_model(import_model, cfg.model, dtype=cfg.rl.dtype)
    prompts = _prompts(cfg.data)
    if cfg.reward_model is None:
        results = _trained(cfg, policy)
        reward = results["reward model"]
    else:
        results, reward = {}, _existing(cfg.reward_model)
    scoring = ModelRewards(cfg.scoring, cfg.tokenize, cfg.of_cut)

    def scored(model: Step | Input) -> Step:
        answers = sample_rollouts(prompts["test"], model, cfg.answering, cfg.rl.dtype)
        return judge_with_reward_model(answers, reward, scoring)

    results["before"] = scored(policy)
    start = None
    for length, done in cfg.segments():
        trained = train_online_with_reward_model(
            prompts["train"],
            policy,
            reward,
            length,
            cfg.rl,
            scoring,
            start=start,
            engine=cfg.engine,
        )
        results[f"model after {done}"] = trained
        results[f"after {done}"] = scored(trained["model"])
        start = trained["state"]
    return results


def _prompts(data: PreferenceData) -> Step:
    """The prompts of the rows. Where the config names a format of pairs, they are those of the
    pairs, each once; else the rows have a column of prompts."""
    named = {data.format, *(part.format for part in data.mixture.values())}
    if any(name in FORMATS and FORMATS[name].makes is PreferenceRow for name in named):
        return prompts_of_pairs(load_rows(load_preferences, data))
    return load_rows(load_prompts, data)


def _existing(folder: str) -> Step:
    """The reward model of a run or a folder, which is looked at before anything is sampled."""
    if isinstance(made := recorded(folder, RewardModel), Step):
        return made
    if Path(folder).exists() and not Path(folder, "config.json").is_file():
        raise TemperError(
            f"reward_model={folder} is no folder of a model, as it has no config.json; name one "
            "that train_reward_model has made (temper path train_reward_model)"
        )
    return adopt(folder, RewardModel)


def _trained(cfg: Config, base: Step | Input) -> dict[str, Step]:
    """A reward model from the pairs, and its accuracy on held-out ones."""
    tokens = tokenize_preferences(load_rows(load_preferences, cfg.data), base, cfg.tokenize)
    trained = train_reward_model(tokens["train"], init=base, config=cfg.reward)
    scores = score_with_reward_model(tokens["test"], trained, cfg.scoring, cfg.tokenize)
    return {"reward model": trained, "evaluation": evaluate_reward_model(scores)}


if __name__ == "__main__":
    choices = {"rl.method": METHODS, "rl.lora": ADAPTERS, "engine": ENGINES}
    main(rlhf, {**choices, **training_choices("reward")})
