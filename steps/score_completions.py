"""``score_completions``: how many completions the rule-based checker finds right."""

import json

from pipeline import Artifact, Metrics, Output, step
from steps.evaluation.checkers import boxed_answer, is_correct
from steps.evaluation.intervals import proportion


@step(version="1")
def score_completions(out: Output, completions: Artifact) -> Metrics:
    """Write ``scores.jsonl`` and return the exact match with its 95 % interval."""
    records = [json.loads(line) for line in (completions / "completions.jsonl").open()]
    scored = [
        {"row": r["row"], "answer": r["answer"], "completion": text, "right": verdict}
        for r in records
        for text in r["completions"]
        for verdict in (is_correct(text, r["answer"]),)
    ]
    (out.path / "scores.jsonl").write_text("".join(json.dumps(s) + "\n" for s in scored))
    right = sum(score["right"] for score in scored)
    formatted = sum(boxed_answer(score["completion"]) is not None for score in scored)
    return {
        "exact_match": proportion(right, len(scored)),
        "well_formed": proportion(formatted, len(scored)),
        "completions": len(scored),
    }
