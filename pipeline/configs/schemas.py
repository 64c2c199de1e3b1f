"""Registers an experiment's dataclass with Hydra, and makes an instance of what Hydra composes.

A field with a choice of types is a group of Hydra's, whose options are these types.
"""

import dataclasses
import itertools
import operator
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, get_args, get_origin, get_type_hints

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import (
    Container,
    DictConfig,
    ListConfig,
    Node,
    OmegaConf,
    PathNode,
    StringNode,
    ValueNode,
)
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.errors import TemperError
from pipeline.base.text import counted
from pipeline.configs.groups import Choices


def store_schema(schema: type, choices: Choices) -> None:
    """Register ``schema`` with Hydra, and a group for each field that has a choice of types.

    The schema leaves such a field open: Hydra merges configs, and merging two dataclasses would
    keep fields of both. The field's original value becomes the default option of the group.
    """
    store = ConfigStore.instance().store
    config = _writable_schema(schema)
    defaults: list[Any] = []
    for path, types in choices.items():
        group, node = path.replace(".", "/"), OmegaConf.select(config, path)
        default = None if node is None else OmegaConf.to_object(node)
        chosen = next((name for name, kind in types.items() if type(default) is kind), None)
        for option, kind in types.items():
            _store_option(group, option, default if option == chosen else kind)
        if default is not None:
            OmegaConf.update(config, path, "???", merge=False)
        defaults.append({group: chosen})
        for part in (path, path.rpartition(".")[0]):
            if part and _node_at(config, part)._is_optional():
                left_out = OmegaConf.create()
                OmegaConf.update(left_out, part, None)
                store(group=part.replace(".", "/"), name="none", node=left_out, package="_global_")
    store(name="fields", node=config)
    store(name="schema", node={"defaults": ["fields", *defaults, "_self_"]})


class _Option(ConfigNode):
    """An option of a group, which OmegaConf reads when it is chosen. Most are not, and to read
    them all takes a quarter of a plan."""

    def __init__(self, group: str, name: str, schema: Any):
        super().__init__(f"{name}.yaml", None, group, None, None)  # pyright: ignore[reportArgumentType]
        self.schema = schema

    def __copy__(self) -> ConfigNode:
        """What Hydra loads."""
        return ConfigNode(self.name, _writable_schema(self.schema), self.group, None, None)


def _store_option(group: str, name: str, schema: Any) -> None:
    options = ConfigStore.instance().repo
    for part in group.split("/"):
        options = options.setdefault(part, {})
    option = _Option(group, name, schema)
    options[option.name] = option


def _no_config(schema: type, error: Exception) -> TemperError:
    if generic := _generic(schema, schema.__name__):
        return TemperError(
            f"{generic} is a Generic class, which no config can hold; write it as a plain "
            "dataclass, with the type of each field in place of its type variable"
        )
    told = " ".join(str(error).partition("\n    ")[0].split())
    name = ".".join(filter(None, (schema.__name__, str(getattr(error, "full_key", None) or ""))))
    return TemperError(
        f"{name}: {told}; a setting is a number, a text, an enum, a dataclass, or a list or dict "
        "of these, and its default has its type; one of several dataclasses has their base class "
        "as its type, and main() names them as choices"
    )


def _generic(schema: Any, where: str) -> str:
    """The first field, of a dataclass or of those within it, whose class is generic, as
    ``Config.part: Part``; empty if there is none."""
    if issubclass(schema, Generic):  # pyright: ignore[reportArgumentType]
        return f"{where}: {schema.__name__}" if "." in where else where
    hints = get_type_hints(schema)
    parts = ((field.name, hints[field.name]) for field in dataclasses.fields(schema))
    classes = ((name, get_origin(hint) or hint) for name, hint in parts)
    inner = (_generic(c, f"{where}.{n}") for n, c in classes if dataclasses.is_dataclass(c))
    return next(filter(None, inner), "")


