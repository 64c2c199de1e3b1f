"""``lm_eval``: a model on tasks of EleutherAI's evaluation harness that lie in a folder."""

import tempfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import fsspec

from pipeline import File, Metrics, Output, TemperError, step
from steps.data.jsonl import write_json_lines
from steps.kinds import Benchmark, Model
from steps.training.config import Dtype


@dataclass(frozen=True)
class HarnessConfig:
    """What is asked, and how.

    Args:
        tasks: names of tasks, groups or tags in the folder; empty for all of its tasks.
        num_fewshot: examples before each question, where a task does not say 0; by default what
            each task says.
        limit: only the first so many rows of each task: to try it out, not to report.
        chat: put each question through the model's chat template.
    """

    tasks: list[str] = field(default_factory=list)
    num_fewshot: int | None = None
    limit: int | None = None
    chat: bool = False
    batch_size: int = 8
    dtype: Dtype = Dtype.float32
    seed: int = 1234

    def __post_init__(self) -> None:
        for name, least in (("num_fewshot", 0), ("limit", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")


@step(makes=Benchmark)
def lm_eval(
    out: Output, tasks: File, model: Model, config: HarnessConfig = HarnessConfig()
) -> Metrics:
    """Write ``answers.jsonl`` (each question as the model saw it, with what came of it) and
    ``results.json``; return each metric with its standard error and 95 % interval.

    Nothing is loaded from a hub, and no code but that of the folder is run: so its content, which
    is in the key, says all.

    Args:
        tasks: a folder of task files in the harness's format (YAML) with their rows beside them,
            named relative to the folder, as in ``dataset_path: json``, ``dataset_kwargs:
            {data_files: {test: rows.jsonl}}``.

    Raises:
        TemperError: the harness is not installed, or a task cannot be made from the folder alone.
    """
    if find_spec("lm_eval") is None:
        raise TemperError("lm_eval needs the package lm_eval: pip install 'temper[lm-eval]'")
    from steps.evaluation.harness import run_harness

    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy) / "tasks"
        fs, path = fsspec.url_to_fs(tasks.url)
        fs.get(path.rstrip("/") + "/", f"{folder}/", recursive=True)
        metrics, answers, record = run_harness(folder, model.path, config, out.progress)
    write_json_lines(out.path / "answers.jsonl", answers)
    (out.path / "results.json").write_text(record, "utf-8")
    return metrics
