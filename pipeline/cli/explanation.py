"""Explains an artifact: why it was made, from which inputs, and which artifacts use it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cli.step_lookup import NotImportable, home_in, project_with
from pipeline.observed.discovery import Present, described
from pipeline.observed.neutral import neutral_trace
from pipeline.plan.rerun_reasons import History
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.names.tags import tags_of


@dataclass(frozen=True)
class Explanation:
    """The facts about an artifact.

    Attributes:
        nearest: of the artifacts that the step made earlier, the one with the fewest differences.
        state: whether what it depends on has changed, in words.
        uses: the artifacts that used it as an input.
        discovered: a line for each dependency that was found while the step ran.
        outdated: the discovered dependencies that have changed, in words.
        tags: the names that users gave it.
    """

    manifest: Manifest
    nearest: Manifest | None
    state: str
    uses: Sequence[Manifest]
    discovered: Sequence[str]
    outdated: Sequence[str]
    tags: Sequence[str]


def explain_artifact(catalog: Catalog, manifest: Manifest) -> Explanation:
    """Collect the facts about an artifact; costs a few requests for each step name."""
    accepted, option = catalog.store.accepted(manifest.step), ""
    try:
        home = home_in(project_with(catalog.store, manifest.step), manifest)
    except NotImportable as error:
        unknown, outdated = str(error), list[str]()
    else:
        present, unknown = Present(), ""
        outdated = present.changes(home, manifest.discovered, lambda: accepted)
        if outdated and neutral_trace(home, manifest.discovered, present):
            option = "--neutral "
    return Explanation(
        manifest=manifest,
        nearest=_nearest_before(catalog, manifest),
        state=_state(manifest, unknown, outdated, option),
        uses=[other for other in catalog.everything() if _is_made_from(other, manifest)],
        discovered=described(manifest.discovered),
        outdated=outdated,
        tags=tags_of(catalog.store).get((manifest.step, manifest.attempt), ()),
    )


def _state(manifest: Manifest, unknown: str, outdated: Sequence[str], option: str) -> str:
    if unknown:
        return f"whether that has changed is not known: {unknown}"
    if not outdated:
        return "nothing of that has changed, or the change is accepted"
    if manifest.made_by:
        return "it has changed; the version has not, so it is cached"
    return f"it has changed; temper accept {option}{manifest.step} if that makes no difference"


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
    history = History(of_other_runs or earlier)
    experiment = str(manifest.provenance.get("experiment") or "")
    close = history.nearest(recipe, names, experiment)
    return close.manifest if close else None


def _is_made_from(other: Manifest, manifest: Manifest) -> bool:
    """Compare the content too: another generation of the key may have had other content."""
    return any(
        (entry.step, entry.key) == (manifest.step, manifest.key)
        and entry.digest == manifest.digest_of(entry.part)
        for entry in other.inputs
    )
