"""Explains what is wrong in the YAML files of an experiment's ``conf``: the file, line and field.

Hydra names the config that it was composing, but neither its file nor the setting within it.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import GrammarParseError
from omegaconf.grammar_parser import parse

from pipeline.configs.called import Called
from pipeline.configs.near_misses import Known, config_error, of_value, unknown_setting
from pipeline.configs.yaml_files import read_settings
from pipeline.errors import TemperError

_IN = re.compile(r"In '([^']+)': ")


def unreadable(folder: Path, error: Exception) -> str:
    """What is wrong with the file of a folder of configs that Hydra could not read, or with their
    defaults lists, which have no end."""
    has_no_end = isinstance(error, RecursionError)
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    named = Path(mark.name) if mark is not None else folder
    for file in [named] if named.is_file() else sorted(folder.rglob("*.yaml")):
        try:
            read_settings(_shown(file))
        except TemperError as fault:
            if not has_no_end or isinstance(fault.__context__, RecursionError):
                return str(fault)
    return f"the defaults lists in {_shown(folder)} name one another in a circle"


def fault_in_file(
    error: Exception, folder: Path, name: str, known: Known, typed: Sequence[str]
) -> str:
    """The sentence for an error of Hydra's that is due to a file in the experiment's folder of
    configs; empty for any other error.

    Args:
        name: of the experiment's own config.
        typed: the settings on the command line.
    """
    own = _shown(folder / f"{name}.yaml")
    told = _of_defaults(str(error), {argument.partition("=")[0] for argument in typed})
    if own.is_file() and told:
        return f"{own}: {told}"
    if own.is_file() and isinstance(error.__cause__ or error.__context__, GrammarParseError):
        return _unfinished(own, *read_settings(own))
    found = _IN.match(str(error))
    named = [_shown(folder / f"{found[1]}.yaml")] if found else []
    file = next((file for file in (*named, own) if file.is_file()), None)
    if found is None or file is None:
        return ""
    _, _, told = str(error).partition(" raised while composing config:\n")
    if told and file in named:
        return _of_setting(file, told, known)
    chosen = re.search(r"Could not find '(.+)/(.*)'", str(error))
    if not chosen or f"{chosen[1]}={chosen[2]}" in typed:
        return ""
    return f"{file}: {config_error(error, known, typed)}"


def placed(message: str, own: Path, typed: Sequence[str]) -> str:
    """The message, after the line of the experiment's own config that sets what it is about."""
    file = _shown(own)
    lines = read_settings(file)[1]
    called = Called((), typed, str(file), dict.fromkeys(lines, ""), lines)
    return called.placed(message, is_of_settings=False)


def _of_defaults(said: str, typed: set[str]) -> str:
    """What is wrong with a defaults list; empty if Hydra says nothing of it."""
    if (absent := re.search(r"Could not load '(.+)'", said)) and absent[1] not in typed:
        return f"its defaults list names {absent[1]}, and there is no {absent[1]}.yaml for it"
    twice = re.search(r"Multiple values for ([\w./]+)\. To override", said)
    if twice and f"+{twice[1]}" not in typed:
        return (
            f"its defaults list chooses {twice[1]} again; write `override {twice[1]}: NAME` for "
            "the choice that counts"
        )
    absent = re.search(r"Could not override '([\w/]+)'\.", said)
    if absent and not {absent[1], absent[1].replace("/", ".")} & typed:
        return (
            f"nothing above `override {absent[1]}` in its defaults list chooses {absent[1]}; leave "
            "out `override`, or begin the list with schema"
        )
    return ""


def _of_setting(file: Path, told: str, known: Known) -> str:
    """The sentence for a setting in a file, which OmegaConf refuses with a text of several lines:
    what is wrong, then the setting's full name."""
    said, named = told.partition("\n")[0], re.search(r"full_key: ([^\s\[]+)", told)
    key = named[1] if named else ""
    content, lines = read_settings(file)
    if said.startswith("Key ") and "is incompatible" in said:
        key = key.rpartition(".")[0]
    inner = next((part for part in _endings(key) if part in lines), "")
    place = f"{file}, line {lines[inner]}" if inner else str(file)
    if said.startswith("Key '"):
        group, _, last = key.rpartition(".")
        if file.parent.name == group.rpartition(".")[2] and key in (*known.keys, *known.unchosen):
            names = known.groups.get(group.replace(".", "/"), ())
            return (
                f"{place}: {last} is a setting of one type of {group}; begin the file with that "
                f"type, as in defaults: [{names[-1] if names else 'NAME'}, _self_]"
            )
        return f"{place}: {unknown_setting(key, '', known)}"
    if key:
        message = f"override {key}={_written(_at(content, inner))}; {said}"
        return f"{place}: {of_value(message, known) or f'{key}: {said}'}"
    if wrong := re.search(r"is not a subclass of (\w+)\. value: (.*)", said):
        return f"{place}: {wrong[2]} stands where settings of {wrong[1]} belong, as in NAME: VALUE"
    return f"{place}: a list stands where settings belong (NAME: VALUE), or the other way round"


def _unfinished(file: Path, content: Any, lines: dict[str, int]) -> str:
    """The sentence for a reference that is not closed; empty if the file has none."""
    for key, line in lines.items():
        value = _at(content, key)
        try:
            if isinstance(value, str):
                parse(value)
        except GrammarParseError:
            return f"{file}, line {line}: {key}: {value} cannot be read; a reference is ${{NAME}}"
    return ""


def _endings(key: str) -> list[str]:
    """A dotted name, and the name within each part of it: a file of a group leaves out the
    group."""
    parts = key.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _at(content: Any, key: str) -> Any:
    for part in key.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _written(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def _shown(path: Path) -> Path:
    return Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path
