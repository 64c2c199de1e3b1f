"""Compares a plan with the tags that ``Step.expect`` names."""

from collections.abc import Iterable

from pipeline.base.errors import TemperError
from pipeline.dag.step import Step
from pipeline.plan.planning import Plan
from pipeline.store.catalog import Catalog
from pipeline.store.names.tags import artifact_of, no_tag, read_tag


def require_expected(plan: Plan, catalog: Catalog, steps: Iterable[Step]) -> None:
    """
    Args:
        steps: those whose expectations, and those of the steps above them, count.

    Raises:
        TemperError: a step of the plan is expected to have the artifact of a tag, and has another
            or none yet, or there is no such tag.
    """
    planned = {one.step.fingerprint: one for one in plan.steps}
    for fingerprint, name in sorted(
        frozenset[tuple[str, str]]().union(*(s.expected for s in steps))
    ):
        if (one := planned.get(fingerprint)) is None:  # `only` has left it out
            continue
        if (tag := read_tag(catalog.store, name)) is None:
            raise no_tag(catalog.store, name)
        made = artifact_of(catalog, tag)
        if one.manifest is None:
            would = f"this plan would make it anew ({one.reason})"
        elif one.manifest.digest != made.digest:
            would = f"this plan has {one.manifest.name}"
        else:
            continue
        raise TemperError(
            f"{one.step.name} is expected to be {name}, which is {made.name}, and {would}; undo "
            f"what changed, or run without .expect({name!r}) and move the tag: temper tag "
            f"{one.step.name} {name} --force"
        )
