"""Makes the config of an experiment that has no YAML, or a YAML with settings only.

Such a config consists of the experiment's dataclass and of shipped groups: always ``launcher``, and
``model`` and ``data`` if the config has fields of these names whose dataclasses have the fields
that the group's options set. A folder ``conf`` beside the script takes precedence over both.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from pipeline.base.errors import TemperError
from pipeline.configs.shipped import CONF, Options, read_options, read_yaml, shipped_groups
from pipeline.configs.yaml_files import read_settings, text_of
from pipeline.dag.canonical import resolve_reference

Choices = Mapping[str, Mapping[str, type]]
"""The possible types of fields, by name, for the path of each such field."""
WITHOUT_YAML = "without_yaml"
"""The name of a config that this module makes."""
_DEFAULTS = re.compile(r"^defaults\s*:", re.MULTILINE)
_PREFIXES = re.compile(r"^\s*(?:(?:override|optional)\s+)+")
_ON = {"launcher": "local"}
"""The default option of a group; other groups have none."""

_OWN = re.compile(r"'?([A-Za-z_][\w.]*:[A-Za-z_]\w*)'?")


def with_own(choices: Choices, arguments: Sequence[str]) -> Choices:
    """The choices with the classes that arguments name, as in ``checker=my_checks:Short``. Such a
    module lies in the working folder, or where Python looks for modules.

    Raises:
        TemperError: there is no such module, or no such dataclass in it.
    """
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        path, own = key.replace("/", "."), _OWN.fullmatch(value)
        if path not in choices or own is None:
            continue
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            kind = resolve_reference(own[1])
        except (ImportError, AttributeError) as error:
            raise TemperError(f"{key}={own[1]}: {error} (in {os.getcwd()})") from None
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise TemperError(f"{key}={own[1]} is no dataclass; put @dataclass above it")
        choices = {**choices, path: {**choices[path], own[1]: kind}}
    return choices


def choose_config(
    script: Path, schema: type, choices: Choices = MappingProxyType({})
) -> tuple[Path | None, str]:
    """The folder of an experiment's config, if it has one, and the config's name there.

    The nearest ``conf/SCRIPT.yaml``, beside the script or above it, is the experiment's own. If it
    has a defaults list, it is the whole config. Otherwise the config is made from the dataclass,
    the fitting groups, and that file.
    """
    name = script.stem
    folders = [parent / "conf" for parent in script.resolve().parents]
    folder = next((f for f in folders if os.path.lexists(f / f"{name}.yaml")), None)
    text = "" if folder is None else text_of(folder / f"{name}.yaml")
    if folder is None and (file := folders[0] / f"{name}.yml").exists():
        raise TemperError(f"{file} would not be read; rename it: a config ends in .yaml")
    chosen = [path.replace(".", "/") for path in choices]
    if folder is not None and _DEFAULTS.search(text):
        if not folder.samefile(CONF):
            _store_named(_defaults_of(folder / f"{name}.yaml"), folder, chosen)
        return folder, name
    own = [] if folder is None else [name]
    folder = folder or next((f for f in folders[:1] if f.is_dir()), None)
    _store_config(schema, folder, own, chosen)
    return folder, WITHOUT_YAML


def refuse_missing_options(typed: Sequence[str], choices: Mapping[str, Any]) -> None:
    """Refuse typed options that do not exist: of a group that a config calls optional, Hydra takes
    none instead.

    Args:
        typed: the settings on the command line.
        choices: the chosen options by group.

    Raises:
        TemperError: there is no such option.
    """
    for group, _, option in (setting.lstrip("+").partition("=") for setting in typed):
        if group not in choices or str(choices[group]) != option or option == "null":
            continue
        named = group.partition("@")[0]  # behind it is where the option's settings go
        loader = GlobalHydra.instance().config_loader()
        folder, _, name = f"{named}/{option}".rpartition("/")  # an option may lie in a folder
        if name.removesuffix(".yaml") not in loader.get_group_options(folder):
            known = ", ".join(sorted(loader.get_group_options(named)))
            raise TemperError(f"{group}={option}: there is only {known}")


def _store_config(
    schema: type, folder: Path | None, own: Sequence[str], chosen: Sequence[str]
) -> None:
    """Register the config of a schema, whose groups of types (`chosen`) stand in the schema."""
    defaults: list[Any] = ["schema"]
    config = OmegaConf.structured(schema)
    for group in (group for group in shipped_groups() if group not in chosen):
        options = _fitting(group, schema)
        _store_options(group, options, folder)
        if options or (folder and (folder / group).is_dir()):
            is_set = _content(config[group]) != _default(schema, group)
            defaults.append({group: None if is_set else _ON.get(group)})
    _store(None, WITHOUT_YAML, None, {"defaults": [*defaults, *own, "_self_"]})


def _store_options(group: str, options: Options, folder: Path | None) -> None:
    """Register the options of a group that the experiment's own folder lacks: Hydra would merge
    options with one name."""
    for name, (package, content) in options.items():
        if folder is None or not (folder / group / f"{name}.yaml").exists():
            _store(group, name, package, content)


def _store(group: str | None, name: str, package: str | None, content: Mapping[str, Any]) -> None:
    ConfigStore.instance().store(group=group, name=name, node=content, package=package)


def _store_named(defaults: Sequence[Any], folder: Path, chosen: Sequence[str]) -> None:
    """Register shipped groups and base configs that a defaults list names and its folder lacks,
    without the groups of types (`chosen`)."""
    for entry in defaults:
        inherited = CONF / f"{entry}.yaml"
        if isinstance(entry, Mapping):
            for group in entry:
                name = _PREFIXES.sub("", str(group)).strip("/ ")
                if name not in chosen:
                    _store_options(name, read_options(name), folder)
        elif inherited.is_file() and not (folder / inherited.name).exists():
            content = read_yaml(inherited.read_text("utf-8"))
            _store(None, str(entry), None, content)
            _store_named(content.get("defaults") or (), folder, chosen)


def _defaults_of(file: Path) -> Sequence[Any]:
    """The defaults list of a config that has one.

    Raises:
        TemperError: it is no list, or the file no YAML.
    """
    defaults = read_settings(file)["defaults"]
    if not isinstance(defaults, list) or not all(isinstance(e, str | dict) for e in defaults):
        raise TemperError(
            f"{file}: defaults is a list of names and choices, as in defaults: [schema, launcher: "
            "local, _self_]"
        )
    return defaults


def _fitting(group: str, schema: type) -> Options:
    """The options of a shipped group that only set fields that the experiment has."""
    kinds = get_type_hints(schema)
    kind = kinds.get(group)
    if not dataclasses.is_dataclass(kind):
        return {}
    plain = _default(schema, group)
    return {
        name: (package, content if package else plain | content)
        for name, (package, content) in read_options(group).items()
        if set(content) - {"defaults"} <= (set(kinds) if package else set(plain))
    }


def _default(schema: type, group: str) -> dict[str, Any]:
    """The default of the type of a group's field.

    An option of the group replaces the whole field, so it starts from the type's default.
    """
    return _content(OmegaConf.structured(get_type_hints(schema)[group]))


def _content(config: Any) -> dict[str, Any]:
    content = OmegaConf.to_container(config)
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items()}
