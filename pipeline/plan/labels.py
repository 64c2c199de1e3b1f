"""What the steps of a DAG are called: ``train_sft (no code)``.

The first of these that there is:

1. the name that its author gave it (``step.named("no code")``), or under which it is a result;
2. the one readable setting in which it differs from the others of its step, as ``beta=0.05``;
3. the only result or named step that it is for: what it was made for says more than many settings;
4. the only named step that it was made from;
5. the few settings in which it differs.

The only one of a step needs no label, and has one only if somebody named it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from pipeline.dag.step import Step
from pipeline.plan import variants

_HEXADECIMAL = re.compile(r"[0-9a-f]{8}")


def labels(steps: Sequence[Step], results: Mapping[str, str]) -> dict[str, str]:
    """What tells each step apart from others of its name, by fingerprint.

    Args:
        steps: all of a DAG, inputs before what uses them.
        results: the names of those that are results, by fingerprint.
    """
    nodes = variants.of_steps(steps)
    given = {step.fingerprint: step.label for step in steps if step.label}
    own = {**given, **results}
    above = {step.fingerprint: [i.step.fingerprint for i in step.inputs] for step in steps}
    derived = _only_names(above, own) | _only_names(_turned(above), own)
    told = variants.told_apart(nodes)
    found = dict.fromkeys(nodes, "") | given
    for group in variants.groups(nodes):
        if len(group) > 1:
            found |= _labels_of_group(group, own, derived, told)
    return variants.numbered(found, nodes)


def _labels_of_group(
    group: Sequence[str],
    own: Mapping[str, str],
    derived: Mapping[str, str],
    told: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """The labels of several nodes of a step. A derived one that several share is told apart by
    their settings."""
    settings = {node: variants.label(told[node]) for node in group}
    found = {
        node: own.get(node)
        or (_is_readable(told[node]) and settings[node])
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
    """Whether it is one setting, no place in a list, and no digest."""
    return len(settings) == 1 and not any(
        "[" in path or _HEXADECIMAL.fullmatch(value) for path, value in settings.items()
    )


def _turned(above: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """What is made from each node, the last nodes first."""
    below: dict[str, list[str]] = {node: [] for node in reversed([*above])}
    for node, inputs in above.items():
        for reference in inputs:
            below[reference].append(node)
    return below


def _only_names(beside: Mapping[str, Iterable[str]], own: Mapping[str, str]) -> dict[str, str]:
    """For each node, the only name that the nearest named ones on one side have.

    Args:
        beside: the neighbours of each node on that side, in an order in which they come first.
    """
    reached: dict[str, frozenset[str]] = {}
    for node, neighbours in beside.items():
        names = (frozenset([own[n]]) if n in own else reached[n] for n in neighbours)
        reached[node] = frozenset(
            islice(frozenset().union(*names), 2)
        )  # several are as good as two
    return {node: next(iter(names)) for node, names in reached.items() if len(names) == 1}
