"""Results of earlier runs as inputs of steps: ``recorded("sft/model")`` is a step that has run.

It stands for one artifact of the store: nothing is copied, and what uses the artifact has it in its
lineage. Keys below hold only its digest, so they are those of a script that has both steps.
"""

import os
from collections.abc import Callable
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.dag.artifact import Kind
from pipeline.dag.step import Input, Step, StepFunction
from pipeline.store.catalog import Catalog
from pipeline.store.kinds import known_kind
from pipeline.store.layout import open_store
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import find, require_unmarked
from pipeline.store.names.tags import read_tag
from pipeline.store.runs import newest_runs

Rests = Callable[[Manifest, str | None], bool]
"""Whether an artifact, or a part of it, rests on the input of its kind."""


def recorded(name: str, kind: Kind, rests: Rests = lambda *_: False) -> Step | Input | None:
    """The artifact of this name in the present store, or its only part of this kind.

    Args:
        name: ``EXPERIMENT/RESULT``, ``STEP``, ``STEP@KEY`` or a tag.

    Returns:
        ``None`` if nothing in the store has the name, or a file has it; or if the artifact of a tag
        has neither this kind nor a part of it.

    Raises:
        TemperError: the artifact is gone, or of another kind.
    """
    if (made := named_artifact(name)) is None:
        return None
    given, catalog = known_kind(made), Catalog(open_store(None))
    if issubclass(given, kind):
        return _step(catalog, made, rests)
    parts = given.parts if isinstance(given.parts, dict) else {}
    fitting = [part for part, of_part in parts.items() if issubclass(of_part, kind)]
    if len(fitting) == 1:
        return _step(catalog, made, rests, fitting[0])[fitting[0]]
    if "/" in name or "@" in name:
        raise TemperError(f"{name} is a {given.__name__}; a {kind.__name__} is wanted here")
    return None  # a tag, which names files where files are wanted


def named_artifact(name: str) -> Manifest | None:
    """The artifact of a name in the present store; ``None`` if there is none, or it is a path.

    Raises:
        TemperError: an experiment or a step has this name, but not such a result.
    """
    if not name or "://" in name or name[0] in "./~" or os.path.lexists(name):
        return None
    store = open_store(None)
    first, slash, _ = name.partition("/")
    if slash:
        is_known = any(run.experiment == first for run in newest_runs(store))
    else:
        is_known = name.partition("@")[0] in store.steps() or read_tag(store, name) is not None
    return find(Catalog(store), name) if is_known else None


def record_of(step: Step) -> tuple[str, str, str] | None:
    """The step, key and attempt of the artifact that a step of :func:`recorded` stands for."""
    if step.function.function is not _recorded:
        return None
    given = step.arguments
    return given["step"], given["key"], given["attempt"]


def artifact_of_record(catalog: Catalog, step: Step) -> Manifest | None:
    """The artifact of a step of :func:`recorded`; ``None`` for other steps.

    Raises:
        TemperError: it is gone.
    """
    if (place := record_of(step)) is None:
        return None
    for made in catalog.generations(*place[:2]):
        if made.attempt == place[2]:
            require_unmarked(catalog, made)
            return made
    raise TemperError(f"{step.name}@{place[1][:8]} was collected; run its experiment again")


def _step(catalog: Catalog, made: Manifest, rests: Rests, part: str | None = None) -> Step:
    require_unmarked(catalog, made)
    base = _base(catalog, made, rests) if rests(made, part) else None
    function = StepFunction(
        _recorded, version="recorded", name=made.step, rests_on=f"{__name__}:base_of"
    )
    place = {"step": made.step, "key": made.key, "attempt": made.attempt}
    return Step(function, {**place, "digest": made.digest, "base": base}, known_kind(made))


def _base(catalog: Catalog, made: Manifest, rests: Rests) -> Step | Input:
    """The first input of an artifact with a kind that assembles in the same way."""
    assemble = known_kind(made).assemble
    for entry in made.inputs:
        for above in catalog.generations(entry.step, entry.key):
            if above.digest_of(entry.part) == entry.digest:
                if assemble is None or known_kind(above).assemble == assemble:
                    step = _step(catalog, above, rests, entry.part)
                    return step if entry.part is None else step[entry.part]
                break
    raise TemperError(f"{made.name} rests on another artifact, which is gone; make it again")


def base_of(base: Step | Input | None, **_: Any) -> Step | Input | None:
    return base


def _recorded(out: Any, step: str, key: str, attempt: str, digest: str, base: Any) -> None:
    raise TemperError(f"{step}@{key[:8]} has run already, and its artifact is gone")
