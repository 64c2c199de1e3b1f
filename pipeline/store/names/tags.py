"""Tags: names that people give to artifacts, as ``v1``. Each is one object, ``tags/<name>.json``.

A tag names one generation of a key, by its attempt and digest. ``temper gc`` keeps that artifact
and what it was made from, and ``temper evict`` refuses it. A tag is written, and an artifact
deleted, under the lease of the artifact's key, so neither happens in the middle of the other.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.redaction import exact_record
from pipeline.dag.digests import file_digests
from pipeline.dag.inputs import RESOLVERS
from pipeline.store.activity import alone_with
from pipeline.store.catalog import Catalog
from pipeline.store.layout import DataLoss, Store, open_store
from pipeline.store.manifest import Manifest
from pipeline.store.untrusted_input import (
    is_attempt,
    is_count,
    is_key,
    is_step,
    is_tag,
    is_time,
    parse_json,
)

_SUFFIX = ".json"
_FORMS = {
    "step": is_step,
    "key": is_key,
    "generation": is_count,
    "attempt": is_attempt,
    "digest": is_key,
    "time": is_time,
}


@dataclass(frozen=True)
class Tag:
    """A name, and the artifact that it names; ``time`` is when it was given, in UTC."""

    name: str
    step: str
    key: str
    generation: int
    attempt: str
    digest: str
    time: str

    @property
    def artifact(self) -> str:
        """``STEP@KEY``, as in :attr:`Manifest.name`."""
        return f"{self.step}@{self.key[:8]}"


def read_tag(store: Store, name: str) -> Tag | None:
    """The tag of this name; ``None`` if there is none.

    Raises:
        TemperError: it cannot be read, or is damaged.
    """
    if not is_tag(name) or (data := store.read(_path(store, name))) is None:
        return None
    found: Any = None
    with contextlib.suppress(ValueError):
        found = parse_json(data)
    if not isinstance(found, dict) or not all(form(found.get(f)) for f, form in _FORMS.items()):
        raise TemperError(
            f"{store.url_of(_path(store, name))} is damaged; delete it with "
            f"temper tag --delete {name}, and tag the artifact again"
        )
    return Tag(name, **{field: found[field] for field in _FORMS})


def read_tags(store: Store) -> tuple[list[Tag], list[TemperError]]:
    """All tags of a store by name, and the errors of those that are damaged."""
    found, damaged = list[Tag](), list[TemperError]()
    for entry in store.listing(f"{store.root}/tags"):
        name = entry.name.removesuffix(_SUFFIX)
        try:
            if entry.name.endswith(_SUFFIX) and (tag := read_tag(store, name)) is not None:
                found.append(tag)
        except TemperError as error:
            damaged.append(error)
    return sorted(found, key=lambda tag: tag.name), damaged


def tags_of(store: Store) -> dict[tuple[str, str], list[str]]:
    """The names of each tagged artifact, by step and attempt, to show them; damaged tags show
    nothing."""
    names: dict[tuple[str, str], list[str]] = {}
    for tag in read_tags(store)[0]:
        names.setdefault((tag.step, tag.attempt), []).append(tag.name)
    return names


def pinned(store: Store) -> Mapping[tuple[str, str], list[str]]:
    """The same, before something is deleted.

    Raises:
        TemperError: a tag is damaged, so what it keeps is not known.
    """
    for error in read_tags(store)[1]:
        raise error
    return tags_of(store)


def require_untagged(store: Store, manifests: Iterable[Manifest]) -> None:
    """
    Raises:
        TemperError: one of the artifacts is tagged, or a tag is damaged.
    """
    names = pinned(store)
    for manifest in manifests:
        if tagged := names.get((manifest.step, manifest.attempt)):
            raise TemperError(
                f"{manifest.name} is tagged {', '.join(tagged)} and keeps its data; to let go of "
                f"it: temper tag --delete {tagged[0]}"
            )


def artifact_of(catalog: Catalog, tag: Tag) -> Manifest:
    """The artifact that a tag names.

    Raises:
        TemperError: it is not in the store, or not what was tagged.
    """
    for made in catalog.generations(tag.step, tag.key):
        if (made.attempt, made.digest) == (tag.attempt, tag.digest):
            return made
    raise TemperError(
        f"the tag {tag.name} names {tag.artifact}, of {tag.time}, which is not in the store "
        f"{catalog.store.url}; to let go of it: temper tag --delete {tag.name}"
    )


def set_tag(store: Store, name: str, manifest: Manifest, force: bool = False) -> Tag:
    """Give an artifact a name.

    Args:
        force: whether a name of another artifact may be moved to this one.

    Raises:
        TemperError: the name is invalid or taken, the artifact has no data, or it is being made or
            deleted.
    """
    if not is_tag(name):
        raise TemperError(
            f"{name!r} is no name for a tag: give letters, digits, and . - _ after the first, at "
            "most 100"
        )
    if name in store.steps():
        raise TemperError(f"{name} is a step of this store; give the tag another name")
    stamp = time.strftime("%FT%TZ", time.gmtime())
    place = manifest.step, manifest.key, manifest.generation
    tag = Tag(name, *place, manifest.attempt, manifest.digest, stamp)
    data = exact_record({field: value for field, value in asdict(tag).items() if field in _FORMS})
    with alone_with(store, manifest.step, manifest.key, "temper tag") as alone:
        if not alone:
            raise TemperError(
                f"{manifest.name} is being made or deleted now, so it cannot be tagged; try again "
                "later (temper status)"
            )
        marks = (store.manifest_path(*place, loss) for loss in DataLoss)
        if store.manifest(*place) != manifest or any(store.read(mark) for mark in marks):
            raise TemperError(f"the data of {manifest.name} is gone, so it cannot be tagged")
        with store.writing():
            if store.objects.create(_path(store, name), data):
                return tag
            if not force:
                known = read_tag(store, name)
                if known and (known.step, known.attempt) == (tag.step, tag.attempt):
                    return known
                of = f"{known.artifact}, tagged {known.time}" if known else "another artifact"
                raise TemperError(f"{name} is the tag of {of}; to move it, add --force")
            store.objects.replace(_path(store, name), data)
    return tag


def delete_tag(store: Store, name: str) -> None:
    """Let go of a name; the artifact stays, and may be collected from now on."""
    if not is_tag(name) or store.read(_path(store, name)) is None:
        raise no_tag(store, name)
    with store.writing():
        store.objects.remove(_path(store, name))


def no_tag(store: Store, name: str) -> TemperError:
    known = ", ".join(tag.name for tag in read_tags(store)[0]) or "none"
    return TemperError(f"there is no tag {name!r} in the store {store.url}; it has: {known}")


def tagged_content(name: str) -> str | None:
    """The address of the content of a tagged artifact of the present store, for a :class:`File`;
    ``None`` if there is no such tag.

    Raises:
        TemperError: its data is lost or damaged, so it is not what was tagged.
    """
    store = open_store(None)
    if (tag := read_tag(store, name)) is None:
        return None
    made = artifact_of(Catalog(store), tag)
    sizes, others = store.contents([made])[made.attempt]
    path = store.content_path(made)
    intact = not others and sizes == {n: entry.size for n, entry in made.files.items()}
    if intact and store.is_local:
        found = file_digests([f"{path}/{n}" for n in made.files])
        intact = found == [entry.blake3 for entry in made.files.values()]
    if not intact:
        raise TemperError(
            f"the data of {made.name}, which is tagged {name}, is lost or damaged; see: "
            f"temper verify {name}"
        )
    return store.url_of(path)


def _path(store: Store, name: str) -> str:
    return f"{store.root}/tags/{name}{_SUFFIX}"


RESOLVERS.append(tagged_content)
