"""Steps: calling one runs nothing.

The model:

- A *step function* is a plain function under :func:`step`. Its first parameter, ``out``, is where
  it writes (:class:`Output`); the others are its inputs and settings; it returns its metrics.
- Calling it gives a :class:`Step`, an immutable node that stands for the artifact which will
  exist. A ``Step`` among the arguments of another, at any depth, is an edge of the DAG.
  ``tokens["train"]`` is the part of the artifact under that folder, with a digest of its own, so
  that what uses the training rows does not rerun when the test rows change.
- The *recipe* is what the author wrote: the step's name, its code, its arguments. Its hash with
  every input replaced by that input's recipe is the ``fingerprint``, known before anything runs.
  Its hash with every input replaced by the *digest* of what that input turned out to be is the
  ``key``, the cache address: an upstream rerun that yields the same bytes changes no key below it.
- *Code* is an input. It is the normalised source of everything in the project that the function
  reaches (:mod:`pipeline.code`), unless the author declares a ``version`` and so takes it upon
  himself to raise it when a result changes; then the plan shows that code has changed since.

    @step
    def count_rows(out: Output, rows: Artifact, minimum_length: int = 0) -> dict:
        kept = [r for r in read(rows / "rows.txt") if len(r) >= minimum_length]
        (out.path / "count.json").write_text(json.dumps(len(kept)))
        return {"rows": len(kept)}
"""

import copy
import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol, overload

from pipeline import cells
from pipeline.code import NO_CODE, Closure, closure, forget
from pipeline.dag.artifact import Artifact, Kind, annotations_of, check_kinds, kind_of_part
from pipeline.dag.canonical import (
    Json,
    hash_json,
    identity,
    portable,
    reference_to,
    resolve_reference,
    same,
)
from pipeline.dag.inputs import File, forget_sources
from pipeline.dag.resources import NOTHING, Resources
from pipeline.dag.settings import leaves
from pipeline.dag.value_types import as_taken
from pipeline.errors import TemperError

if TYPE_CHECKING:
    from pipeline.store.catalog import Catalog
    from pipeline.store.manifest import Manifest

ENCODING_VERSION = 2
"""Part of every key. Raised when the meaning of a recipe's encoding changes."""

LONGEST_NAME = 100
"""Of a step: it names folders of the store."""

Metrics = Mapping[str, Any]
"""What a step function returns: JSON values. ``{"value", "low", "high"}`` is an interval."""


StepBody = Callable[..., Metrics | None]
_OPTIONS = frozenset(
    ("version", "makes", "added", "retries", "name", "was", "estimate", "needs_packages", "refuses")
)
"""Of :func:`step`."""
_NAMED = re.compile(r"[\w.]+:\w+")


@overload
def step(function: StepBody, /) -> "StepFunction": ...
@overload
def step(
    *,
    version: str | None = None,
    makes: Kind = Artifact,
    added: Mapping[str, Any] | None = None,
    retries: int = 0,
    name: str | None = None,
    was: Sequence[str] = (),
    estimate: str | None = None,
    needs_packages: Sequence[str] = (),
    refuses: str | None = None,
) -> Callable[[StepBody], "StepFunction"]: ...
def step(function: StepBody | None = None, **settings: Any) -> Any:
    """Make a function a step function: ``@step`` or ``@step(makes=Model)``.

    Args:
        version: given by an author who would rather say himself when results change. It takes the
            place of the code in every key: an edit reruns nothing until the version is raised.
        makes: the kind of artifact; see :mod:`pipeline.dag.artifact`.
        added: parameters that the function got when artifacts existed already, each with the
            value that those implicitly had. While a parameter holds it, keys stay as they were.
        retries: how often to try again after a failure, each time going on from scratch.
        name: what the step is called, if not as its function: it stays when that is renamed.
        was: earlier names of the step: what was made under these is found too.
        estimate: ``module:name`` of what says beforehand what a run will take; it is no part of
            any key. See :mod:`pipeline.price.estimator`.
        needs_packages: those that not everybody has installed, by the names of their modules. A
            class of its arguments says so by a ``needs_packages`` of its own.
        refuses: ``module:function``, called with the arguments when the step is called; it raises
            where they cannot work. It is no part of a key.

    A step is known by its name and its code, wherever that lies.
    """
    if function is not None:
        return StepFunction(function)
    if unknown := settings.keys() - _OPTIONS:
        raise TemperError(f"@step has no option {', '.join(sorted(unknown))}")
    return functools.partial(StepFunction, **settings)


