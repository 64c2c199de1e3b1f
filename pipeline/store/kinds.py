"""The kind of an artifact, by what its manifest says, when no driver has said it.

A store never chooses what is imported. A manifest names the kind of its artifact, and whoever wrote
the manifest may have named anything: so a kind is taken from modules that this process has imported
anyway and from the step library that ships with Temper, and only if it is a kind. The command line,
which has no experiment, may look further; see :mod:`pipeline.cli.present`.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.dag.artifact import Artifact, Kind
from pipeline.dag.canonical import resolve_reference
from pipeline.errors import TemperError
from pipeline.foreseen import ROOT, SHIPPED
from pipeline.store.manifest import Manifest
from pipeline.store.stored import is_reference

_PLAIN = (None, "pipeline.dag.artifact:Artifact")
"""What a manifest says of an artifact without a kind of its own; the name is from before 0.3."""


def known_kind(manifest: Manifest) -> Kind:
    """The kind of an artifact, as far as this process knows it: plain `Artifact` without one.

    Raises:
        TemperError: it is not known here, or is no kind.
    """
    if manifest.kind in _PLAIN:
        return Artifact
    if not is_known(str(manifest.kind)):
        raise TemperError(f"the kind {manifest.kind} is not of code that is imported here")
    return as_kind(manifest.kind, resolve_reference)


def is_known(reference: str) -> bool:
    """Whether ``module:name`` is in a module that is imported, or that ships with Temper."""
    module = reference.partition(":")[0]
    return is_reference(reference) and (module in sys.modules or is_shipped(module))


def is_shipped(module: str) -> bool:
    """Whether a module is part of Temper or of its step library, and not another of that name."""
    top, *below = module.split(".")
    if top not in SHIPPED:
        return False
    spec = importlib.util.find_spec(top)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    if not folders or Path(folders[0]).resolve() != ROOT / top:
        return False
    place = (ROOT / top).joinpath(*below)
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def as_kind(reference: str, load: Callable[[str], Any]) -> Kind:
    """What a reference names, if that is a kind.

    Raises:
        TemperError: it is none.
    """
    try:
        found = load(reference)
    except (ImportError, AttributeError) as error:
        raise TemperError(f"the kind {reference} is not there any more ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Artifact)):
        raise TemperError(f"{reference} is no kind of Artifact")
    return found
