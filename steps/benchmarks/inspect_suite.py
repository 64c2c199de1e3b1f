"""inspect-ai: what its tasks ask, and how they score answers.

The tasks lie in the Python files of a folder, and read their rows from it. A task runs twice with
a model that has no weights: the first time it says nothing, and the second time what was answered.
So a task may ask about each sample once. One that asks again, depending on an answer, is refused
when its answers are scored; so are tools.
"""

import contextlib
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import inspect_ai  # pyright: ignore[reportMissingImports]
from inspect_ai.model import (  # pyright: ignore[reportMissingImports]
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import value_to_float  # pyright: ignore[reportMissingImports]

from steps.benchmarks.config import BenchmarkConfig
from steps.benchmarks.questions import Answers, Question, Recorded, written
from steps.evaluation.intervals import Interval, mean, mean_share, proportion

_OURS = {"max_tokens": "max_new_tokens", "stop_seqs": "stop"}
_OF_CALLS = {
    "max_retries", "timeout", "attempt_timeout", "stream_idle_timeout", "max_connections", "seed",
    "adaptive_connections", "system_message", "parallel_tool_calls", "internal_tools", "batch",
    "max_tool_output", "cache", "cache_prompt",
}  # fmt: skip
"""Settings of inspect-ai that do not change what a model of ours writes."""

Item = dict[str, Any]
_value_of: Any = value_to_float()


def ask(folder: Path, config: BenchmarkConfig) -> list[Question]:
    """What the tasks ask a model. One that says no temperature is answered by greedy decoding.

    Raises:
        ValueError: there is no such task, it fails, or it asks about tools or pictures.
    """
    questions: list[Question] = []

    def asked(question: Question) -> ModelOutput:
        questions.append(question)
        return _said("", "stop")

    _run(folder, config, asked, is_scored=False)
    return questions


def score(
    folder: Path, config: BenchmarkConfig, answers: Answers
) -> tuple[dict[str, Any], list[Item], str]:
    """Score answers. Returns the metrics, ``TASK/SCORER/METRIC``, the items, and inspect's own
    results as JSON.

    Raises:
        ValueError: as `ask`, or a question has no answer.
    """
    recorded = Recorded(answers)

    def answered(question: Question) -> ModelOutput:
        answer = recorded(question)
        return _said(answer["text"], "stop" if answer["finish"] == "stop" else "max_tokens")

    metrics: dict[str, float | Interval] = {}
    items: list[Item] = []
    results: dict[str, Any] = {}
    for log in _run(folder, config, answered, is_scored=True):
        task = log.eval.task.rpartition("/")[2]
        own = [_item(task, sample) for sample in log.samples or []]
        for scored in log.results.scores if log.results else ():
            values = [item[scored.name] for item in own if scored.name in item]
            for name, metric in scored.metrics.items():
                if name != "stderr":
                    metrics[f"{task}/{scored.name}/{name}"] = _estimate(metric.value, values)
        items += own
        results[task] = log.results and log.results.model_dump(mode="json")
    return metrics, items, json.dumps(results, indent=1, sort_keys=True)


def _run(
    folder: Path,
    config: BenchmarkConfig,
    reply: Callable[[Question], ModelOutput],
    is_scored: bool,
) -> list[Any]:
    """Run the tasks, one sample after the other; the logs."""
    faults: list[ValueError] = []

    def replied(messages: Sequence[Any], tools: Any, _: Any, settings: Any) -> ModelOutput:
        try:
            return reply(_question(messages, tools, settings))
        except ValueError as error:  # inspect would say it with its own trace
            faults.append(error)
            raise

    with contextlib.chdir(folder):
        known = {
            found.name: f"{found.file}@{found.name}"
            for found in inspect_ai.list_tasks(root_dir=folder)
        }
        names = config.tasks or sorted(known)
        if missing := [name for name in names if name not in known] or ([] if names else ["task"]):
            has = ", ".join(sorted(known)) or "nothing"
            raise ValueError(f"tasks: there is no {missing[0]} in the folder; it has: {has}")
        random.seed(config.seed)
        try:
            logs = inspect_ai.eval(
                [known[name] for name in names],
                model=get_model("mockllm/model", memoize=False, custom_outputs=replied),
                display="none",
                log_dir=str(folder.parent / "logs"),
                log_format="json",
                log_realtime=False,
                limit=config.limit,
                max_samples=1,
                max_tasks=1,
                score=is_scored,
                score_display=False,
            )
        except Exception as error:  # of the tasks' own code
            fault = " ".join(str(error).split())[:300] or type(error).__name__
            raise ValueError(f"tasks: {', '.join(names)} cannot be made ({fault})") from error
    for log in logs:
        if faults or log.status != "success":
            told = faults[0] if faults else log.error.message if log.error else log.status
            raise ValueError(f"tasks: {log.eval.task}: {told}")
    return logs


def _said(text: str, reason: Any) -> ModelOutput:
    output = ModelOutput.from_content(model="temper", content=text, stop_reason=reason)
    output.usage = ModelUsage()  # without it, a tokenizer would be downloaded to count
    return output


def _question(messages: Sequence[Any], tools: Any, settings: Any) -> Question:
    if tools or any(not isinstance(m.content, str) and not _is_text(m.content) for m in messages):
        raise ValueError("it asks a model with tools, pictures or sounds; only texts can be asked")
    chat = [{"role": message.role, "content": message.text} for message in messages]
    said: dict[str, Any] = settings.model_dump(exclude_none=True)
    sampling = {_OURS.get(name, name): said[name] for name in said.keys() - _OF_CALLS}
    return written({"messages": chat, "open": chat[-1]["role"] != "assistant"}, sampling)


def _is_text(parts: Sequence[Any]) -> bool:
    return all(part.type == "text" for part in parts)


def _item(task: str, sample: Any) -> Item:
    scores = {name: _value_of(score.value) for name, score in (sample.scores or {}).items()}
    first = sample.input if isinstance(sample.input, str) else sample.input[-1].text
    return {
        "row": f"{task}:{sample.id}" + (f"#{sample.epoch}" if sample.epoch > 1 else ""),
        "prompt": first,
        "answer": sample.output.completion,
        "target": str(sample.target),
        **{name: value for name, value in scores.items() if math.isfinite(value)},
    }


def _estimate(value: float, values: Sequence[float]) -> float | Interval:
    """A metric; with an interval if it is the mean of the scores of the items."""
    if not values or not math.isclose(value, sum(values) / len(values), abs_tol=1e-12):
        return float(value)
    if {*values} <= {0.0, 1.0}:
        return proportion(int(sum(values)), len(values))
    return mean_share(values) if 0 <= min(values) <= max(values) <= 1 else mean(values)
