"""``--help`` of an experiment: its purpose, options and choices, and the meaning of each setting.

It shows the values that a run with the same command line would have. ``--help PATH`` shows the
settings below a path, or the settings whose name or meaning contains a word.
"""

import contextlib
import inspect
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from pipeline.base.errors import TemperError
from pipeline.base.redaction import shown
from pipeline.base.text import did_you_mean, visible
from pipeline.configs.groups import Choices
from pipeline.configs.setting_docs import Group, Setting, explained, source_of, summary_of
from pipeline.configs.shipped import CONF

_COLUMN = 44
_NARROWEST, _WIDEST = 72, 120
OPTIONS = (
    ("--plan, --dry", "show what would run and why, and run nothing"),
    ("--budget 2h", "refuse a plan that takes longer, and stop a run that does"),
    ("-v, --verbose", "show what steps print, too, and a plan with every step"),
    ("-q, --quiet", "show only what fails, and where results lie"),
    ("-m, --multirun", "one job for each combination of values, as in -m SETTING=1,2"),
    ("-h, --help [PATH|WORD]", "this page, or of it the settings below a path or with a word"),
    ("--cfg job", "print the config as YAML, and run nothing"),
)
OF_RECIPES = (
    ("--data FILE", "rows of your own: a file, a folder, a pattern, or OWNER/NAME of the Hub"),
    ("--model MODEL", "a Hugging Face folder, a .gguf file, or OWNER/NAME of the Hub"),
)
"""Options that only ``temper run`` has."""


@dataclass(frozen=True)
class Experiment:
    """An experiment with the config of a command line, which was ``called`` with words before the
    settings."""

    build: Callable[[Any], Any]
    choices: Choices
    folder: Path | None
    config: DictConfig
    called: Sequence[str]


def show_help(experiment: Experiment, about: str) -> None:
    """Print the help page, or only its part about a topic.

    Raises:
        TemperError: the page has nothing about the topic.
    """
    lines = list(_about(experiment, about) if about else _page(experiment))
    if not lines:
        paths = [group.path for group in explained(experiment.config) if group.path]
        meant = did_you_mean(about.replace("/", "."), paths, 0.8)
        raise TemperError(
            f"--help {about}: no setting has this path, and none has this word{meant}"
        )
    _print([visible(shown(line)) for line in lines])


def _page(experiment: Experiment) -> Iterator[str]:
    module = sys.modules.get(experiment.build.__module__)
    yield from inspect.cleandoc(getattr(module, "__doc__", None) or "").splitlines()
    yield from ("", f"usage: {shlex.join(experiment.called)} [OPTION]... [SETTING=VALUE]...", "")
    yield "options:"
    is_recipe = list(experiment.called[:2]) == ["temper", "run"]
    for option, meaning in (*(OF_RECIPES if is_recipe else ()), *OPTIONS):
        yield from _entry(option, meaning)
    offered = {group: (o, _options(experiment, group)) for group, o in _chosen().items()}
    if offered := {g: found for g, found in offered.items() if _is_open(*found)}:
        yield from ("", "choices, each a set of values by name (--help NAME explains them):")
        for group, (option, options) in offered.items():
            yield from _entry(f"{group} = {option or 'none'}", f"one of {', '.join(options)}")
    for group in explained(experiment.config):
        yield from _group(experiment, group, group.settings)


def _about(experiment: Experiment, about: str) -> Iterator[str]:
    """The settings below a path; or else the options of a choice, and settings with a word."""
    path, word = about.replace("/", "."), about.casefold()
    groups = list(explained(experiment.config))
    if chosen := {g: o for g, o in _chosen().items() if g.replace("/", ".") == path}:
        for group, option in chosen.items():
            yield f"{group} = {option or 'none'}"
            for name, meaning in _options(experiment, group).items():
                yield from _entry(f"{group}={name}", meaning)
            for kind in experiment.choices.get(path, {}).values() if option is None else ():
                for inner in explained(OmegaConf.structured(kind), path):
                    yield from _group(experiment, inner, inner.settings)
    below = [g for g in groups if f"{g.path}.".startswith(f"{path}.")]
    for group in below:
        yield from _group(experiment, group, group.settings)
    if chosen or below:
        return
    for group in groups:
        found = [s for s in group.settings if word in f"{s.name} {s.meaning}".casefold()]
        if found:
            yield from _group(experiment, group, found)


def _group(experiment: Experiment, group: Group, settings: Sequence[Setting]) -> Iterator[str]:
    if not settings:
        return
    is_chosen = group.path in experiment.choices
    what = _what(group.kind) if is_chosen else summary_of(group.kind)
    means = " ".join(filter(None, (group.meaning, what)))
    heading = ": ".join(filter(None, (group.path or "the run", means)))
    yield from ("", *textwrap.wrap(heading, _width()))
    for setting in settings:
        yield from _entry(f"{setting.name} = {_value(setting.value)}", setting.meaning)


def _what(kind: type) -> str:
    """What a type that can be chosen is: the first line of its module if that names a paper."""
    source = source_of(kind)
    return source if re.search(r"\d{4}", source) else summary_of(kind) or source


def _entry(name: str, meaning: str) -> Iterator[str]:
    """A name and its meaning, beside it if the name is short."""
    first = f"  {name}"
    indent = " " * _COLUMN
    beside = len(first) < _COLUMN
    lines = textwrap.wrap(meaning, _width() - _COLUMN, break_on_hyphens=False)
    if not beside or not lines:
        yield first
    for number, line in enumerate(lines):
        yield f"{first:<{_COLUMN}}{line}" if beside and number == 0 else indent + line


def _width() -> int:
    columns = os.get_terminal_size().columns if sys.stdout.isatty() else 100
    return min(max(columns, _NARROWEST), _WIDEST)


def _value(value: Any) -> str:
    """A value as typed on the command line."""
    if value == "???":
        return "(to be set)"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value.name if isinstance(value, Enum) else str(value)


def _chosen() -> dict[str, str | None]:
    """The choices of the experiment by path, with the selected option of each."""
    choices = HydraConfig.get().runtime.choices
    return {str(g): o for g, o in sorted(choices.items()) if not str(g).startswith("hydra/")}


def _is_open(option: str | None, options: Collection[str]) -> bool:
    """Whether there is anything to choose: an option that another choice implies has no others."""
    return option is None or (option in options and len(options) > 1)


def _options(experiment: Experiment, group: str) -> dict[str, str]:
    """The options of a choice, each with a sentence."""
    types = experiment.choices.get(group.replace("/", "."), {})
    found = {name: _what(kind) for name, kind in types.items()}
    with contextlib.suppress(OSError):  # the group exists only as YAML
        names = ConfigStore.instance().list(group)
        of_temper = ((name, CONF / group / name) for name in names if name.endswith(".yaml"))
        found = {n.removesuffix(".yaml"): _first_comment(f) for n, f in of_temper} | found
    if experiment.folder is not None:
        own = sorted((experiment.folder / group).glob("*.yaml"))
        found |= {file.stem: _first_comment(file) for file in own}
    return found


def _first_comment(file: Path) -> str:
    """The comment at the beginning of a YAML file, if there is one."""
    lines: list[str] = []
    if not file.is_file():
        return ""
    for line in file.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def _print(lines: Sequence[str]) -> None:
    """Print lines; in a terminal that is too small, through a pager."""
    try:
        if sys.stdout.isatty() and len(lines) >= os.get_terminal_size().lines:
            import pydoc

            pydoc.pager("\n".join(lines) + "\n")
        else:
            print("\n".join(lines), flush=True)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
