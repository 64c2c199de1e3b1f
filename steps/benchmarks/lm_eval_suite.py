"""EleutherAI's evaluation harness: what its tasks ask, and how they score answers.

Tasks lie in a folder with their rows. For a task of the harness itself, `fetch` makes the folder:
it copies the task's files, and reads the rows from the Hub.

By default, the harness looks for relative files in the working directory, caches tables of rows in
the user's home, and asks the Hub for missing files. Here it works in a copy of the folder, with a
temporary cache and without the Hub.
"""

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import datasets.config
import huggingface_hub.constants
import lm_eval.evaluator
import lm_eval.tasks
import numpy as np
from lm_eval.api.model import LM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from steps.benchmarks.config import BenchmarkConfig
from steps.benchmarks.questions import Answers, Question, Recorded, given, written
from steps.evaluation.intervals import Interval, Z, proportion

_RESAMPLES = 1000
"""The number of bootstrap resamples for standard errors without a formula."""
_REPEATABLE = ("results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better",
               "n-samples")  # fmt: skip
"""The parts of the harness's results that are the same in every run."""
_FETCHED = "fetched.json"
"""In a folder that `fetch` made: the commit, and what was read."""

_evaluate: Any = lm_eval.evaluator.evaluate  # its decorator hides its types
Item = dict[str, Any]
"""``row``, ``prompt``, ``answer``, ``target`` and the metrics of this row."""


class TasksError(ValueError):
    """The tasks of a folder or a config cannot be run."""


def fetch(name: str, commit: str, folder: Path) -> dict[str, Any]:
    """Write the files of a task or group of the harness to a folder, with the rows of one commit
    of its data set on the Hub. Returns counts.

    Raises:
        TasksError: there is no such task, or it reads several data sets.
    """
    entry = TaskManager().task_index.get(name)
    if entry is None or entry.yaml_path is None:
        raise TasksError(f"tasks: lm-eval has no task or group {name}; lm_eval ls tasks lists them")
    every = Path(lm_eval.tasks.__file__).parent
    family = every / entry.yaml_path.relative_to(every).parts[0]
    shutil.copytree(family, folder / family.name, ignore=shutil.ignore_patterns("__pycache__"))
    read: dict[str, int] = {}
    repositories: set[str] = set()
    real: Any = datasets.load_dataset

    def reading(path: str, name: str | None = None, **how: Any) -> Any:
        repositories.add(path)
        if len(repositories) > 1:
            raise TasksError(
                f"tasks: the task reads {_list(sorted(repositories))}, and one commit names one "
                "data set; name tasks one by one"
            )
        found = real(path, name=name, revision=commit, **how)
        place = _place(path, name, how)
        for split, rows in found.items():
            rows.to_parquet(folder / place / f"{split}.parquet")
            read[f"{place}/{split}"] = len(rows)
        return found

    with mock.patch.object(datasets, "load_dataset", reading):
        _load(TaskManager(include_path=str(folder), include_defaults=False), [name])
    record = {"commit": commit, "data set": sorted(repositories), "rows": read}
    (folder / _FETCHED).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    return {"rows": sum(read.values()), "splits": len(read)}


def ask(folder: Path, config: BenchmarkConfig) -> list[Question]:
    """What the tasks ask a model.

    Raises:
        TasksError: a task does not exist, or needs something that is not in the folder.
    """
    questions: list[Question] = []
    with _alone_in(folder):
        for task in _prepared(folder, config)["tasks"].values():
            task.build_all_requests(
                limit=config.limit,
                apply_chat_template=config.chat,
                fewshot_as_multiturn=config.chat,
                chat_template=_chat if config.chat else None,
            )
            for asked in task.instances:
                questions += [_question(asked)] * asked.repeats
    return questions


