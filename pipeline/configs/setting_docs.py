"""Reads the meaning of each setting of a config from the docstring of its dataclass.

    @dataclass
    class KlConfig:
        \"""How much is drawn.

        Args:
            prompts: how many held-out prompts are answered.
        \"""

A dataclass inherits the descriptions of its base classes' fields.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns):$")
_ENTRY = re.compile(r"^(\w+(?:, \w+)*): +(.*)$")


@dataclass(frozen=True)
class Setting:
    """One setting of a config: its dotted name, its value, and its meaning."""

    name: str
    value: Any
    meaning: str


@dataclass(frozen=True)
class Group:
    """The settings of one dataclass, with the path of the dataclass in the config."""

    path: str
    kind: type
    meaning: str
    settings: tuple[Setting, ...]


def explained(config: DictConfig, path: str = "", meaning: str = "") -> Iterator[Group]:
    """The settings of a composed config, grouped by dataclass, outer dataclasses first."""
    kind = OmegaConf.get_type(config) or dict
    meanings = meanings_of(kind)
    inner: list[tuple[str, str, DictConfig]] = []
    settings: list[Setting] = []
    for key in config:
        node, name = config._get_node(key), f"{path}.{key}" if path else str(key)
        told = meanings.get(str(key), "")
        if isinstance(node, DictConfig) and _is_config(node):
            inner.append((name, told, node))
        else:
            value = _value(config, key)
            settings.append(Setting(name, value, told + _one_of(value)))
    yield Group(path, kind, meaning, tuple(settings))
    for name, meaning, node in inner:
        yield from explained(node, name, meaning)


def _is_config(node: DictConfig) -> bool:
    kind = OmegaConf.get_type(node)
    return not node._is_none() and not node._is_missing() and kind is not dict


def _one_of(value: Any) -> str:
    """The possible values of a setting, if it is an enum."""
    if not isinstance(value, Enum):
        return ""
    return f" One of {', '.join(one.name for one in type(value))}."


def _value(config: DictConfig, key: Any) -> Any:
    if OmegaConf.is_missing(config, key):
        return "???"
    value = config[key]
    return OmegaConf.to_container(value, enum_to_str=True) if OmegaConf.is_config(value) else value


def meanings_of(kind: type) -> dict[str, str]:
    """The descriptions of a dataclass's fields, from its docstring and its bases'."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= dict(arguments_in(vars(base).get("__doc__") or ""))
    return found


def arguments_in(docstring: str) -> Iterator[tuple[str, str]]:
    """Each name under ``Args:`` or ``Attributes:`` of a docstring, with its description."""
    lines = inspect.cleandoc(docstring).splitlines()
    sections = [n for n, line in enumerate(lines) if line in ("Args:", "Attributes:")]
    for start in sections:
        entries: list[list[str]] = []
        for line in lines[start + 1 :]:
            if line and not line.startswith("    "):
                break
            if _ENTRY.match(line[4:]):
                entries.append([line[4:]])
            elif entries and line.strip():
                entries[-1].append(line.strip())
        for entry in entries:
            names, meaning = _ENTRY.match(" ".join(entry)).groups()  # type: ignore[union-attr]
            yield from ((name, _plain(meaning)) for name in names.split(", "))


def summary_of(kind: type) -> str:
    """The first paragraph of a class's docstring; empty if it has none."""
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    paragraph = re.split(r"\n\s*\n|\n(?=(?:Args|Attributes):\n)", text)[0]
    is_generated = paragraph.startswith(f"{kind.__name__}(")
    return "" if is_generated or _SECTION.match(paragraph) else _plain(paragraph)


def source_of(kind: type) -> str:
    """The first line of the docstring of a class's module; for a loss, its name and its paper."""
    text = inspect.cleandoc(getattr(sys.modules.get(kind.__module__), "__doc__", None) or "")
    return _plain(re.split(r"\n\s*\n", text)[0])


def _plain(text: str) -> str:
    """A docstring's text on one line, without markup."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", " ".join(text.split()))
    return text.replace("``", "").replace("`", "")
