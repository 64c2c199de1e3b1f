"""``judge_with_reward_model``: give existing rollouts the scores of a reward model as rewards."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline import Metrics, Output, step
from steps.core_adapters.workplace_of import at_work
from steps.kinds import Judged, RewardModel, Rollouts
from steps.reward_models.model_rewards import ModelRewards

_ALL_CUT = (
    "every completion was cut, so none has a score; sample with more max_new_tokens, or set of_cut"
)


@step(makes=Judged, estimate="steps.step_needs:of_model")
def judge_with_reward_model(
    out: Output,
    rollouts: Rollouts,
    model: RewardModel,
    config: ModelRewards = ModelRewards(),
) -> Metrics:
    """Write the rollouts with a reward named ``config.name``: the score of the completion's text
    behind its prompt. Verdicts stay, and so do rewards of other names: those of a completion add
    up. A notice says that rewards of the same name were replaced.

    A reward model knows whole answers only. So the reward of a completion that was cut is null
    (unless ``config.of_cut`` is set), and so is that of one which the chat template or a limit
    refuses. Its rewards do not add up to what those of others do, and it is left out of what learns
    from the rollouts.

    Finished shards stay in scratch, so an interrupted step resumes at the next shard.
    """
    from steps.online.rewarding.judging import read_prompts, read_some, replaced, write_judged
    from steps.online.rewarding.rewards import by_model
    from steps.online.rollouts import texts
    from steps.reward_models.answer_scores import score_answers

    drawn = read_some(rollouts.path)
    said = texts(rollouts.path, (rollout.last_turn for rollout in drawn))
    metrics: Metrics = {}
    with at_work(out) as place:

        def score(records: Sequence[Mapping[str, Any]]) -> list[list[float | None]]:
            scored, told = score_answers(
                records, model.path, config.scoring, config.tokenize, place
            )
            metrics.update(told)
            if place.ranks.is_first:
                return [record["scores"] for record in scored]
            return [[None] * len(record["completions"]) for record in records]

        rewarding = by_model(score, config.of_cut, config.name)
        rewarded = rewarding(drawn, said, read_prompts(rollouts.path))
    if place.ranks.is_first:
        write_judged(rollouts.path, rewarded, out.path)
        metrics["cut"] = sum(rollout.is_cut for rollout in drawn)
        given = [reward for r in rewarded if (reward := r.rewards[config.name]) is not None]
        if given:  # of cut completions, too, if these have one; mean_score is of the others
            metrics["mean_reward"] = sum(given) / len(given)
        all_cut = config.of_cut is None and all(rollout.is_cut for rollout in drawn)
        notices = [*metrics.get("notices", ()), *replaced(drawn, config.name)]
        if notices := [*notices, _ALL_CUT] if all_cut else notices:
            metrics["notices"] = notices
    return metrics
