"""``score_benchmark``: score a model's answers to a benchmark, without a model."""

from pipeline import File, Metrics, Output, TemperError, step
from steps.benchmarks.config import BenchmarkConfig, Suite
from steps.core_adapters.copied import copied
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.kinds import Benchmark, BenchmarkAnswers, BenchmarkTasks


@step(makes=Benchmark)
def score_benchmark(
    out: Output,
    answers: BenchmarkAnswers,
    tasks: File | BenchmarkTasks,
    suite: Suite,
    config: BenchmarkConfig = BenchmarkConfig(),
) -> Metrics:
    """Write ``answers.jsonl`` (each question as the model saw it, with the answer and its scores)
    and ``results.json``. Return each metric with its 95 % interval, and where the suite has one,
    its standard error.

    Args:
        answers: to the questions of the same tasks.

    Raises:
        TemperError: a question has no answer, or as of `ask_benchmark`.
    """
    from steps.benchmarks.suites import adapter

    by_id = {answer["id"]: answer for answer in read_json_lines(answers / "answers.jsonl")}
    with copied(tasks) as folder:
        try:
            metrics, items, record = adapter(suite).score(folder, config, by_id)
        except ValueError as error:
            raise TemperError(str(error)) from error
    write_json_lines(out.path / "answers.jsonl", items)
    (out.path / "results.json").write_text(record, "utf-8")
    return metrics
