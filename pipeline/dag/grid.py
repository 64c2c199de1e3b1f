"""Sweeps: many configs from one.

This module does not know steps. A sweep is a loop in an experiment. Steps that several variants
share run once, because equal steps are one step:

    for name, variant in grid(cfg, {"dpo.loss.beta": [0.05, 0.1]}, seed=[0, 1]).items():
        results[name] = my_experiment(variant)["evaluation"]    # "beta=0.05 seed=0", …

    rich.print(compare(run(results), ["eval_rewards/margins"]))
"""

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pipeline.base.errors import TemperError
from pipeline.base.text import hint

T = TypeVar("T")


def grid(
    base: T, axes: Mapping[str, Sequence[Any]] | None = None, /, **fields: Sequence[Any]
) -> dict[str, T]:
    """Every combination of values of some fields, each as a copy of ``base`` with these values.

    Args:
        base: a config dataclass, which stays unchanged.
        axes: the values of each field; a nested field is given by its path, as in
            ``{"optimizer.learning_rate": [1e-6, 5e-6]}``.
        fields: the same for fields of ``base`` itself, as in ``beta=[0.05, 0.1]``.

    Returns: Configs by name, such as ``beta=0.05 learning_rate=1e-06``, in the order of the axes;
        the last axis varies fastest. A name has the field's full path if two paths end alike.

    Raises:
        TemperError: there is no such field, an axis is no list of different values, or the config
            refuses a value.
    """
    require_config(base, "grid")
    axes = _checked_axes(axes)
    if twice := axes.keys() & fields.keys():
        raise TemperError(f"grid: {', '.join(sorted(twice))} is given twice")
    axes |= fields
    require_apart(axes, "grid")
    shown = shown_names(axes)
    labelled = [_labelled(base, path, values, shown[path]) for path, values in axes.items()]
    variants: dict[str, T] = {}
    for choice in itertools.product(*labelled):
        config: Any = base
        for path, (label, value) in zip(axes, choice, strict=True):
            config = replaced(config, path, value, label)
        variants[" ".join(label for label, _ in choice)] = config
    return variants


# --- the axes of a grid --------------------------------------------------------------------------


def _checked_axes(axes: Any) -> dict[str, Sequence[Any]]:
    if axes is not None and not isinstance(axes, Mapping):
        kind = type(axes).__name__
        raise TemperError(f"grid: the axes are a {kind}; give a dict, as {{'optimizer.beta': […]}}")
    for path in axes or {}:
        if not isinstance(path, str):
            raise TemperError(f"grid: {path!r} is no field's name; name it as text, as in 'seed'")
    return dict(axes or {})


def require_config(base: Any, caller: str) -> None:
    """
    Raises:
        TemperError: it is no config dataclass.
    """
    if not dataclasses.is_dataclass(base) or isinstance(base, type):
        raise TemperError(
            f"{caller}: the base is of the type {type(base).__name__}, which is no config "
            "dataclass, whose fields could be varied; give one made of its class, as Config()"
        )


def require_apart(paths: Iterable[str], caller: str) -> None:
    """
    Raises:
        TemperError: one field lies within another, so that one value would replace both.
    """
    for outer, inner in itertools.permutations(paths, 2):
        if inner.startswith(f"{outer}."):
            raise TemperError(f"{caller}: {inner} lies within {outer}; vary one of them")


def shown_names(paths: Iterable[str]) -> dict[str, str]:
    """The display name of each field: the end of its path, or all of it if two paths end alike."""
    ends = {path: path.rpartition(".")[2] for path in paths}
    ambiguous = {end for end in ends.values() if list(ends.values()).count(end) > 1}
    return {path: path if end in ambiguous else end for path, end in ends.items()}


def _labelled(base: Any, path: str, values: Any, shown: str) -> list[tuple[str, Any]]:
    """The values of one axis, each with its label."""
    require_field(base, path)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not values:
        raise TemperError(f"grid: {path}={values!r}; give a list of values, as in {path}=[…]")
    texts = [value.name if isinstance(value, enum.Enum) else str(value) for value in values]
    labels = [f"{shown}={text}" for text in texts]
    for label in labels:
        if labels.count(label) > 1:
            raise TemperError(f"grid: {path} is to be {label.partition('=')[2]} more than once")
    return list(zip(labels, values, strict=True))


def _paths(config: Any, prefix: str = "") -> Iterator[str]:
    """The paths of all fields, including those of nested dataclasses."""
    for field in dataclasses.fields(config):
        if not field.init:
            continue
        yield f"{prefix}{field.name}"
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _paths(value, f"{prefix}{field.name}.")


def replaced(config: Any, path: str, value: Any, label: str) -> Any:
    """A copy of a config dataclass with another value of the field at a path.

    Args:
        label: names the value in an error if the config refuses it.

    Raises:
        TemperError: there is no such field, or the config refuses the value.
    """
    require_field(config, path)
    name, _, rest = path.partition(".")
    if rest:
        value = replaced(getattr(config, name), rest, value, label)
    try:
        return dataclasses.replace(config, **{name: value})
    except (ValueError, TypeError) as error:  # raised by its __post_init__
        raise TemperError(f"{type(config).__name__} refuses {label}: {error}") from error


def require_field(config: Any, path: str) -> None:
    if path not in (known := list(_paths(config))):
        kind = type(config).__name__
        raise TemperError(f"{kind} has no field {path!r}; {hint(path, known)}")
