"""``score_completions``: measure the share of completions that the rule-based checker accepts."""

from pipeline import Metrics, Output, step
from steps.checking.boxed import boxed_answer, is_correct, require_answers
from steps.data.rows.completions import read_completions
from steps.data.rows.jsonl import write_json_lines
from steps.kinds import Completions, Scores


@step(makes=Scores)
def score_completions(out: Output, completions: Completions) -> Metrics:
    """Write ``scores.jsonl`` and return the exact match with its 95 % interval.

    Where prompts have several completions, the interval resamples prompts, and ``pass_at_K`` tells
    how likely one of K completions is right.

    A completion that was cut at the token limit is judged like any other. The metric ``cut`` counts
    these completions.

    Raises:
        ValueError: a prompt has no answer, or a record is not as `read_completions` reads it.
    """
    from steps.evaluation.several_samples import pass_at_k, share_of_samples

    records = read_completions(completions, "finish")
    require_answers(records)
    scored, right, formatted = [], [], []
    for r in records:
        texts = r["completions"]
        right.append([is_correct(text, r["answer"]) for text in texts])
        formatted.append([boxed_answer(text) is not None for text in texts])
        scored += [
            {
                "row": r["row"],
                "answer": r["answer"],
                "completion": text,
                "right": verdict,
                "cut": finish != "stop",
            }
            for text, verdict, finish in zip(texts, right[-1], r["finish"], strict=True)
        ]
    write_json_lines(out.path / "scores.jsonl", scored)
    return {
        "exact_match": share_of_samples(right),
        **pass_at_k(right),
        "well_formed": share_of_samples(formatted),
        "completions": len(scored),
        "cut": sum(score["cut"] for score in scored),
    }
