"""The experiments and configs that come with Temper, in a checkout and in an installed package.

The scripts in the folder ``experiments``, beside the package ``pipeline``, are the recipes of
``temper run``. Hydra's groups are in ``conf``: beside ``experiments`` in a checkout, inside it in a
wheel. A config refers to a file of ``experiments`` as ``${shipped:house_style/train.jsonl}``,
independent of the folder in which the experiment is started.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
_IN_WHEEL = EXPERIMENTS / "conf"
CONF = _IN_WHEEL if _IN_WHEEL.is_dir() else EXPERIMENTS.parent / "conf"


def shipped_path(name: str) -> str:
    """The path of a file of ``experiments`` or of ``conf/``, relative to the current folder."""
    config = name.removeprefix("conf/")
    path = EXPERIMENTS / name if config == name else CONF / config
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


Options = dict[str, tuple[str | None, dict[str, Any]]]
"""The options of a config group by name: the package of each, which may be ``_global_`` (``None``
for the group itself), and its content."""
_PACKAGE = re.compile(r"# @package (\S+)")


def read_yaml(text: str) -> Any:
    """The content of a YAML file, read by the parser in C if PyYAML has it: six times as fast."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def names_of_options(group: str) -> list[str]:
    """The names of the options of a shipped config group."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def read_options(group: str) -> Options:
    """The options of a shipped config group."""
    options: Options = {}
    for name in names_of_options(group):
        text = (CONF / group / f"{name}.yaml").read_text("utf-8")
        package = _PACKAGE.match(text)
        options[name] = package and package[1], read_yaml(text) or {}
    return options


def shipped_groups() -> list[str]:
    """The names of the shipped config groups."""
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())


def read_recipes() -> Mapping[str, Mapping[str, Any]]:
    """The recipes of ``temper run``, from ``experiments/recipes.yaml``."""
    return read_yaml((EXPERIMENTS / "recipes.yaml").read_text("utf-8"))


OmegaConf.register_new_resolver("shipped", shipped_path, replace=True)
