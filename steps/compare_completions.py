"""``compare_completions``: ask a judge which of two models answers better."""

from pipeline import Metrics, Output, step
from steps.checking.compared import PairJudge
from steps.checking.config import JudgeConfig
from steps.kinds import Comparisons, Completions


@step(makes=Comparisons)
def compare_completions(
    out: Output,
    completions: Completions,
    beside: Completions,
    judge: PairJudge,
    config: JudgeConfig = JudgeConfig(time_limit=600.0),
) -> Metrics:
    """Write ``comparisons.jsonl`` and return the win rate of `completions` over `beside`, with its
    95 % interval over prompts: a win counts 1, a tie 0.5.

    The judge sees each pair of answers in both orders. If its two verdicts contradict each other,
    the answers are equal, and so are equal texts, about which it is not asked. ``shown_first`` is
    the share of its verdicts for the answer that it saw first: 0.5, if it prefers no place.
    ``longer`` is the share of wins and losses in which the longer answer won.

    Raises:
        ValueError: the two are not answers to the same prompts; more comparisons than
            ``config.most_without`` have no verdict.
    """
    from steps.comparing.comparing import compare, counts, paired, scores
    from steps.data.rows.completions import read_completions
    from steps.data.rows.jsonl import write_json_lines
    from steps.evaluation.intervals import mean_share

    answers = (read_completions(made, "prompt") for made in (completions, beside))
    compared = compare(paired(*answers), judge, config, out.scratch / "verdicts", out.progress)
    write_json_lines(out.path / "comparisons.jsonl", (c.record() for c in compared))
    found = scores(compared)
    rate = {"win_rate": mean_share(found)} if found else {}
    return {**rate, **counts(compared)}
