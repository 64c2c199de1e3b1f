"""The names of artifacts on the command line: ``STEP`` is the newest of a step, ``STEP@KEY`` the
one with this key, ``EXPERIMENT/RESULT`` the result of this name of the experiment's newest run, and
a tag the artifact to which ``temper tag`` gave it.

A key may be shortened as long as it is unambiguous. If a key was made several times, its name means
the latest generation.
"""

from collections.abc import Collection

from pipeline.base.errors import TemperError
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.names.result_names import find_result
from pipeline.store.names.tags import artifact_of, read_tag

SHOWN_DIGITS = 8
_MOST_NAMES = 8


def find(catalog: Catalog, name: str) -> Manifest:
    """The artifact of the name ``STEP``, ``STEP@KEY`` or ``EXPERIMENT/RESULT``, or of a tag.

    Raises:
        TemperError: there is none, or the beginning of the key is ambiguous.
    """
    if "/" in name:
        return find_result(catalog, name)
    if (tag := read_tag(catalog.store, name)) is not None:
        return artifact_of(catalog, tag)
    step, _, prefix = name.partition("@")
    history = catalog.history(step)
    found = [manifest for manifest in history if manifest.key.startswith(prefix)]
    if not history:
        raise unknown_step(catalog, step)
    if not found:
        raise TemperError(
            f"no artifact of {step} has a key that begins with {prefix}; see: temper list {step}"
        )
    if prefix:
        require_one_key(step, prefix, {manifest.key for manifest in found})
    latest = catalog.latest(step, found[-1].key)
    assert latest is not None  # it is in the catalog's own history
    return latest


def require_unmarked(catalog: Catalog, manifest: Manifest) -> None:
    """Refuse an artifact that is marked as evicted or damaged.

    Raises:
        TemperError: the artifact is marked.
    """
    if (loss := catalog.loss(manifest)) is not None:
        raise TemperError(
            f"the data of {manifest.name} is {loss.value}; a run that asks for it makes it again"
        )


def by_key(catalog: Catalog, name: str) -> str:
    """``STEP@KEY`` for a name ``EXPERIMENT/RESULT`` or a tag; other names stay as they are."""
    if "/" not in name and read_tag(catalog.store, name) is None:
        return name
    found = find(catalog, name)
    return f"{found.step}@{found.key}"


def unknown_step(catalog: Catalog, step: str) -> TemperError:
    """The error for a step without artifacts in the store."""
    if step and catalog.unreadable([step]):
        return TemperError(f"what there is of {step!r} cannot be read; see: temper verify {step}")
    known = ", ".join(catalog.store.steps()) or "nothing yet"
    return TemperError(
        f"the store {catalog.store.url} has no artifact of {step!r}; it has: {known}"
    )


def require_one_key(step: str, prefix: str, keys: Collection[str]) -> None:
    """
    Raises:
        TemperError: several keys begin with the prefix.
    """
    if len(keys) > 1:
        digits = max(SHOWN_DIGITS, len(prefix) + 4)
        names = [f"{step}@{key[:digits]}" for key in sorted(keys)]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise TemperError(
            f"{step}@{prefix} may be {', '.join(names[:_MOST_NAMES])}{more}; give more of the key"
        )
