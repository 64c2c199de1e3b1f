"""Finds the kind of an artifact from its manifest, if no driver knows it.

A store never chooses what is imported. A manifest names the kind of its artifact, but a manifest
may be forged. So a kind is taken only from modules that this process has imported anyway and from
the shipped step library, and only if it really is a kind. The command line, which has no
experiment, may search further; see :mod:`pipeline.cli.step_lookup`.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.dag.artifact import Artifact, Kind
from pipeline.dag.canonical import resolve_reference
from pipeline.store.manifest import Manifest
from pipeline.store.untrusted_input import is_reference
from pipeline.uncaught.user_errors import ROOT, SHIPPED

_PLAIN = (None, "pipeline.dag.artifact:Artifact")
"""The kind in the manifest of an artifact without a kind of its own; the name dates from 0.2."""


def known_kind(manifest: Manifest) -> Kind:
    """The kind of an artifact, if this process knows it; plain `Artifact` if it has none.

    Raises:
        TemperError: the kind is unknown here, or is no kind.
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
    """Whether a module is part of Temper or of its step library, and not another with that name."""
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
    """Load a reference, and require that it is a kind.

    Raises:
        TemperError: it is no kind.
    """
    try:
        found = load(reference)
    except (ImportError, AttributeError) as error:
        raise TemperError(f"the kind {reference} is not there any more ({error})") from error
    if not (isinstance(found, type) and issubclass(found, Artifact)):
        raise TemperError(f"{reference} is no kind of Artifact")
    return found
