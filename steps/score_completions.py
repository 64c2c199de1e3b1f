"""``score_completions``: how many completions the rule-based checker finds right."""

from pipeline import Metrics, Output, step
from steps.data.jsonl import read_json_lines, write_json_lines
from steps.evaluation.checkers import boxed_answer, is_correct
from steps.evaluation.intervals import proportion
from steps.kinds import Completions, Scores


@step(makes=Scores)
def score_completions(out: Output, completions: Completions) -> Metrics:
    """Write ``scores.jsonl`` and return the exact match with its 95 % interval."""
    records = read_json_lines(completions / "completions.jsonl")
    scored = [
        {"row": r["row"], "answer": r["answer"], "completion": text, "right": verdict}
        for r in records
        for text in r["completions"]
        for verdict in (is_correct(text, r["answer"]),)
    ]
    write_json_lines(out.path / "scores.jsonl", scored)
    right = sum(score["right"] for score in scored)
    formatted = sum(boxed_answer(score["completion"]) is not None for score in scored)
    return {
        "exact_match": proportion(right, len(scored)),
        "well_formed": proportion(formatted, len(scored)),
        "completions": len(scored),
    }
