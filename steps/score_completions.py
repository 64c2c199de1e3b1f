"""``score_completions``: measure the share of completions that the rule-based checker accepts."""

from pipeline import Metrics, Output, step
from steps.checking.boxed import boxed_answer, is_correct, require_answers
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.kinds import Completions, Scores


@step(makes=Scores, estimate="steps.prices.of_generation:JUDGED")
def score_completions(out: Output, completions: Completions) -> Metrics:
    """Write ``scores.jsonl`` and return the exact match with its 95 % interval.

    A completion that was cut at the token limit is judged like any other. The metric ``cut`` counts
    these completions.

    Raises:
        ValueError: a prompt has no answer.
    """
    from steps.evaluation.intervals import proportion

    records = read_json_lines(completions / "completions.jsonl")
    require_answers(records)
    scored = [
        {
            "row": r["row"],
            "answer": r["answer"],
            "completion": text,
            "right": verdict,
            "cut": finish != "stop",
        }
        for r in records
        for text, finish in zip(r["completions"], r["finish"], strict=True)
        for verdict in (is_correct(text, r["answer"]),)
    ]
    write_json_lines(out.path / "scores.jsonl", scored)
    right = sum(score["right"] for score in scored)
    formatted = sum(boxed_answer(score["completion"]) is not None for score in scored)
    return {
        "exact_match": proportion(right, len(scored)),
        "well_formed": proportion(formatted, len(scored)),
        "completions": len(scored),
        "cut": sum(score["cut"] for score in scored),
    }
