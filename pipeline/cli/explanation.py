"""Explains an artifact: why it was made, from which inputs, and which artifacts use it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cli.present import NotImportable, PresentCode, present_code
from pipeline.dag.canonical import Json
from pipeline.observed.discovery import Present, discovered_lines
from pipeline.plan.rerun_reasons import History, code_changes
from pipeline.store.accepted import equal_states
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest


@dataclass(frozen=True)
class Explanation:
    """The facts about an artifact.

    Attributes:
        nearest: of the artifacts that the step made earlier, the one with the fewest differences.
        code: how the present code relates to the artifact, in words.
        changed_code: the functions that differ from the present code.
        uses: the artifacts that used it as an input.
        discovered: a line for each dependency that was found while the step ran.
        outdated: the discovered dependencies that have changed, in words.
    """

    manifest: Manifest
    nearest: Manifest | None
    code: str
    changed_code: Sequence[str]
    uses: Sequence[Manifest]
    discovered: Sequence[str]
    outdated: Sequence[str]


def explain_artifact(catalog: Catalog, manifest: Manifest) -> Explanation:
    """Collect the facts about an artifact; costs a few requests for each step name."""
    try:
        present = present_code(manifest, catalog.store)
    except NotImportable as error:
        code, changes = f"the present code cannot be looked at: {error}", list[str]()
        outdated: list[str] = []
    else:
        pairs = catalog.store.accepted(manifest.step)
        code, changes = _present_code(manifest, present, pairs)
        outdated = Present().changes(present.home, manifest.discovered, lambda: pairs)
    return Explanation(
        manifest=manifest,
        nearest=_nearest_before(catalog, manifest),
        code=code,
        changed_code=changes,
        uses=[other for other in catalog.everything() if _is_made_from(other, manifest)],
        discovered=discovered_lines(manifest.discovered),
        outdated=outdated,
    )


def _nearest_before(catalog: Catalog, manifest: Manifest) -> Manifest | None:
    earlier = [
        other
        for other in catalog.history(manifest.step)
        if other.attempt < manifest.attempt and other.key != manifest.key
    ]
    run = manifest.provenance.get("run")
    of_other_runs = [other for other in earlier if other.provenance.get("run") != run]
    names = {entry.digest: f"{entry.step}@{entry.key}" for entry in manifest.inputs}
    recipe: Any = manifest.recipe
    history = History(of_other_runs or earlier, recipe.get("encoding"))
    experiment = str(manifest.provenance.get("experiment") or "")
    close = history.nearest(recipe, manifest.code, names, experiment=experiment)
    return close.manifest if close else None


def _present_code(
    manifest: Manifest, present: PresentCode, pairs: Sequence[tuple[Json, Json]]
) -> tuple[str, list[str]]:
    """How the present code relates to an artifact, in words, and what has changed."""
    changes = code_changes(manifest.code, present.code) if manifest.code and present.code else []
    equal = equal_states(manifest.made_by, pairs)
    if present.made_by != manifest.made_by and present.made_by in equal:
        return "the present code differs, and is accepted as equal", changes
    hint = f"temper accept {manifest.step} if that makes no difference"
    if present.made_by == manifest.made_by:
        version = manifest.made_by.get("version")
        if version is not None and not (manifest.code and present.code):
            return f"version {version!r} is the present one; the code itself is not on record", []
        if not changes:
            return "the present code is what made it", []
        return f"the present code differs; version {version!r} does not, so it is cached", changes
    if "version" in manifest.made_by or "version" in present.made_by:
        old, new = (m.get("version", "none") for m in (manifest.made_by, present.made_by))
        return f"the declared version is another now: {old} → {new}; {hint}", changes
    return f"the present code differs; {hint}", changes


def _is_made_from(other: Manifest, manifest: Manifest) -> bool:
    """Compare the content too: another generation of the key may have had other content."""
    return any(
        (entry.step, entry.key) == (manifest.step, manifest.key)
        and entry.digest == manifest.digest_of(entry.part)
        for entry in other.inputs
    )
