"""``ask_benchmark``: write down what the tasks of a benchmark ask a model."""

from pipeline import File, Metrics, Output, TemperError, step
from steps.benchmarks.config import BenchmarkConfig, Suite
from steps.core_adapters.copied import copied
from steps.data.rows.jsonl import write_json_lines
from steps.kinds import BenchmarkTasks, Questions


@step(makes=Questions)
def ask_benchmark(
    out: Output,
    tasks: File | BenchmarkTasks,
    suite: Suite,
    config: BenchmarkConfig = BenchmarkConfig(),
) -> Metrics:
    """Write ``questions.jsonl``, as `steps.benchmarks.questions` describes it.

    No model is needed. How answers are scored is not in the file, so that another metric makes the
    same file, and the answers of a model are found in the store.

    Args:
        tasks: a folder of task files of the suite with their rows beside them.

    Raises:
        TemperError: a task needs something that is not in the folder, or another version of the
            suite is installed.
    """
    from steps.benchmarks.questions import with_ids
    from steps.benchmarks.suites import adapter

    with copied(tasks) as folder:
        try:
            questions = with_ids(adapter(suite).ask(folder, config))
        except ValueError as error:
            raise TemperError(str(error)) from error
    write_json_lines(out.path / "questions.jsonl", questions)
    return {"questions": len(questions)}
