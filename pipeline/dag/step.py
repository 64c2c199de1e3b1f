"""Steps: calling a step function runs nothing; it makes a node of a DAG.

The model:

- A *step function* is a plain function with the decorator :func:`step`. Its first parameter,
  ``out``, is the place for its output (:class:`Output`); the others are its inputs and settings. It
  returns its metrics.
- Calling it gives a :class:`Step`, an immutable node that stands for the future artifact. A
  ``Step`` among the arguments of another step, at any depth, is an edge of the DAG.
  ``tokens["train"]`` is the part of the artifact in that folder. It has a digest of its own, so
  that a step that uses only the training rows does not rerun when the test rows change.
- The *recipe* consists of the step's name and its arguments. The ``fingerprint`` is its
  hash with every input replaced by that input's recipe; it is known before anything runs. The
  ``key`` is its hash with every input replaced by the *digest* of that input's content, and is the
  cache address. So if an upstream step reruns and gives the same bytes, no key below it changes.
- *Code* is in no key. The *trace* of an artifact holds the code that ran
  (:mod:`pipeline.observed.discovery`), and the artifact is a hit only while that is unchanged. An
  author who declares a ``version`` must raise it when results change; the plan then shows changes
  of the code, but they do not rerun the step.

    @step
    def count_rows(out: Output, rows: Artifact, minimum_length: int = 0) -> dict:
        kept = [r for r in read(rows / "rows.txt") if len(r) >= minimum_length]
        (out.path / "count.json").write_text(json.dumps(len(kept)))
        return {"rows": len(kept)}
"""

import copy
import functools
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Protocol, overload

from pipeline.base import cells
from pipeline.base.annotations import annotations_of
from pipeline.base.errors import TemperError
from pipeline.base.redaction import variable_in
from pipeline.base.text import hint
from pipeline.dag.artifact import Artifact, Kind, check_kinds, kind_of_part
from pipeline.dag.canonical import (
    Json,
    canonical_bytes,
    hash_json,
    identity,
    portable,
    reference_to,
    resolve_reference,
    same,
)
from pipeline.dag.inputs import File, forget_sources
from pipeline.dag.resources import NOTHING, Resources, refuse_unknown
from pipeline.dag.settings import leaves

if TYPE_CHECKING:
    from pipeline.store.catalog import Catalog
    from pipeline.store.manifest import Manifest

ENCODING_VERSION = 3
"""A part of every key; raised when the encoding of recipes changes its meaning."""

LONGEST_NAME = 100
"""The longest name of a step, since it is the name of folders in the store."""

Metrics = Mapping[str, Any]
"""The result of a step function: JSON values. ``{"value", "low", "high"}`` is an interval."""


StepBody = Callable[..., Metrics | None]
_NAMED = re.compile(r"[\w.]+:\w+")
_FILES = (File, Path)
_PLAIN = (type(None), bool, int, str)
"""Types whose values are the same in a key and for a worker."""


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
    converts: str | None = None,
    rests_on: str | None = None,
) -> Callable[[StepBody], "StepFunction"]: ...
def step(function: StepBody | None = None, **settings: Any) -> Any:
    """Make a function a step function: ``@step`` or ``@step(makes=Model)``.

    Args:
        version: a part of the key in place of the trace. The author must raise it when results
            change; an edit of the code reruns nothing until then.
        makes: the kind of artifact; see :mod:`pipeline.dag.artifact`.
        added: parameters that were added after artifacts existed, each with the value that older
            results used implicitly. While a parameter has this value, keys stay the same.
        retries: how often to retry after a failure; each retry resumes from scratch.
        name: the step's name, if it is not the function's; it stays when the function is renamed.
        was: earlier names of the step, under which existing artifacts are found too.
        estimate: ``module:name`` of a function that returns its work, memory and disk; it is in no
            key. See :mod:`pipeline.estimate.needs`.
        needs_packages: optional packages that the step needs, by module name. A class of its
            arguments can declare an attribute ``needs_packages`` too, and an argument whose values
            decide has a method ``packages_in_use``.
        refuses: ``module:function`` that is called with the arguments of each call; it raises an
            exception if they cannot work. It is in no key.
        converts: ``module:function`` that is called with the arguments of each call first, and
            returns those that the step gets in their place, such as a File for a library's object.
        rests_on: ``module:function`` that is called with the arguments of each call, and returns
            the input on which its artifact rests (see :attr:`Artifact.assemble`), or ``None``.

    A step is identified by its name in keys, and by its module and function in traces.
    """
    if function is not None:
        return StepFunction(function)
    _, _, *options = inspect.signature(StepFunction.__init__).parameters
    if unknown := sorted(settings.keys() - {*options}):
        raise TemperError(f"@step has no option {', '.join(unknown)}; {hint(unknown[0], options)}")
    return functools.partial(StepFunction, **settings)