def to_dataclass(cfg: DictConfig) -> Any:
    if OmegaConf.get_type(cfg) is dict:
        raise TemperError(
            "the defaults list of the config leaves out schema, which stands for the class of its "
            "settings; begin it so: defaults: [schema, launcher: local, _self_]"
        )
    if added := next(_added_keys(cfg), None):
        raise TemperError(
            f"+{added}: the config has no setting {added}; --help lists every setting"
        )
    if wrong := next(itertools.chain(_wrong_lists(cfg), _texts_for_null(cfg)), None):
        raise TemperError(wrong)
    try:
        made = _with_tuples(OmegaConf.to_object(cfg), cfg)
        return _like_default(made, None)
    except OmegaConfBaseException:  # of an interpolation; some are ValueErrors
        raise
    except (ValueError, AssertionError) as error:  # raised by a config dataclass
        where = _refused_at(cfg)
        said = str(error) or _failed_line(error)
        if where and _node_at(cfg, where)._is_optional():
            said += f"; {where}=none leaves it out"
        raise TemperError(f"invalid configuration{where and f' in {where}'}: {said}") from error


def _failed_line(error: Exception) -> str:
    """The line that raised an exception without a text, as an ``assert`` does."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.line} fails ({os.path.basename(last.filename)}, line {last.lineno})"


def _added_keys(config: Container, prefix: str = "") -> Iterator[str]:
    """The names of keys that ``+KEY=VALUE`` added, which a dataclass would drop."""
    kind = OmegaConf.get_type(config)
    if isinstance(config, DictConfig) and dataclasses.is_dataclass(kind):
        fields = {item.name for item in dataclasses.fields(kind)}
        yield from (f"{prefix}.{key}"[1:] for key in map(str, config) if key not in fields)
    for name, part in _parts(config):
        yield from _added_keys(part, prefix + name)


def _wrong_lists(config: Container, prefix: str = "") -> Iterator[str]:
    """What is wrong with each list that refers to a single value, and with each tuple that has more
    or fewer items than its type: OmegaConf looks at neither."""
    for name, part in _parts(config):
        where, given = prefix + name, _referred_to(part)
        single = given._value() if isinstance(given, ValueNode) else None
        if isinstance(part, ListConfig) and isinstance(single, str | int | float):
            yield f"{where[1:]}={part._content}: it takes a list, and refers to a single value"
        if isinstance(given, ListConfig) and isinstance(given._content, list):
            kind = part._metadata.ref_type
            wanted = get_args(kind) if get_origin(kind) is tuple else ()
            if wanted and wanted[-1] is not ... and len(wanted) != len(given):
                listed = ",".join(map(str, given))
                takes = counted(len(wanted), "value")
                yield f"{where[1:]}=[{listed}]: it takes {takes}, not {len(given)}"
        if isinstance(given, Container):
            yield from _wrong_lists(given, where)


def _texts_for_null(config: Container, prefix: str = "") -> Iterator[str]:
    """What is wrong with each text that says None where there may be none: YAML writes null."""
    for key in config if isinstance(config, DictConfig) and not _is_empty(config) else ():
        node = config._get_node(key)
        if not isinstance(node, StringNode | PathNode) or not node._is_optional():
            continue
        if node._value() in ("None", Path("None")):
            where = f"{prefix}.{key}"[1:]
            yield f"{where}=None is a text of four letters; write {where}=null for none"
    for name, part in _parts(config):
        yield from _texts_for_null(part, prefix + name)


def _with_tuples(made: Any, config: Container) -> Any:
    """What was made of a config, with tuples where OmegaConf puts lists for them: a step gets what
    its types say, and its key is that of the same values in Python."""
    given = _referred_to(config)
    for _, part in _parts(given) if isinstance(given, Container) else ():
        key = part._key()
        try:
            inner = made[key] if isinstance(made, dict | list) else getattr(made, key)
        except (AttributeError, LookupError, TypeError):  # a dataclass has changed it
            continue
        if (changed := _with_tuples(inner, part)) is inner:
            continue
        if isinstance(made, dict | list):
            made[key] = changed
        else:
            object.__setattr__(made, str(key), changed)
    kind = config._metadata.ref_type
    return tuple(made) if isinstance(made, list) and tuple in (kind, get_origin(kind)) else made


def _like_default(made: Any, default: Any) -> Any:
    """What was made of a config, with tuples where its defaults have them: in a field of type
    ``Any``, or in a dict of such values, OmegaConf has lists for them."""
    if isinstance(made, list | tuple):
        known = default if isinstance(default, list | tuple) and default else [None]
        last = len(known) - 1
        items = [_like_default(item, known[min(i, last)]) for i, item in enumerate(made)]
        if isinstance(made, tuple):
            return made if all(map(operator.is_, items, made)) else tuple(items)
        made[:] = items
        return tuple(made) if isinstance(default, tuple) else made
    if isinstance(made, dict):
        known = default if isinstance(default, dict) else {}
        made.update({key: _like_default(item, known.get(key)) for key, item in made.items()})
    elif dataclasses.is_dataclass(made):
        for item in dataclasses.fields(made):
            held = getattr(made, item.name, None)
            if isinstance(held, list | tuple | dict) or dataclasses.is_dataclass(held):
                is_like = type(default) is type(made)
                known = getattr(default, item.name) if is_like else _default_of(item)
                if (changed := _like_default(held, known)) is not held:
                    object.__setattr__(made, item.name, changed)
    return made


def _default_of(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _referred_to(config: Container) -> Node:
    """What an interpolation stands for; itself, if it is none or refers to nothing (then
    `OmegaConf.to_object` raises an error)."""
    found = config._maybe_dereference_node()
    return config if found is None else found


def _refused_at(config: Container, prefix: str = "") -> str:
    """The name of the innermost part of a config that is invalid by itself."""
    for name, part in _parts(config):
        try:
            OmegaConf.to_object(part)
        except (ValueError, AssertionError):
            return _refused_at(part, prefix + name) or (prefix + name)[1:]
    return ""


def _writable_schema(schema: Any) -> DictConfig:
    """The dataclass, or one of its instances, as a Hydra schema.

    OmegaConf makes frozen dataclasses read-only, but overrides must be merged into a schema. The
    keys of a mapping are free, while those of a dataclass are fixed.

    Raises:
        TemperError: OmegaConf does not know the type of a field.
    """
    try:
        config = OmegaConf.structured(schema)
    except (OmegaConfBaseException, IndexError) as error:  # the latter of a generic class
        raise _no_config(schema if isinstance(schema, type) else type(schema), error) from error
    for node in _nodes(config):
        node._set_flag("readonly", None)
        if OmegaConf.get_type(node) is dict:
            OmegaConf.set_struct(node, False)
    return config


def _nodes(config: Container) -> Iterator[Container]:
    """A config with all within it; also those without a value, which take one of their type."""
    yield config
    for _, part in _containers(config):
        yield from _nodes(part)


def _parts(config: Container) -> Iterator[tuple[str, DictConfig | ListConfig]]:
    """The configs and lists with a value directly within one, each after its name in it: ``.key``
    or ``[0]``."""
    return ((name, node) for name, node in _containers(config) if not _is_empty(node))


def _containers(config: Container) -> Iterator[tuple[str, DictConfig | ListConfig]]:
    if _is_empty(config):
        return
    is_list = isinstance(config, ListConfig)
    keys: Any = range(len(config)) if isinstance(config, ListConfig) else config
    for key in keys:
        node = config._get_node(key)
        if isinstance(node, DictConfig | ListConfig):
            yield f"[{key}]" if is_list else f".{key}", node


def _node_at(config: Container, path: str) -> Node:
    """The node of a setting, whatever its value."""
    for key in re.findall(r"[^.\[\]]+", path):
        config = config._get_node(int(key) if isinstance(config, ListConfig) else key)  # pyright: ignore
    return config


def _is_empty(config: Container) -> bool:
    return config._is_none() or config._is_missing()
