"""``fetch_benchmark``: copy a task of lm-eval, and read its rows from the Hub, at one commit."""

from pipeline import Metrics, Output, TemperError, step
from steps.benchmarks.config import Suite
from steps.kinds import BenchmarkTasks


@step(makes=BenchmarkTasks)
def fetch_benchmark(out: Output, task: str, suite: Suite, commit: str) -> Metrics:
    """Write the files of the task, its rows as Parquet, and ``fetched.json``.

    Only this step needs a network.

    Args:
        task: a task or group of lm-eval, whose tasks all read one data set.
        commit: all 40 digits of the commit of that data set.

    Raises:
        TemperError: there is no such task, it reads several data sets, or the Hub does not give the
            rows.
    """
    from steps.benchmarks.lm_eval_suite import fetch

    try:
        suite.require()
        return fetch(task, commit, out.path)
    except ValueError as error:
        raise TemperError(str(error)) from error