class StepFunction:
    """A function whose calls are nodes of a DAG. See the module docstring."""

    def __init__(
        self,
        function: StepBody,
        version: str | None = None,
        makes: Kind = Artifact,
        added: Mapping[str, Any] | None = None,
        retries: int = 0,
        name: str | None = None,
        was: Sequence[str] = (),
        estimate: str | None = None,
        needs_packages: Sequence[str] = (),
        refuses: str | None = None,
    ):
        _check_declaration(function, version, makes, added, retries, estimate)
        self.function = function
        self.name, self.was = _checked_names(function.__name__ if name is None else name, was)
        self.version = version
        self.makes = makes
        self.added = dict(added or {})
        self.retries = retries
        self.estimate = estimate
        self.needs_packages = tuple(needs_packages)
        self.refuses = refuses
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
        reference_to(makes)  # a worker must be able to import it
        if function.__module__ == "__main__" and "<" not in function.__qualname__:
            reference_to(function)  # so must it this; said here, where somebody types it
        if unknown := set(self.added) - set(self.signature.parameters):
            raise TemperError(f"step {self.name}: added={sorted(unknown)} are no parameters of it")
        hints = annotations_of(function) if self.added else {}
        self.added = {n: as_taken(value, hints.get(n, Any)) for n, value in self.added.items()}

    @property
    def reference(self) -> str:
        return reference_to(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> "Step":
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(self.signature.parameters)
            raise TemperError(f"step {self.name}: {error}; it takes {names}") from None
        bound.apply_defaults()
        annotations = annotations_of(self.function)
        for name, value in bound.arguments.items():
            expected = annotations.get(name, Any)
            check_kinds(value, expected, f"{self.name}({name})", _kind_of)
            bound.arguments[name] = as_taken(value, expected)
        if self.refuses is not None:
            self._refuse(bound.arguments)
        return Step(self, bound.arguments, self.makes)

    def _refuse(self, arguments: Mapping[str, Any]) -> None:
        """Ask whoever knows whether these arguments can work."""
        try:
            resolve_reference(str(self.refuses))(**arguments)
        except (TemperError, ValueError, OSError) as error:
            raise TemperError(f"{self.name}: {error}") from error

    def closure(self, types: frozenset[type] = frozenset()) -> Closure:
        """The source that this step reaches; see :func:`pipeline.code.closure`.

        Looked at once per process (until :func:`look_again`): a plan sees one version of the code.
        What cells of a notebook define is looked at whenever somebody asks.
        """
        return _closure(self, types, self._cells(types))

    def _cells(self, types: frozenset[type]) -> Path | None:
        """The file in which a worker finds what cells of a notebook define of it."""
        return cells.written((inspect.unwrap(self.function), *types))

    def code(self, types: frozenset[type] = frozenset()) -> Mapping[str, str]:
        """Digests of that source by name, to show what changed."""
        return self.closure(types).units

    def made_by(self, types: frozenset[type] = frozenset()) -> dict[str, Json]:
        """What stands for the code in a recipe: the declared version, or the code itself."""
        if self.version is not None:
            self._cells(types)
            return {"version": self.version}
        return {"code": self.closure(types).digest}

    def __repr__(self) -> str:
        return f"<step function {self.name}{self.signature}>"


def _check_declaration(
    function: Any, version: Any, makes: Any, added: Any, retries: Any, estimate: Any
) -> None:
    name = getattr(function, "__name__", repr(function))
    if not inspect.isfunction(function):
        raise TemperError(f"@step on {name}: it is no function; put @step above a `def`")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TemperError(f"step {name}: a step is a plain function, not async and no generator")
    if version is not None and (not isinstance(version, str) or not version):
        raise TemperError(f"step {name}: version={version!r}; give a text, as in version='1'")
    if not (isinstance(makes, type) and issubclass(makes, Artifact)):
        raise TemperError(f"step {name}: makes={makes!r} is no kind of Artifact")
    if added is not None and not isinstance(added, Mapping):
        raise TemperError(f"step {name}: added={added!r}; give a dict of parameter: value")
    if type(retries) is not int or retries < 0:
        raise TemperError(f"step {name}: retries={retries!r}; give a number from 0")
    if estimate is not None and not (isinstance(estimate, str) and _NAMED.fullmatch(estimate)):
        raise TemperError(f"step {name}: estimate={estimate!r}; name it, as in 'module:name'")


def _checked_names(name: Any, was: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(was, str) or not isinstance(was, Collection):
        raise TemperError(f"step {name}: was={was!r}; give earlier names, as in was=('old_name',)")
    for given in (name, *was):
        if not isinstance(given, str) or not given.isidentifier():
            raise TemperError(f"step {given!r}: a step's name is one as functions have")
        if len(given) > LONGEST_NAME:
            raise TemperError(f"step {given[:40]}…: its name is longer than {LONGEST_NAME} letters")
    return name, tuple(was)


@cache
def _closure(function: StepFunction, types: frozenset[type], cells: Path | None) -> Closure:
    try:
        return closure(function.function, types)
    except TemperError:
        if function.version is None:
            raise
        return NO_CODE  # a declared version does not need the source


def look_again() -> None:
    """Forget what was read of files and code: the next plan sees them as they are then."""
    _closure.cache_clear()
    forget()
    forget_sources()


@dataclass(frozen=True)
class Input:
    """A reference to a step's output: all of it, or the part under one folder."""

    step: "Step"
    part: str | None = None

    @property
    def kind(self) -> Kind:
        if self.part is None:
            return self.step.kind
        return kind_of_part(self.step.kind, self.part, self.step.name)

    def __str__(self) -> str:
        return self.step.name if self.part is None else f"{self.step.name}[{self.part!r}]"


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a step function: a node of the DAG. Nothing has run yet.

    Attributes:
        resources: what it asks of the machine; see :meth:`on`.
        label: what its author calls it; see :meth:`named`.
    """

    function: StepFunction
    arguments: Mapping[str, Any]
    kind: Kind = Artifact
    resources: Resources = NOTHING
    label: str = ""
    inputs: tuple[Input, ...] = field(init=False)
    files: tuple[File, ...] = field(init=False)
    types: frozenset[type] = field(init=False)
    fingerprint: str = field(init=False)
    portable_arguments: Mapping[str, Json] = field(init=False, repr=False)
    """The arguments for a worker, as they were at the call, with inputs as their position in
    ``inputs``."""
    _identity: Mapping[str, Json] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inputs: dict[Input, None] = {}
        files: dict[File, None] = {}
        types: set[type] = set()

        def note(value: Any) -> Json:
            if isinstance(value, File | PurePath):
                files[value if isinstance(value, File) else File(str(value))] = None
            if (reference := as_input(value)) is None:
                return None
            inputs[reference] = None
            if reference.kind is not Artifact:
                types.add(reference.kind)
            return {"$input": reference.step.fingerprint, "part": reference.part}

        arguments = self._arguments(note, types)
        if ambiguous := _ambiguous_names(types):
            arguments = self._arguments(note, types, ambiguous)
        object.__setattr__(self, "inputs", tuple(inputs))
        object.__setattr__(self, "files", tuple(files))
        object.__setattr__(self, "types", frozenset(types))
        object.__setattr__(self, "_identity", arguments)
        object.__setattr__(self, "portable_arguments", self._portable_arguments())
        object.__setattr__(self, "fingerprint", hash_json(self._recipe(arguments, self.made_by)))

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def needs_packages(self) -> tuple[str, ...]:
        """Packages that it needs and that may be missing, by the names of their modules."""
        asked = [self.function.needs_packages]
        asked += [getattr(kind, "needs_packages", ()) for kind in self.types]
        return tuple(dict.fromkeys(name for names in asked for name in names))

    @property
    def code(self) -> Mapping[str, str]:
        """Digests of the source that bears on this step, that of its arguments' types included."""
        return self.function.code(self.types)

    @property
    def made_by(self) -> dict[str, Json]:
        """What stands for the code in the recipe; see :meth:`StepFunction.made_by`."""
        return self.function.made_by(self.types)

    __iter__ = None  # indexing would make one of it that never ends
    __contains__ = None

    def __getitem__(self, part: str) -> Input:
        if not isinstance(part, str) or not part or part != part.strip("/"):
            raise TemperError(f"{self.name}[{part!r}]: a part is a folder's name, as in ['train']")
        kind_of_part(self.kind, part, self.name)
        return Input(self, part)

    def on(
        self,
        *,
        gpus: int | None = None,
        nodes: int | None = None,
        accelerator: str | None = None,
        tpu: str | None = None,
        cpus: int | None = None,
        memory: str | None = None,
        time: str | None = None,
        processes: int | None = None,
        retries: int | None = None,
        preemptions: int | None = None,
    ) -> "Step":
        """This step, asking for a machine: ``train_dpo(...).on(gpus=8, nodes=2)``.

        It is the same step, with the same key. What is left out stays as it was asked for before,
        or as ``conf/launcher`` says; see :class:`pipeline.dag.resources.Resources`.

        Raises:
            TemperError: a value is out of range or cannot be read.
        """
        try:
            asked = Resources(
                gpus, nodes, accelerator, tpu, cpus, memory, time, processes, retries, preemptions
            ).over(self.resources)
        except TemperError as error:
            raise TemperError(f"{self.name}.on: {error}") from error
        placed = copy.copy(self)
        object.__setattr__(placed, "resources", asked)
        return placed

    def named(self, label: str) -> "Step":
        """This step under a name of its own: ``train_sft(...).named("no code")``.

        It is the same step, with the same key. Plans, screens, reports and tables of results call
        it so, and with it the steps that only it needs, and those that need no other named step.

        Raises:
            TemperError: the name is no text on one line.
        """
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            raise TemperError(f"{self.name}.named: {label!r} is no name; give a text on one line")
        named = copy.copy(self)
        object.__setattr__(named, "label", label)
        return named

    def at(self, url: str) -> "Step":
        """This step's output, pinned to files that exist: nothing is run to make it.

        What uses it is keyed by the content of the files, as if this step had made them.
        """
        from pipeline.dag.adopt import adopt

        return adopt(url, self.kind)

    def recipe(
        self,
        digest_of: Callable[[Input], str],
        made_by: Mapping[str, Json] | None = None,
        name: str | None = None,
    ) -> Json:
        """What the key is the hash of: the recipe with each input as its digest.

        Args:
            made_by: other code, accepted as equivalent, in place of the present.
            name: another name of the step, which it had before.
        """

        digests = {
            (reference.step.fingerprint, reference.part): digest_of(reference)
            for reference in self.inputs
        }
        arguments = {name: _with_digests(v, digests) for name, v in self._identity.items()}
        return self._recipe(arguments, made_by or self.made_by, name)

    def _portable_arguments(self) -> dict[str, Json]:
        positions = {reference: index for index, reference in enumerate(self.inputs)}
        given: dict[int, Any] = {}

        def encode_input(value: Any) -> Json:
            reference = as_input(value)
            if reference is None:
                return None
            if reference not in positions:
                raise TemperError(
                    f"{self.name}: {reference} is passed in a field declared an execution detail; "
                    "an input always bears on the result"
                )
            given.setdefault(positions[reference], value)
            return {"$input": positions[reference]}

        return {
            name: portable(value, f"{self.name}({name})", encode_input, given.__getitem__)
            for name, value in self.arguments.items()
        }

    def _recipe(
        self, arguments: dict[str, Json], made_by: Mapping[str, Json], name: str | None = None
    ) -> dict[str, Json]:
        return {
            "encoding": ENCODING_VERSION,
            "step": name or self.name,
            **made_by,
            "arguments": arguments,
        }

    def _arguments(
        self,
        encode_input: Callable[[Any], Json],
        types: set[type] | None = None,
        qualified: Collection[str] = (),
    ) -> dict[str, Json]:
        home = self.function.function.__module__

        def encode(value: Any, where: str, types: set[type] | None = None) -> Json:
            return identity(value, where, encode_input, types, home, qualified)

        encoded = {
            name: encode(value, f"{self.name}({name})", types)
            for name, value in self.arguments.items()
        }
        before = {
            name: encode(value, f"{self.name}(added {name})")
            for name, value in self.function.added.items()
        }
        return {
            name: value
            for name, value in encoded.items()
            if name not in before or not same(value, before[name])
        }

    def _repr_html_(self) -> str:
        """For notebooks: its name, what it makes, from what, with which settings."""
        from pipeline.html import named_table

        recipe: Any = self.recipe(str)
        settings = leaves(recipe["arguments"])
        rows = [(path.removesuffix(".$input"), str(value)) for path, value in settings]
        makes = f"makes {self.kind.__name__}, fingerprint {self.fingerprint[:8]}"
        return named_table(self._title, makes, ("argument", "value"), rows)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<Step {self._title} {self.fingerprint[:8]}>"

    @property
    def _title(self) -> str:
        return f"{self.name} ({self.label})" if self.label else self.name


def _ambiguous_names(types: Collection[type]) -> set[str]:
    """Names that several of these classes have: a key must say which of them it means."""
    counts = Counter(cls.__qualname__ for cls in types)
    return {name for name, count in counts.items() if count > 1}


def _with_digests(data: Json, digests: Mapping[tuple[str, str | None], str]) -> Json:
    """Encoded arguments with each input's fingerprint replaced by its digest.

    The arguments are encoded once, at the call: what is changed in them later is not part of it.
    """
    if isinstance(data, list):
        return [_with_digests(item, digests) for item in data]
    if not isinstance(data, dict):
        return data
    if "$input" in data:
        return {"$input": digests[str(data["$input"]), data["part"]]}  # type: ignore[index]
    return {name: _with_digests(item, digests) for name, item in data.items()}


def as_input(value: Any) -> Input | None:
    """``value`` as a reference to a step's output, or ``None`` if it is not one."""
    if isinstance(value, Input):
        return value
    return Input(value) if isinstance(value, Step) else None


def _kind_of(value: Any) -> Kind | None:
    reference = as_input(value)
    return None if reference is None else reference.kind


class Output(Protocol):
    """Where a running step function writes.

    Attributes:
        path: an empty local folder; its files become the artifact when the function returns.
            A ``summary.md`` among them is what the terminal shows of a result.
        scratch: a local folder that outlives a killed attempt and is empty on the first:
            checkpoints, finished shards. Deleted once the artifact is committed.
        catalog: what the store holds, for :meth:`origin` and what lies above it.
    """

    path: Path
    scratch: Path
    catalog: "Catalog"

    def origin(self, artifact: Artifact) -> "Manifest":
        """How an input was made. It is no part of the key: for what people look at, and never for
        what other steps go on from."""
        ...

    @property
    def stopping(self) -> bool:
        """True once the step is to leave this machine: save what is needed in ``scratch`` and end
        by any exception; it goes on from there, perhaps elsewhere. A step that asks is given time
        for it; one that never asks is ended at once. With several ranks, agree before acting."""
        ...

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        """Tell whoever watches how far the step is; cheap enough to call for every batch."""
        ...
