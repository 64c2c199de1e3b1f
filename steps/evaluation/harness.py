"""EleutherAI's evaluation harness on a folder of tasks, offline and repeatable.

By default, the harness looks for relative files in the working directory, caches tables of rows in
the user's home, and asks the Hub for missing files. Here it works in a copy of the folder, with a
temporary cache and without the Hub.
"""

import contextlib
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets.config
import huggingface_hub.constants
import lm_eval.evaluator
import numpy as np
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from steps.evaluation.config import HarnessConfig
from steps.evaluation.intervals import Interval, Z, proportion
from steps.models.folders import load_model
from steps.models.positions import forget_lengths

_RESAMPLES = 1000
"""The number of bootstrap resamples for standard errors without a formula."""
_REPEATABLE = ("results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better",
               "n-samples")  # fmt: skip
"""The parts of the harness's results that are the same in every run."""

_evaluate: Any = lm_eval.evaluator.evaluate  # its decorator hides its types
_Model: Any = HFLM

OnProgress = Callable[[float, float | None, Mapping[str, float]], None]
Answer = dict[str, Any]
"""``row``, ``prompt``, ``answer``, ``target`` and the metrics of this row."""


class TasksError(ValueError):
    """The tasks of a folder or a config cannot be run."""


def run_harness(
    folder: Path, model: Path, config: HarnessConfig, on_progress: OnProgress
) -> tuple[dict[str, Any], list[Answer], str]:
    """Run the tasks. Returns the metrics, the model's answers, and the harness's own results as
    JSON.

    Raises:
        TasksError: a task does not exist, or needs something that is not in the folder.
    """
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    asked = _Asked(on_progress, load_model(model, config.dtype), tokenizer, config.batch_size)
    with _alone_in(folder):
        loaded: Any = _load(folder, config)
        for task in loaded["tasks"].values():
            _prepare(task, config)
        _seed(config.seed)
        found = _evaluate(
            lm=asked,
            task_dict=loaded,
            limit=config.limit,
            bootstrap_iters=_RESAMPLES,
            apply_chat_template=config.chat,
            fewshot_as_multiturn=config.chat,
        )
    record = {name: found[name] for name in _REPEATABLE if name in found}
    samples = found["samples"]
    metrics = dict(_metrics(found["results"], samples, found.get("group_subtasks", {})))
    if undefined := [*_undefined(found["results"])]:
        metrics["notices"] = [
            f"{_list(undefined)} left out: it is no finite number, of at least one row; look at "
            "the task's metric, and at results.json"
        ]
    answers = [answer for task in sorted(samples) for answer in _answers(task, samples[task])]
    return metrics, answers, json.dumps(record, indent=1, sort_keys=True)


class _Asked(_Model):
    """A loaded model with the harness's interface. It reports how many sequences it has read, and
    forgets how long they were."""

    def __init__(self, on_progress: OnProgress, model: Any, tokenizer: Any, batch_size: int):
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
        self._on_progress, self._count = on_progress, 0

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._begin(inps)
        return super()._model_call(inps, *args, **kwargs)

    def _model_generate(self, context: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._begin(context)
        return super()._model_generate(context, *args, **kwargs)

    def _begin(self, batch: torch.Tensor) -> None:
        forget_lengths(self.model)
        self._count += len(batch)
        self._on_progress(self._count, None, {})


def _load(folder: Path, config: HarnessConfig) -> Any:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    names = config.tasks or list(manager.all_subtasks)
    known = [*manager.all_tasks]
    if missing := [name for name in names if name not in known]:
        raise TasksError(f"tasks: there is no {missing[0]} in the folder; it has: {_list(known)}")
    if not names:
        raise TasksError("tasks: the folder has no task file (NAME.yaml with a key `task`)")
    try:
        return manager.load(names)
    except Exception as error:  # errors of the harness, and of any library that reads the rows
        raise TasksError(
            f"tasks: {_list(names)} cannot be made from the folder alone ({_one_line(error)}); "
            "rows must lie in it, named relative to it"
        ) from error


def _prepare(task: Any, config: HarnessConfig) -> None:
    """Apply the settings that the harness would take from its command line.

    Raises:
        TasksError: the task reads rows from outside the folder.
    """
    if outside := [p for p in _data_files(task.config) if Path(p).is_absolute() or "://" in p]:
        raise TasksError(
            f"tasks: {task.config.task} reads {outside[0]}, which is not in the folder, so that "
            "its content would be no part of the key; put it there, and name it relative to it"
        )
    said = task.get_config("num_fewshot")
    if said != 0 and config.num_fewshot is not None:
        task.set_config(key="num_fewshot", value=config.num_fewshot)
    elif said is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=config.seed)