def score(
    folder: Path, config: BenchmarkConfig, answers: Answers
) -> tuple[dict[str, Any], list[Item], str]:
    """Score answers. Returns the metrics, the items, and the harness's own results as JSON.

    Raises:
        TasksError: as `ask`.
        ValueError: a question has no answer.
    """
    with _alone_in(folder):
        found = _evaluate(
            lm=_Answered(answers),
            task_dict=_prepared(folder, config),
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
    items = [item for task in sorted(samples) for item in _items(task, samples[task])]
    return metrics, items, json.dumps(record, indent=1, sort_keys=True)


class _Answered(LM):
    """Answers of a model with the harness's interface."""

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._recorded = Recorded(answers)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        return [answer["text"] for answer in self._answers(requests)]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        return [(answer["logp"], answer["greedy"]) for answer in self._answers(requests)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        return [answer["logp"] for answer in self._answers(requests)]

    @property
    def tokenizer_name(self) -> str:
        return ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return _chat(chat_history, add_generation_prompt)

    def _answers(self, requests: Sequence[Any]) -> list[Mapping[str, Any]]:
        return [self._recorded(_question(request)) for request in requests]


_CHAT = "\N{NULL}chat "
"""Begins the text of a chat, which only the model that answers can render."""


def _chat(messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
    return _CHAT + json.dumps({"messages": messages, "open": add_generation_prompt})


def _question(asked: Any) -> Question:
    """What a request of the harness asks."""
    first, *rest = asked.args
    if asked.request_type == "loglikelihood_rolling":
        return given(None, first)
    if not isinstance(first, str) or len(rest) != 1:
        raise TasksError(f"tasks: {asked.task_name} asks about pictures or sounds")
    prompt = json.loads(first.removeprefix(_CHAT)) if first.startswith(_CHAT) else first
    if asked.request_type == "loglikelihood":
        return given(prompt, rest[0])
    settings = dict(normalize_gen_kwargs(rest[0], -1))  # -1: the task says no number
    until, most = settings.pop("until", None) or [], settings.pop("max_gen_toks")
    settings.pop("do_sample", None)
    settings["stop"] = [until] if isinstance(until, str) else until
    return written(prompt, {**settings, "max_new_tokens": None if most == -1 else most})


def _prepared(folder: Path, config: BenchmarkConfig) -> Any:
    """The tasks, with the settings that the harness would take from its command line."""
    fetched = (folder / _FETCHED).is_file()
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    names = config.tasks or list(manager.all_subtasks)
    known = [*manager.all_tasks]
    if missing := [name for name in names if name not in known]:
        raise TasksError(f"tasks: there is no {missing[0]} in the folder; it has: {_list(known)}")
    if not names:
        raise TasksError("tasks: the folder has no task file (NAME.yaml with a key `task`)")
    with mock.patch.object(datasets, "load_dataset", _stored(folder)) if fetched else _NOTHING:
        loaded = _load(manager, names)
    for task in loaded["tasks"].values():
        _prepare(task, config, fetched)
    random.seed(config.seed)
    np.random.seed(config.seed)
    return loaded


_NOTHING = contextlib.nullcontext()


def _stored(folder: Path) -> Callable[..., Any]:
    """`datasets.load_dataset` of rows that were fetched."""
    real: Any = datasets.load_dataset

    def reading(path: str, name: str | None = None, **how: Any) -> Any:
        files = sorted((folder / _place(path, name, how)).glob("*.parquet"))
        return real("parquet", data_files={file.stem: str(file) for file in files})

    return reading


def _place(path: str, name: str | None, how: Mapping[str, Any]) -> str:
    """The folder of the rows that a task reads."""
    asked = {key: value for key, value in how.items() if key != "trust_remote_code"}
    digest = hashlib.sha256(json.dumps([path, name, asked], sort_keys=True).encode()).hexdigest()
    return f"{(name or path).replace('/', '-')}-{digest[:8]}"


def _load(manager: TaskManager, names: list[str]) -> Any:
    try:
        return manager.load(names)
    except TasksError:
        raise
    except Exception as error:  # errors of the harness, and of any library that reads the rows
        raise TasksError(
            f"tasks: {_list(names)} cannot be made from the folder alone ({_one_line(error)}); "
            "rows must lie in it, named relative to it"
        ) from error


def _prepare(task: Any, config: BenchmarkConfig, fetched: bool) -> None:
    """Apply the settings that the harness would take from its command line.

    Raises:
        TasksError: the task reads rows from outside the folder.
    """
    outside = [p for p in _data_files(task.config) if Path(p).is_absolute() or "://" in p]
    if outside and not fetched:
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


def _items(task: str, samples: Sequence[Mapping[str, Any]]) -> Iterator[Item]:
    for sample in samples:
        yield {
            "row": f"{task}:{sample['doc_id']}{_suffix(sample['filter'])}",
            "prompt": str(sample["arguments"][0][0]).removeprefix(_CHAT),
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
