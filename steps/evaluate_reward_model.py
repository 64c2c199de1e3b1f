"""``evaluate_reward_model``: a reward model's accuracy on pairs, and its best-of-n curve."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipeline import Metrics, Output, TemperError, step
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.kinds import RewardEvaluation, RewardScores
from steps.shared.checks import require


@dataclass(frozen=True)
class BestOfConfig:
    """The best-of-n curve.

    Args:
        sizes: the values of n, one for each point of the curve.
    """

    sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])

    def __post_init__(self) -> None:
        counts = [size for size in self.sizes if type(size) is int and size >= 1]
        holds = bool(counts) and len(set(counts)) == len(self.sizes)
        require(holds, "sizes must be different whole numbers of at least 1", self.sizes)


@step(makes=RewardEvaluation)
def evaluate_reward_model(
    out: Output,
    pairs: RewardScores,
    completions: RewardScores | None = None,
    config: BestOfConfig = BestOfConfig(),
) -> Metrics:
    """Write ``metrics.json`` and ``calibration.jsonl`` for held-out pairs.

    Given completions whose answer is known, also write ``best_of_n.jsonl``: how often the best of n
    is right when the reward model, a majority vote or the rule-based checker picks it.

    Args:
        pairs: the scores of held-out pairs, from ``score_with_reward_model``.
        completions: the scores of completions, by the same reward model.

    Raises:
        TemperError: ``pairs`` or ``completions`` holds scores of the other kind.
        ValueError: a pair lacks one of two scores; a prompt has no answer, or too few completions;
            the scores hold a row twice.
    """
    from steps.checking.boxed import require_answers
    from steps.data.rows.completions import require_completions
    from steps.evaluation.best_of_n import Sampled, best_of_n, one_right_of_four, over_optimised
    from steps.evaluation.calibration import reliability
    from steps.evaluation.reward_pairs import pair_margins, pair_metrics, require_pairs

    records, file = _records(pairs, "pair_id", "pairs")
    require_pairs(records, file)
    metrics: Metrics = pair_metrics(records)
    bins = reliability(pair_margins(records))
    write_json_lines(out.path / "calibration.jsonl", map(asdict, bins))
    if completions is not None:
        sampled, file = _records(completions, "completions", "completions")
        require_completions(sampled, file, "scores")
        require_answers(sampled)
        prompts = list(map(Sampled.of, sampled))
        curve = best_of_n(prompts, config.sizes)
        write_json_lines(out.path / "best_of_n.jsonl", map(asdict, curve))
        for point in curve:
            for picker in ("reward_model", "majority", "checker"):
                metrics[f"best_of_{point.n}/{picker}"] = getattr(point, picker)
        if (share := one_right_of_four(prompts)) is not None:
            metrics["one_right_of_four"] = share
        if told := over_optimised(curve):
            metrics["notices"] = [told]
    (out.path / "metrics.json").write_text(json.dumps(metrics, indent=1), "utf-8")
    return metrics


def _records(scores: RewardScores, field: str, argument: str) -> tuple[list[dict], Path]:
    file = scores.path / "scores.jsonl"
    records = read_json_lines(file)
    if not records or field not in records[0]:
        raise TemperError(
            f"{argument} wants scores of {argument}, and {file} has none; pass what "
            f"score_with_reward_model made of {argument}"
        )
    return records, file
