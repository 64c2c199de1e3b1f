"""``train_online_with_reward_model``: train a policy on its own completions, which a reward model
scores."""

from contextlib import ExitStack

from pipeline import Metrics, Output, step
from steps.checking.config import JudgeConfig
from steps.checking.verdicts import Checker
from steps.core_adapters.workplace_of import at_work
from steps.environments.environment import Environment
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.kinds import Model, OnlineRun, OnlineState, Prompts, RewardModel
from steps.online.config import RlConfig
from steps.reward_models.model_rewards import ModelRewards


@step(
    makes=OnlineRun,
    estimate="steps.step_needs:of_model",
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
def train_online_with_reward_model(
    out: Output,
    prompts: Prompts,
    policy: Model,
    reward_model: RewardModel,
    iterations: int,
    config: RlConfig = RlConfig(),
    scoring: ModelRewards = ModelRewards(),
    checker: Checker | None = None,
    judging: JudgeConfig = JudgeConfig(),
    start: OnlineState | None = None,
    reference: Model | None = None,
    engine: EngineConfig = OwnEngine(),
    environment: Environment | None = None,
) -> Metrics:
    """As ``train_online``, with the score of a reward model as the reward: that which
    ``judge_with_reward_model`` gives to the same rollouts.

    Args:
        reward_model: stays loaded beside the policy and does not learn. With several processes it
            is in the first one alone.
        scoring: how it scores, and the reward of a completion that was cut.
        checker: a rule whose rewards add up with the scores.

    Raises:
        ValueError: a reward of the checker or the environment has the name of the reward model's.
    """
    from steps.environments.playing import replying
    from steps.online.online_run import Folders, run_sampling
    from steps.online.rewarding.rewards import by_model, checking, one_after_the_other
    from steps.reward_models.answer_scores import AnswerScorer

    for what, giver in (("checker", checker), ("environment", environment)):
        if giver is not None and giver.name == scoring.name:
            raise ValueError(
                f"{what} and reward model both give a reward named {scoring.name}, and only those "
                "of different names add up; set scoring.name"
            )
    folders = Folders(policy.path, start and start.path, reference and reference.path)
    rewards, scorer = [], None
    with (
        at_work(out, policy) as place,
        replying(environment, judging) as replies,
        ExitStack() as opened,
    ):
        if checker is not None:
            rewards.append(opened.enter_context(checking(checker, judging, out.scratch)))
        if place.ranks.is_first:  # which alone gives rewards
            scorer = AnswerScorer(reward_model.path, scoring.scoring, scoring.tokenize)
            opened.enter_context(scorer)
            rewards.append(by_model(scorer.scores, scoring.of_cut, scoring.name))
        reward = one_after_the_other(rewards)
        metrics = run_sampling(
            folders, config, prompts.path, reward, iterations, place, engine, replies
        )
    notices = [*metrics.get("notices", ()), *(scorer.notices if scorer else ())]
    return metrics | ({"notices": notices} if notices else {})
