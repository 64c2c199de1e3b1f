"""What a person calls an artifact: ``STEP`` is the newest of a step, ``STEP@KEY`` one by its key.

The key may be cut short as long as it means one artifact. Of a key that was made several times, the
latest generation is meant.
"""

from collections.abc import Collection

from pipeline.catalog import Catalog
from pipeline.errors import TemperError
from pipeline.manifest import Manifest

SHOWN_DIGITS = 8
_MOST_NAMES = 8


def find(catalog: Catalog, name: str) -> Manifest:
    """The artifact that is called ``STEP`` or ``STEP@KEY``.

    Raises:
        TemperError: there is none, or several have a key that begins so.
    """
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
