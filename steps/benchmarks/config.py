"""Names and settings of benchmarks: frozen dataclasses, importable without torch or a suite."""

import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from steps.models.config import Dtype
from steps.scoring.config import Attention, ReferenceConfig
from steps.shared.checks import require_count, set_choice
from steps.shared.execution_detail import detail_field

PACKAGES = {"lm-eval": "lm_eval", "inspect-ai": "inspect_ai"}
"""The module of each suite's distribution."""
_NAME = re.compile(r"(.+)@([a-z-]+)(?::([\w.+!-]+))?(?:#([0-9a-f]{40}))?")
_FORM = "TASK@lm-eval:VERSION#COMMIT, FOLDER@lm-eval or FOLDER@inspect-ai"


@dataclass(frozen=True)
class Suite:
    """The tool that defines tasks and scores answers: a distribution and its version."""

    name: str
    version: str

    def packages_in_use(self) -> tuple[str, ...]:
        """The module that has to be installed."""
        return (PACKAGES[self.name],)

    def require(self) -> None:
        """Raise ValueError unless exactly this version is installed here."""
        if (found := installed(self.name)) != self.version:
            raise ValueError(
                f"the benchmark is of {self.name} {self.version}, and {found or 'none'} is "
                f"installed; pip install {self.name}=={self.version}, or name the other version"
            )


def installed(suite: str) -> str | None:
    """The version of a suite that is installed."""
    try:
        return version(suite)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class BenchmarkName:
    """``NAME@SUITE:VERSION#COMMIT``.

    Args:
        name: a task of the suite, or a folder of tasks.
        commit: of the data set that the task reads from the Hub.
    """

    name: str
    suite: Suite
    commit: str | None = None

    @classmethod
    def parse(cls, text: str) -> "BenchmarkName":
        """Raises ValueError if the text has another form, or says no version of a suite that is
        not installed."""
        found = _NAME.fullmatch(text)
        if found is None or found[2] not in PACKAGES or (found[4] and found[2] != "lm-eval"):
            raise ValueError(
                f"benchmark {text!r} is not {_FORM}; VERSION is that of the suite, and COMMIT all "
                "40 digits of the commit of the data set that the task names"
            )
        name, suite, wanted, commit = found.groups()
        if (of := wanted or installed(suite)) is None:
            raise ValueError(f"benchmark {text!r} needs {suite}: pip install {suite}")
        return cls(name, Suite(suite, of), commit)


@dataclass(frozen=True)
class BenchmarkConfig:
    """Which tasks of a benchmark are asked, and how.

    Args:
        tasks: names of tasks (lm-eval: or groups or tags); an empty list means all of a folder, or
            the one that is named.
        num_fewshot: examples before each question, except in tasks that are defined with 0; by
            default, each task's own number. Only lm-eval.
        limit: use only the first rows of each task, for a trial run; do not report such results.
        chat: put each question through the model's chat template. inspect-ai always does.
        seed: the seed of random choices of the suite, such as few-shot examples.
    """

    tasks: list[str] = field(default_factory=list)
    num_fewshot: int | None = None
    limit: int | None = None
    chat: bool = False
    seed: int = 1234

    def __post_init__(self) -> None:
        require_count(self, "num_fewshot", least=0, or_null=True)
        require_count(self, "limit", or_null=True)
        require_count(self, "seed", least=0)


@dataclass(frozen=True)
class AnsweringConfig:
    """How a model answers the questions of a benchmark, whose tasks say how it samples.

    Args:
        dtype: the dtype of weights and activations.
        tokens_per_forward: the most tokens of one forward.
        attention: how a forward lays out given answers, as in `ReferenceConfig`.
        max_new_tokens: the most tokens of an answer where the task says no number.
        seed: the seed of answers that are drawn at a temperature above 0.
        slots: the most answers that are written in parallel.
    """

    dtype: Dtype = Dtype.float32
    tokens_per_forward: int = 2048
    attention: Attention = Attention.auto
    max_new_tokens: int = 256
    seed: int = 0
    slots: int = detail_field(64)

    def __post_init__(self) -> None:
        set_choice(self, "dtype", Dtype)
        set_choice(self, "attention", Attention)
        require_count(self, "tokens_per_forward", "max_new_tokens", "slots")

    def scoring(self) -> ReferenceConfig:
        """How the logps of given answers are computed."""
        return ReferenceConfig(self.dtype, self.tokens_per_forward, self.attention)
