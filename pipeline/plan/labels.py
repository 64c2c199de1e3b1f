"""Display names of the steps of a DAG: ``train_sft (no code)``.

The label in parentheses is the first of these that exists:

1. the name that the author gave the step (``step.named("no code")``), or the name of its result;
2. the only readable setting in which it differs from other steps of its name, such as
   ``beta=0.05``;
3. the name of the only result or named step that uses its output: that is clearer than many
   settings;
4. the name of the only named step among its ancestors;
5. the few settings in which it differs.

If a DAG has only one step of a name, that step has a label only if somebody named it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from pipeline.dag.step import Step
from pipeline.plan import variants
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.runs import planned_labels

_HEXADECIMAL = re.compile(r"[0-9a-f]{8}")


def labels(steps: Sequence[Step], results: Mapping[str, str]) -> dict[str, str]:
    """The label of each step, by fingerprint; it distinguishes the step from others of its name.

    Args:
        steps: all steps of a DAG, inputs before the steps that use them.
        results: the names of the steps that are results, by fingerprint.
    """
    nodes = variants.of_steps(steps)
    given = {step.fingerprint: step.label for step in steps if step.label}
    own = {**given, **results}
    above = {step.fingerprint: [i.step.fingerprint for i in step.inputs] for step in steps}
    derived = _only_names(above, own) | _only_names(_turned(above), own)
    distinguishing = variants.distinguishing_settings(nodes)
    found = dict.fromkeys(nodes, "") | given
    for group in variants.groups(nodes):
        if len(group) > 1:
            found |= _labels_of_group(group, own, derived, distinguishing)
    return variants.numbered(found, nodes)


def recorded_labels(store: Store, manifests: Sequence[Manifest]) -> dict[str, str]:
    """What distinguishes artifacts of one step, by attempt: the label in the plan of the run that
    made it, and the settings in which it differs if there is no such label or others share it."""
    nodes = variants.of_manifests(manifests)
    differing = variants.distinguishing_settings(nodes)
    settings = {attempt: variants.label(of) for attempt, of in differing.items()}
    times = Counter(made.step for made in manifests)
    planned = planned_labels(store, [made for made in manifests if times[made.step] > 1])
    found = {attempt: planned.get(attempt, settings[attempt]) for attempt in nodes}
    shared = Counter((made.step, found[made.attempt]) for made in manifests)
    for made in manifests:
        label, more = found[made.attempt], settings[made.attempt]
        if shared[made.step, label] > 1 and label != more:
            found[made.attempt] = f"{label} {more}".strip()
    return variants.numbered(found, nodes)


def _labels_of_group(
    group: Sequence[str],
    own: Mapping[str, str],
    derived: Mapping[str, str],
    distinguishing: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """The labels of several nodes of one step. If nodes share a derived label, their settings are
    appended."""
    settings = {node: variants.label(distinguishing[node]) for node in group}
    found = {
        node: own.get(node)
        or (_is_readable(distinguishing[node]) and settings[node])
        or derived.get(node)
        or settings[node]
        for node in group
    }
    times = Counter(found.values())
    for node in group:
        if times[found[node]] > 1 and found[node] == derived.get(node) and node not in own:
            found[node] = f"{found[node]} {settings[node]}".strip()
    return found


def _is_readable(settings: Mapping[str, str]) -> bool:
    """Whether there is only one setting, which is neither an item of a list nor a digest."""
    return len(settings) == 1 and not any(
        "[" in path or _HEXADECIMAL.fullmatch(value) for path, value in settings.items()
    )


def _turned(above: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The graph with reversed edges: the nodes that use each node, the last nodes first."""
    below: dict[str, list[str]] = {node: [] for node in reversed([*above])}
    for node, inputs in above.items():
        for reference in inputs:
            below[reference].append(node)
    return below


def _only_names(beside: Mapping[str, Iterable[str]], own: Mapping[str, str]) -> dict[str, str]:
    """For each node, the name of the nearest named nodes in one direction, if there is only one.

    Args:
        beside: the neighbours of each node in that direction; neighbours come before the node.
    """
    reached: dict[str, frozenset[str]] = {}
    for node, neighbours in beside.items():
        names = (frozenset([own[n]]) if n in own else reached[n] for n in neighbours)
        # two names are enough to know that there is not only one
        reached[node] = frozenset(islice(frozenset().union(*names), 2))
    return {node: next(iter(names)) for node, names in reached.items() if len(names) == 1}
