"""The suites: what each asks a model, and how each scores the answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from steps.benchmarks.config import BenchmarkConfig, Suite
from steps.benchmarks.questions import Answers, Question


class Adapter(Protocol):
    """The module of a suite.

    score: returns metrics, items (``row``, ``prompt``, ``answer``, ``target`` and the metrics of
        each), and what the suite itself reports, as JSON.
    """

    ask: Callable[[Path, BenchmarkConfig], list[Question]]
    score: Callable[
        [Path, BenchmarkConfig, Answers], tuple[dict[str, Any], list[dict[str, Any]], str]
    ]


def adapter(suite: Suite) -> Adapter:
    """The adapter of a suite; raises ValueError if another version of the suite is installed."""
    suite.require()
    if suite.name == "lm-eval":
        from steps.benchmarks import lm_eval_suite as found
    else:
        from steps.benchmarks import inspect_suite as found
    return found
