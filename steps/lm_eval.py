"""``lm_eval``: run tasks of EleutherAI's evaluation harness, from a local folder, on a model."""

import tempfile
from pathlib import Path

import fsspec

from pipeline import File, Metrics, Output, TemperError, step
from steps.data.rows.jsonl import write_json_lines
from steps.evaluation.config import HarnessConfig
from steps.kinds import Benchmark, Model


@step(makes=Benchmark, needs_packages=["lm_eval"])
def lm_eval(
    out: Output, tasks: File, model: Model, config: HarnessConfig = HarnessConfig()
) -> Metrics:
    """Write ``answers.jsonl`` (each question as the model saw it, with the answer and its scores)
    and ``results.json``. Return each metric with its standard error and 95 % interval.

    The tasks load nothing from a hub and run no code from outside the folder. So the folder's
    content, which is part of the key, defines the tasks completely.

    Args:
        tasks: a folder of task files in the harness's format (YAML) with their rows beside them,
            named relative to the folder, as in ``dataset_path: json``, ``dataset_kwargs:
            {data_files: {test: rows.jsonl}}``.

    Raises:
        TemperError: a task needs something that is not in the folder.
    """
    from steps.evaluation.harness import TasksError, run_harness

    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy) / "tasks"
        fs, path = fsspec.url_to_fs(tasks.url)
        fs.get(path.rstrip("/") + "/", f"{folder}/", recursive=True)
        try:
            metrics, answers, record = run_harness(folder, model.path, config, out.progress)
        except TasksError as error:
            raise TemperError(str(error)) from error
    write_json_lines(out.path / "answers.jsonl", answers)
    (out.path / "results.json").write_text(record, "utf-8")
    return metrics
