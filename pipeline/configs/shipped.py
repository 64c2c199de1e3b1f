"""The experiments and configs that come with Temper, in a checkout and in an installed package.

The scripts in the folder ``experiments``, beside the package ``pipeline``, are the recipes of
``temper run``. Hydra's groups are in ``conf``, beside ``experiments`` in a checkout and in it in a
wheel. A config names a file of ``experiments`` as ``${shipped:house_style/train.jsonl}``, from
whatever folder the experiment is started.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
_IN_WHEEL = EXPERIMENTS / "conf"
CONF = _IN_WHEEL if _IN_WHEEL.is_dir() else EXPERIMENTS.parent / "conf"


def shipped_path(name: str) -> str:
    """Where a file of ``experiments`` or of ``conf/`` lies, as seen from the present folder."""
    config = name.removeprefix("conf/")
    path = EXPERIMENTS / name if config == name else CONF / config
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def read_options(group: str) -> dict[str, tuple[str | None, dict[str, Any]]]:
    """The options of a shipped config group by name: where each sets its content (``_global_``, or
    in the group itself), and that content."""
    options: dict[str, tuple[str | None, dict[str, Any]]] = {}
    for file in sorted((CONF / group).glob("*.yaml")):
        text = file.read_text("utf-8")
        package = "_global_" if text.startswith("# @package _global_") else None
        options[file.stem] = package, yaml.safe_load(text) or {}
    return options


def shipped_groups() -> list[str]:
    """The names of the groups that come with Temper."""
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())


def read_recipes() -> Mapping[str, Mapping[str, Any]]:
    """The recipes of ``temper run``, as ``experiments/recipes.yaml`` has them."""
    return yaml.safe_load((EXPERIMENTS / "recipes.yaml").read_text("utf-8"))


OmegaConf.register_new_resolver("shipped", shipped_path, replace=True)