class StepFunction:
    """A function whose calls are nodes of a DAG; see the module docstring."""

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
        converts: str | None = None,
        rests_on: str | None = None,
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
        self.converts = converts
        self.rests_on = rests_on
        self._load = inspect.unwrap(function).__globals__.get("__spec__")  # another after a reload
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].name != "out":
            is_method = [p.name for p in parameters[:1]] in (["self"], ["cls"])
            raise TemperError(
                f"step {self.name}: the first parameter must be `out: Output`"
                f"{'; move the step out of its class' * is_method}"
            )
        for parameter in parameters:
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TemperError(
                    f"step {self.name}: every parameter needs a name that the caller can use; "
                    f"`{parameter}` has none"
                )
        self.signature = inspect.Signature(parameters[1:])
        reference_to(makes)  # a worker must be able to import it
        if function.__module__ == "__main__" and "<" not in function.__qualname__:
            reference_to(function)  # a worker must import this too; raise the error at once
        if unknown := set(self.added) - set(self.signature.parameters):
            raise TemperError(f"step {self.name}: added={sorted(unknown)} are no parameters of it")

    @property
    def reference(self) -> str:
        return reference_to(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> "Step":
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(self.signature.parameters)
            raise TemperError(f"step {self.name}: {error}; it takes {names or 'none'}") from None
        bound.apply_defaults()
        if self.converts is not None:
            bound.arguments |= self.checked_by(self.converts, bound.arguments)
        annotations = annotations_of(self.function)
        for name, value in bound.arguments.items():
            expected = annotations.get(name, Any)
            default = self.signature.parameters[name].default
            check_kinds(value, expected, f"{self.name}({name})", _kind_of, default=default)
        if self.refuses is not None:
            self.checked_by(self.refuses, bound.arguments)
        return Step(self, bound.arguments, self.makes)

    def _require_its_name(self) -> None:
        """Refuse a step whose name another step has taken, because workers import that one.

        A module may take the name after the call, so planning asks again. Of the cells of a
        notebook, :mod:`pipeline.base.cells` refuses an old definition.
        """
        if self.function.__module__ == "__main__" and cells.are_known():
            return
        named: Any = sys.modules.get(self.function.__module__)
        for part in self.function.__qualname__.split("."):
            named = getattr(named, part, None)
        if not isinstance(named, StepFunction) or named._load is not self._load:
            return
        if named.function is not self.function:
            where = self.function.__module__
            raise TemperError(f"{where} defines several steps {self.name}; rename one of them")

    def checked_by(self, reference: str, arguments: Mapping[str, Any]) -> Any:
        """Call one of ``refuses``, ``converts``, ``rests_on`` with arguments that may not work."""
        try:
            return resolve_reference(reference)(**arguments)
        except (TemperError, ValueError, OSError) as error:
            raise TemperError(f"{self.name}: {error}") from error

    def made_by(self, types: frozenset[type] = frozenset()) -> dict[str, Json]:
        """The entry for the code in a recipe: the declared version; nothing without one."""
        self._require_its_name()
        cells.written((inspect.unwrap(self.function), *types))  # for the worker, which imports it
        return {} if self.version is None else {"version": self.version}

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
            raise TemperError(f"step {given!r}: that is no name; write the step with def, or name=")
        if len(given) > LONGEST_NAME:
            raise TemperError(f"step {given[:40]}…: its name is longer than {LONGEST_NAME} letters")
    return name, tuple(was)


def look_again() -> None:
    """Forget the state of files and code, so that the next plan reads them again."""
    forget_sources()


@dataclass(frozen=True)
class Input:
    """A reference to a step's output: all of it, or the part in one folder."""

    step: "Step"
    part: str | None = None

    @property
    def kind(self) -> Kind:
        if self.part is None:
            return self.step.kind
        return kind_of_part(self.step.kind, self.part, self.step.name)

    def __str__(self) -> str:
        return self.step.name if self.part is None else f"{self.step.name}[{self.part!r}]"


class NotMade(TemperError, AttributeError):
    """A step was asked for something that only its artifact has."""


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a step function: a node of the DAG. Nothing has run yet.

    Attributes:
        resources: the resources that it requests; see :meth:`on`.
        label: the name that its author gave it; see :meth:`named`.
        expected: what its author expects of it and of the steps above it, as pairs of a step's
            fingerprint and a tag; see :meth:`expect`.
        inputs: the inputs among its arguments, and after them those on which these rest.
        base: the input on which its artifact rests, if it does.
    """

    function: StepFunction
    arguments: Mapping[str, Any]
    kind: Kind = Artifact
    resources: Resources = NOTHING
    label: str = ""
    expected: frozenset[tuple[str, str]] = frozenset()
    inputs: tuple[Input, ...] = field(init=False)
    files: tuple[File, ...] = field(init=False)
    types: frozenset[type] = field(init=False)
    base: "Input | None" = field(init=False, repr=False)
    fingerprint: str = field(init=False)
    portable_arguments: Mapping[str, Json] = field(init=False, repr=False)
    """The arguments for a worker, as they were at the call; each input is replaced by its position
    in ``inputs``."""
    _identity: Mapping[str, Json] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inputs: dict[Input, None] = {}
        files: dict[File, None] = {}
        types: set[type] = set()

        def note(value: Any) -> Json:
            if isinstance(value, _FILES):
                files[value if isinstance(value, File) else File(str(value))] = None
            if (reference := as_input(value)) is None:
                return None
            inputs[reference] = None
            if reference.kind is not Artifact:
                types.add(reference.kind)
            return {"$input": reference.step.fingerprint, "part": reference.part}

        arguments = self._arguments(note, types)
        names = Counter(cls.__qualname__ for cls in types)
        if ambiguous := {name for name, count in names.items() if count > 1}:
            arguments = self._arguments(note, types, ambiguous)
        self._refuse_keys_in(arguments)
        rests_on = self.function.rests_on
        resting = None if rests_on is None else self.function.checked_by(rests_on, self.arguments)
        inputs |= dict.fromkeys(base for reference in inputs for base in bases_of(reference))
        vars(self).update(base=as_input(resting))
        if above := [step.expected for step in (i.step for i in inputs) if step.expected]:
            vars(self).update(expected=self.expected.union(*above))
        vars(self).update(inputs=tuple(inputs), files=tuple(files), types=frozenset(types))
        vars(self).update(_identity=arguments, portable_arguments=self._portable_arguments())
        vars(self).update(fingerprint=hash_json(self._recipe(arguments)))

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def needs_packages(self) -> tuple[str, ...]:
        """Optional packages that it needs, by module name."""
        asked = [self.function.needs_packages]
        asked += [getattr(kind, "needs_packages", ()) for kind in self.types]
        choosing = (v for v in self.arguments.values() if hasattr(type(v), "packages_in_use"))
        asked += [value.packages_in_use() for value in choosing]
        return tuple(dict.fromkeys(name for names in asked for name in names))

    @property
    def type_names(self) -> tuple[str, ...]:
        """``module:name`` of each class of its arguments and inputs, in order."""
        return tuple(sorted(map(reference_to, self.types)))

    @property
    def made_by(self) -> dict[str, Json]:
        """The entry for the code in the recipe; see :meth:`StepFunction.made_by`."""
        return self.function.made_by(self.types)

    __iter__ = None  # otherwise Python would iterate with __getitem__, without end
    __contains__ = None

    def __getattr__(self, name: str) -> Never:
        if hasattr(type(self), name):  # a property that has failed: it fails again, with its error
            return object.__getattribute__(self, name)  # pyright: ignore[reportGeneralTypeIssues]
        if name in ("path", "load", "metrics"):
            raise NotMade(
                f"{self.name} is a step, which stands for what it will make; "
                f"run({{'NAME': STEP}})['NAME'].{name} is that of the artifact"
            )
        if name.startswith("_"):  # as protocols of Python ask for
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NotMade(f"{self.name} is a step and has no {name}; a part of it is STEP[{name!r}]")

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
        **unknown: Never,
    ) -> "Step":
        """This step with a request for resources: ``train_dpo(...).on(gpus=8, nodes=2)``.

        It is the same step, with the same key. Fields that are left out keep their earlier request,
        or the default in ``conf/launcher``; see :class:`pipeline.dag.resources.Resources`.

        Raises:
            TemperError: a resource is unknown, or a value is out of range or invalid.
        """
        try:
            refuse_unknown(unknown)
            asked = Resources(
                gpus, nodes, accelerator, tpu, cpus, memory, time, processes, retries, preemptions
            ).over(self.resources)
        except TemperError as error:
            raise TemperError(f"{self.name}.on: {error}") from error
        return self._with(resources=asked)

    def named(self, label: str) -> "Step":
        """This step with a label: ``train_sft(...).named("no code")``.

        It is the same step, with the same key. Plans, terminal, reports and tables of results show
        the label. They also show it for steps that only this step uses, and for steps for which it
        is the only named ancestor.

        Raises:
            TemperError: the label is no text on one line.
        """
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            raise TemperError(f"{self.name}.named: {label!r} is no name; give a text on one line")
        return self._with(label=label)

    def expect(self, tag: str) -> "Step":
        """This step, of which a plan must have the artifact with this tag (``temper tag``):
        ``train_sft(...).expect("v1")``.

        It is the same step, with the same key. If a plan would make another artifact, or any at
        all, a run ends with an error before a step begins.
        """
        if not isinstance(tag, str):
            raise TemperError(f"{self.name}.expect: {tag!r} is no tag; give its name as text")
        return self._with(expected=self.expected | {(self.fingerprint, tag)})

    def _with(self, **changes: Any) -> "Step":
        """A copy; what its arguments determine is not computed again."""
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    def at(self, url: str) -> "Step":
        """This step's output, replaced by existing files: the step does not run.

        Steps that use it are keyed by the content of the files, as if this step had made them.
        """
        from pipeline.dag.adopt import adopt

        return adopt(url, self.kind)

    def recipe(
        self,
        digest_of: Callable[[Input], str],
        name: str | None = None,
    ) -> Json:
        """The recipe with each input replaced by its digest, which the key hashes.

        Args:
            name: an earlier name of the step.
        """
        digests = {(i.step.fingerprint, i.part): digest_of(i) for i in self.inputs}
        arguments = {name: _with_digests(v, digests) for name, v in self._identity.items()}
        return self._recipe(arguments, name)

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
            name: value
            if type(value) in _PLAIN  # the key has checked it
            else portable(value, f"{self.name}({name})", encode_input, given.__getitem__)
            for name, value in self.arguments.items()
        }

    def _recipe(self, arguments: dict[str, Json], name: str | None = None) -> dict[str, Json]:
        return {
            "encoding": ENCODING_VERSION,
            "step": name or self.name,
            **self.made_by,
            "arguments": arguments,
        }

    def _arguments(
        self,
        encode_input: Callable[[Any], Json],
        types: set[type] | None = None,
        qualified: Collection[str] = (),
    ) -> dict[str, Json]:
        home = self.function.function.__module__

        def encode(value: Any, name: str, types: set[type] | None = None) -> Json:
            return identity(value, f"{self.name}({name})", encode_input, types, home, qualified)

        added = self.function.added
        encoded = {name: encode(value, name, types) for name, value in self.arguments.items()}
        before = {name: encode(value, f"added {name}") for name, value in added.items()}
        return {
            name: value
            for name, value in encoded.items()
            if name not in before or not same(value, before[name])
        }

    def _refuse_keys_in(self, arguments: Mapping[str, Json]) -> None:
        """Refuse the keys of services that the environment holds: manifests would record them."""
        if (variable := variable_in(canonical_bytes({**arguments}).decode())) is None:
            return
        texts = (
            f"{self.name}({name}){path and f'.{path}'.replace('.[', '[')}"
            for name, value in arguments.items()
            for path, text in leaves(value)
            if variable_in(json.dumps(text))
        )
        place = next(texts, self.name)
        raise TemperError(
            f"{place}: the text holds the secret of the environment variable {variable}, which "
            "manifests would record; pass the variable's name, and read it in the step"
        )

    def _repr_html_(self) -> str:
        """Its name, kind and settings, for notebooks."""
        from pipeline.base.html import named_table

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


def _with_digests(data: Json, digests: Mapping[tuple[str, str | None], str]) -> Json:
    """Encoded arguments with each input's fingerprint replaced by its digest.

    The arguments are encoded once, at the call, so later changes of mutable arguments have no
    effect.
    """
    if isinstance(data, list):
        return [_with_digests(item, digests) for item in data]
    if not isinstance(data, dict):
        return data
    if "$input" in data:
        return {"$input": digests[str(data["$input"]), data["part"]]}  # type: ignore[index]
    return {name: _with_digests(item, digests) for name, item in data.items()}


def as_input(value: Any) -> Input | None:
    """``value`` as a reference to a step's output; ``None`` if it is none."""
    if isinstance(value, Input):
        return value
    return Input(value) if isinstance(value, Step) else None


def bases_of(reference: Input) -> Iterator[Input]:
    """The input on which an input rests, that on which this one rests, and so on. Whoever reads the
    files of the first needs all of them."""
    base = reference.step.base
    while reference.kind.assemble is not None and base is not None:
        yield base
        reference, base = base, base.step.base


def _kind_of(value: Any) -> Kind | None:
    if isinstance(value, StepFunction):
        raise TemperError(f"{value.name} was passed uncalled; call it, as in {value.name}(…)")
    reference = as_input(value)
    return None if reference is None else reference.kind


class Output(Protocol):
    """The place where a running step function writes its output.

    Attributes:
        path: an empty local folder; its files become the artifact when the function returns. If it
            contains a ``summary.md``, the terminal shows it with the result.
        scratch: a local folder for checkpoints and finished shards. It is empty in the first
            attempt, survives a killed attempt, and is deleted once the artifact is committed.
        catalog: the artifacts of the store, for :meth:`origin` and ancestors of an origin.
    """

    path: Path
    scratch: Path
    catalog: "Catalog"

    def __truediv__(self, name: str) -> Path:
        """The path of a file in it; ``out`` itself is the path of the folder."""
        ...

    def __fspath__(self) -> str: ...

    def origin(self, artifact: Artifact) -> "Manifest":
        """The manifest of an input. It is not in the key, so use it only for content for people,
        never for content that other steps use."""
        ...

    @property
    def stopping(self) -> bool:
        """True once the step must stop on this machine. It should save its state in ``scratch`` and
        end with any exception; the next attempt resumes from there, perhaps elsewhere. A step that
        polls this gets time for it; one that never polls is stopped at once. Several ranks must
        agree before they act."""
        ...

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        """Report progress; cheap enough to call for every batch."""
        ...
