"""What a person calls an artifact: ``STEP`` is the newest of a step, ``STEP@KEY`` one by its key,
``EXPERIMENT/RESULT`` what the newest run of an experiment made under that name.

The key may be cut short as long as it means one artifact. Of a key that was made several times, the
latest generation is meant.
"""

from collections.abc import Collection

from pipeline.errors import TemperError
from pipeline.store.catalog import Catalog
from pipeline.store.latest import find_result
from pipeline.store.manifest import Manifest

SHOWN_DIGITS = 8
_MOST_NAMES = 8


def find(catalog: Catalog, name: str) -> Manifest:
    """The artifact that is called ``STEP``, ``STEP@KEY`` or ``EXPERIMENT/RESULT``.

    Raises:
        TemperError: there is none, or several have a key that begins so.
    """
    if "/" in name:
        return find_result(catalog, name)
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
        TemperError: saying which, and that a run makes it again.
    """
    if (loss := catalog.loss(manifest)) is not None:
        raise TemperError(
            f"the data of {manifest.name} is {loss.value}; a run that asks for it makes it again"
        )


def by_key(catalog: Catalog, name: str) -> str:
    """``EXPERIMENT/RESULT`` as ``STEP@KEY``; other names as they are."""
    if "/" not in name:
        return name
    found = find_result(catalog, name)
    return f"{found.step}@{found.key}"


def unknown_step(catalog: Catalog, step: str) -> TemperError:
    """What to say where a store has nothing of a step."""
    if step and catalog.unreadable([step]):
        return TemperError(f"what there is of {step!r} cannot be read; see: temper verify {step}")
    known = ", ".join(catalog.store.steps()) or "nothing yet"
    return TemperError(
        f"the store {catalog.store.url} has no artifact of {step!r}; it has: {known}"
    )


def require_one_key(step: str, prefix: str, keys: Collection[str]) -> None:
    """
    Raises:
        TemperError: several keys begin so; names them.
    """
    if len(keys) > 1:
        digits = max(SHOWN_DIGITS, len(prefix) + 4)
        names = [f"{step}@{key[:digits]}" for key in sorted(keys)]
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        raise TemperError(
            f"{step}@{prefix} may be {', '.join(names[:_MOST_NAMES])}{more}; give more of the key"
        )
