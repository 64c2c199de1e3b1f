"""``score_with_reward_model``: score completions, or both responses of pairs."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for
from steps.core_adapters.workplace_of import at_work
from steps.data.rows.completions import read_completions
from steps.data.rows.jsonl import write_json_lines
from steps.data.rows.parquet import iter_rows
from steps.data.tokens.config import TokenizeConfig
from steps.kinds import Completions, PairTokens, RewardModel, RewardScores
from steps.reward_models.config import RewardScoring


@step(makes=RewardScores, estimate="steps.step_needs:of_model")
def score_with_reward_model(
    out: Output,
    responses: Completions | PairTokens,
    model: RewardModel,
    config: RewardScoring = RewardScoring(),
    tokenize: TokenizeConfig = TokenizeConfig(),
) -> Metrics:
    """Write ``scores.jsonl``. For pairs, a record has ``row``, ``pair_id``, ``scores`` and
    ``tokens``, the chosen response first. For completions, it is the completions' record with
    ``scores``; the score is null for a completion that cannot be rendered or exceeds a limit.

    Finished shards stay in scratch, so an interrupted step resumes at the next shard.

    Args:
        tokenize: how completions become tokens. It should equal the setting for the pairs that the
            reward model was trained on.
    """
    from steps.reward_models.answer_scores import score_answers
    from steps.reward_models.reward_scores import score_pairs

    with at_work(out) as place:
        if (responses.path / "completions.jsonl").is_file():
            records = read_completions(responses.path, "prompt")
            scored, metrics = score_answers(records, model.path, config, tokenize, place)
        else:
            pairs = iter_rows(tokens_for(model, responses))
            scored, metrics = score_pairs(pairs, model.path, config, place)
    if place.ranks.is_first:
        write_json_lines(out.path / "scores.jsonl", scored)
    return metrics