def _data_files(config: Any) -> Iterator[str]:
    """The files from which a task reads its rows."""
    given = config.dataset_kwargs or {}
    pending: list[Any] = [given.get("data_files"), given.get("data_dir"), config.dataset_path]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, str):
            yield value


def _metrics(
    results: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    members: Mapping[str, Sequence[str]],
) -> Iterator[tuple[str, Any]]:
    """Metrics by name: ``TASK/METRIC``, with ``@FILTER`` if the task has filters. A metric with a
    standard error is an interval, and so is a share. One that is no finite number is left out.

    Args:
        members: the tasks and groups of each group, whose samples are those of its tasks.
    """
    for task, metric, filtered, value in _measured(results):
        if not _is_number(value):
            continue
        rows = [row for name in _tasks_of(task, members) for row in samples.get(name, ())]
        each = [row[metric] for row in rows if row["filter"] == filtered and metric in row]
        estimate = _estimate(value, results[task].get(f"{metric}_stderr,{filtered}"), each)
        yield f"{task}/{metric}{_suffix(filtered)}", estimate


def _undefined(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The metrics that are infinite or NaN, for which JSON has no number."""
    for task, metric, filtered, value in _measured(results):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{task}/{metric}{_suffix(filtered)}"


def _measured(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, Any]]:
    """Task, metric, filter and value of what was measured, without standard errors."""
    for task, values in sorted(results.items()):
        for name, value in values.items():
            metric, comma, filtered = name.partition(",")
            if comma and not metric.endswith("_stderr"):
                yield task, metric, filtered, value


def _tasks_of(name: str, members: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group, each once; a task is its own."""
    if not members.get(name):
        return [name]
    return list(dict.fromkeys(task for of in members[name] for task in _tasks_of(of, members)))


def _estimate(value: float, error: Any, each: Sequence[Any]) -> float | Interval:
    """A metric with the harness's standard error and a 95 % interval. A share of samples gets
    Wilson's interval; a mean of the shares of tasks, one that is cut at 0 and 1."""
    hits, misses = sum(one == 1 for one in each), sum(one == 0 for one in each)
    is_share = bool(each) and hits + misses == len(each)
    known = {"stderr": float(error)} if _is_number(error) else {}
    if is_share and math.isclose(value, hits / len(each), abs_tol=1e-12):
        return {**proportion(hits, len(each)), **known}
    if not known:
        return float(value)
    low, high = value - Z * error, value + Z * error
    if is_share:
        low, high = max(0.0, low), min(1.0, high)
    return {"value": value, "low": low, "high": high, **known}


def _answers(task: str, samples: Sequence[Mapping[str, Any]]) -> Iterator[Answer]:
    for sample in samples:
        yield {
            "row": f"{task}:{sample['doc_id']}{_suffix(sample['filter'])}",
            "prompt": str(sample["arguments"][0][0]),
            "answer": _answer(sample),
            "target": str(sample["target"]),
            **{name: float(sample[name]) for name in sample["metrics"] if _is_number(sample[name])},
        }


def _answer(sample: Mapping[str, Any]) -> str:
    """The text that the model wrote, or the likeliest of several given continuations."""
    responses = sample["filtered_resps"]
    if not isinstance(responses[0], tuple | list | float):
        return str(responses[0])
    likelihoods = [float(r if isinstance(r, float) else r[0]) for r in responses]
    best = int(np.argmax(likelihoods))
    return str(sample["arguments"][best][-1])


def _suffix(filtered: str) -> str:
    return "" if filtered == "none" else f"@{filtered}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Work in the folder, with a separate cache, without the Hub and without subprocesses: a fork
    after PyTorch has used its threads may hang."""
    config: Any = datasets.config
    cache, offline = config.HF_DATASETS_CACHE, config.HF_HUB_OFFLINE
    hub, alone = huggingface_hub.constants.HF_HUB_OFFLINE, os.environ.get("DISABLE_MULTIPROC")
    config.HF_DATASETS_CACHE, config.HF_HUB_OFFLINE = folder.parent / "cache", True
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        config.HF_DATASETS_CACHE, config.HF_HUB_OFFLINE = cache, offline
        huggingface_hub.constants.HF_HUB_OFFLINE = hub
        os.environ.pop("DISABLE_MULTIPROC") if alone is None else None


def _list(names: list[str]) -> str:
    return ", ".join(names) or "nothing"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
