"""A step of your own, with a kind of its own: which wrong answers does the model give most often?

    python examples/own_step.py

You learn what a step function is given and gives back, and how to load what it wrote. Edit it, or
``most``, and run again: the step runs again, and no answer is sampled again. A step that changes
rows on their way to training is in ``experiments/template/own_step.py``.
"""

import json
from collections import Counter

from pipeline import Artifact, Metrics, Output, run, step
from steps.generation.config import SamplingConfig
from steps.kinds import Completions
from steps.sample_completions import sample_completions


class Mistakes(Artifact):
    """``mistakes.json``: wrong answers, each with how often it was given."""


@step(makes=Mistakes)
def find_mistakes(out: Output, completions: Completions, most: int = 5) -> Metrics:
    """Write the ``most`` frequent mistakes; the metrics say how many there were of all."""
    counts: Counter[str] = Counter()
    for line in (completions / "completions.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        wrong = [text for text in row["completions"] if text != f"\\boxed{{{row['answer']}}}"]
        counts.update(f"{row['prompt'][-1]['content']} {text}" for text in wrong)
    (out.path / "mistakes.json").write_text(json.dumps(dict(counts.most_common(most)), indent=1))
    return {"mistakes": counts.total(), "different": len(counts)}


if __name__ == "__main__":
    # Imported here: above, what these modules run would be part of the step's code.
    from sums import model, questions

    drawing = SamplingConfig(max_new_tokens=16, temperature=1.0, num_completions=8)
    answers = sample_completions(questions, model, drawing)
    made = run({"mistakes": find_mistakes(answers)})
    print(made["mistakes"].load())
