"""Steps: calling one runs nothing.

The model:

- A *step function* is a plain function under :func:`step`. Its first parameter, ``out``, is where
  it writes (:class:`Output`); the others are its inputs and settings; it returns its metrics.
- Calling it gives a :class:`Step`, an immutable node that stands for the artifact which will
  exist. A ``Step`` among the arguments of another, at any depth, is an edge of the DAG.
  ``tokens["train"]`` is the part of the artifact under that folder, with a digest of its own, so
  that what uses the training rows does not rerun when the test rows change.
- The *recipe* is what the author wrote: function, version, arguments. Its hash with every input
  replaced by that input's recipe is the ``fingerprint``, known before anything runs. Its hash
  with every input replaced by the *digest* of what that input turned out to be is the ``key``,
  the cache address: an upstream rerun that yields the same bytes changes no key below it.

    @step(version="1")
    def count_rows(out: Output, rows: Artifact, minimum_length: int = 0) -> dict:
        kept = [r for r in read(rows / "rows.txt") if len(r) >= minimum_length]
        (out.path / "count.json").write_text(json.dumps(len(kept)))
        return {"rows": len(kept)}
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol

from pipeline.canonical import Json, hash_json, identity, portable, reference_to
from pipeline.errors import TemperError
from pipeline.inputs import File

ENCODING_VERSION = 1
"""Part of every key. Raised when the meaning of a recipe's encoding changes."""

Metrics = Mapping[str, Any]
"""What a step function returns: JSON values. ``{"value", "low", "high"}`` is an interval."""


def step(*, version: str) -> Callable[[Callable[..., Metrics | None]], "StepFunction"]:
    """Make a function a step function.

    Args:
        version: declared by the author and raised when a change of the code changes results.
            It is part of every key, so artifacts of an earlier version are not served.

    A step function is known by its module (for a script: the file's name) and its own name; two
    different functions with one such name and version must not share a store.
    """

    def decorate(function: Callable[..., Metrics | None]) -> StepFunction:
        return StepFunction(function, version)

    return decorate


class StepFunction:
    """A function whose calls are nodes of a DAG. See the module docstring."""

    def __init__(self, function: Callable[..., Metrics | None], version: str):
        self.function = function
        self.version = version
        self.name = function.__name__
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].name != "out":
            raise TemperError(f"step {self.name}: the first parameter must be `out: Output`")
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TemperError(
                    f"step {self.name}: every parameter needs a name that the caller can use; "
                    f"`{parameter}` has none"
                )
        self.signature = inspect.Signature(parameters[1:])

    @property
    def reference(self) -> str:
        return reference_to(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> "Step":
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TemperError(f"step {self.name}: {error}; it takes {self.signature}") from None
        bound.apply_defaults()
        return Step(self, bound.arguments)

    def __repr__(self) -> str:
        return f"<step function {self.name}{self.signature}>"


@dataclass(frozen=True)
class Input:
    """A reference to a step's output: all of it, or the part under one folder."""

    step: "Step"
    part: str | None = None

    def __str__(self) -> str:
        return self.step.name if self.part is None else f"{self.step.name}[{self.part!r}]"


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a step function: a node of the DAG. Nothing has run yet."""

    function: StepFunction
    arguments: Mapping[str, Any]
    inputs: tuple[Input, ...] = field(init=False)
    files: tuple[File, ...] = field(init=False)
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        inputs: dict[Input, None] = {}
        files: dict[File, None] = {}

        def note(value: Any) -> Json:
            if isinstance(value, File | PurePath):
                files[value if isinstance(value, File) else File(str(value))] = None
            if (reference := as_input(value)) is None:
                return None
            inputs[reference] = None
            return {"$input": reference.step.fingerprint, "part": reference.part}

        recipe = self._recipe(note)
        object.__setattr__(self, "inputs", tuple(inputs))
        object.__setattr__(self, "files", tuple(files))
        object.__setattr__(self, "fingerprint", hash_json(recipe))

    @property
    def name(self) -> str:
        return self.function.name

    def __getitem__(self, part: str) -> Input:
        return Input(self, part)

    def recipe(self, digest_of: Callable[[Input], str]) -> Json:
        """What the key is the hash of: the recipe with each input as its digest."""
        return self._recipe(
            lambda value: (
                None if (reference := as_input(value)) is None else {"$input": digest_of(reference)}
            )
        )

    def portable_arguments(self) -> dict[str, Json]:
        """The arguments for a worker, with inputs as their position in ``self.inputs``."""
        positions = {reference: index for index, reference in enumerate(self.inputs)}

        def encode_input(value: Any) -> Json:
            reference = as_input(value)
            if reference is not None and reference not in positions:
                raise TemperError(
                    f"{self.name}: {reference} is passed in a field declared an execution detail; "
                    "an input always bears on the result"
                )
            return None if reference is None else {"$input": positions[reference]}

        return {
            name: portable(value, f"{self.name}({name})", encode_input)
            for name, value in self.arguments.items()
        }

    def _recipe(self, encode_input: Callable[[Any], Json]) -> dict[str, Json]:
        return {
            "encoding": ENCODING_VERSION,
            "function": self.function.reference,
            "version": self.function.version,
            "arguments": {
                name: identity(value, f"{self.name}({name})", encode_input)
                for name, value in self.arguments.items()
            },
        }

    def __repr__(self) -> str:
        return f"<Step {self.name} {self.fingerprint[:8]}>"


def as_input(value: Any) -> Input | None:
    """``value`` as a reference to a step's output, or ``None`` if it is not one."""
    if isinstance(value, Input):
        return value
    return Input(value) if isinstance(value, Step) else None


@dataclass(frozen=True)
class Artifact:
    """An input as a running step function sees it: a local folder of finished files.

    What the step that made it returned as metrics is not here: it is no part of what the artifact
    is, so nothing may depend on it.

    ``artifact / "tokens.parquet"`` is the path of a file in it.
    """

    path: Path
    step: str
    digest: str

    def __truediv__(self, name: str) -> Path:
        return self.path / name


class Output(Protocol):
    """Where a running step function writes.

    Attributes:
        path: an empty local folder; its files become the artifact when the function returns.
            A ``summary.md`` among them is what the terminal shows of a result.
        scratch: a local folder that outlives a killed attempt and is empty on the first:
            checkpoints, finished shards. Deleted once the artifact is committed.
    """

    path: Path
    scratch: Path

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        """Tell whoever watches how far the step is; cheap enough to call for every batch."""
        ...
