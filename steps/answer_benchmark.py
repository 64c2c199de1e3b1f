"""``answer_benchmark``: answer the questions of a benchmark with a model, once for all metrics."""

from pipeline import Metrics, Output, step
from steps.benchmarks.config import AnsweringConfig
from steps.core_adapters.workplace_of import at_work
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.generation.engine_config import EngineConfig, OwnEngine
from steps.kinds import BenchmarkAnswers, Model, Questions


@step(makes=BenchmarkAnswers, estimate="steps.step_needs:of_model")
def answer_benchmark(
    out: Output,
    questions: Questions,
    model: Model,
    config: AnsweringConfig = AnsweringConfig(),
    engine: EngineConfig = OwnEngine(),
) -> Metrics:
    """Write ``answers.jsonl``: the text that answers a question, or the log-probability (in nats)
    of a text that is given.

    Finished work stays in scratch, so an interrupted step goes on with what is missing.

    Args:
        engine: who writes texts: this process, or engines elsewhere, such as vLLM. Given texts are
            scored in this process.
    """
    from steps.benchmarks.answering import answer_questions

    asked = read_json_lines(questions / "questions.jsonl")
    with at_work(out) as place:
        answers, metrics = answer_questions(asked, model.path, config, place, engine)
        if not place.ranks.is_first:
            return {}
        write_json_lines(out.path / "answers.jsonl", answers)
    return metrics
