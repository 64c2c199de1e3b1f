"""Hydra, without what it does again for each command of a test: a third of what composing takes.

A user's process composes once. What a config becomes is the same.
"""

import copy
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import omegaconf.omegaconf
import yaml
from hydra._internal import defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault
from omegaconf import AnyNode, DictConfig, ListConfig, _utils
from omegaconf._utils import get_yaml_loader
from omegaconf.base import Box, Container, Metadata, UnionNode


def share_configs() -> None:
    """Change Hydra and OmegaConf for all tests of this process."""

    _ask_for_choices_later(defaults_list, InputDefault)
    ConfigStore.__deepcopy__ = lambda store, memo: store  # pyright: ignore[reportAttributeAccessIssue]
    Metadata.__deepcopy__ = _copied  # pyright: ignore[reportAttributeAccessIssue]
    Box._re_parent = _adopt  # pyright: ignore[reportAttributeAccessIssue]
    Container._invalidate_flags_cache = _forget_flags
    for name in ("is_attr_class", "is_dataclass"):
        setattr(_utils, name, partial(_is_of, getattr(_utils, name)))
    loading: Any = omegaconf.omegaconf
    loading.yaml = SimpleNamespace(**{**vars(yaml), "load": _loaded})


def _copied(known: Metadata, memo: dict[int, Any]) -> Metadata:
    """What OmegaConf knows of a value: else each field of it would be copied deeply."""
    copied = copy.copy(known)
    copied.flags = None if known.flags is None else dict(known.flags)
    copied.resolver_cache = copy.deepcopy(known.resolver_cache, memo)
    return copied


def _inside(node: Any) -> Iterable[Any]:
    """The nodes directly in a container; none if it has no value."""
    content = node.__dict__["_content"]
    if isinstance(content, dict):
        return content.values()
    return content if isinstance(content, list) else ()


def _adopt(box: Box) -> None:
    """Tell all nodes in a config whose they are. OmegaConf's own imports two modules for each."""
    if isinstance(box, UnionNode):
        return _ADOPT(box)
    for node in _inside(box):
        if node is not None:
            node.__dict__["_parent"] = box
            node._invalidate_flags_cache()
            if type(node) in _BOXES or isinstance(node, Box):
                node._re_parent()
    return None


def _forget_flags(container: Container) -> None:
    if container.__dict__["_flags_cache"] is not None:
        container.__dict__["_flags_cache"] = None
        for node in _inside(container):
            node._invalidate_flags_cache()


def _is_of(asked: Callable[[Any], bool], value: Any) -> bool:
    """Whether a value is of a class that describes a config; of most values their type says it."""
    return type(value) not in _PLAIN and asked(value)


_ADOPT = Box._re_parent
_BOXES = {DictConfig, ListConfig}
_PLAIN = {str, int, float, bool, type(None), dict, list, tuple, AnyNode, *_BOXES}


def _ask_for_choices_later(lists: Any, default: Any) -> None:
    """For each list of defaults, Hydra makes a config of all choices; only a default that refers to
    a choice uses it."""
    choices, resolve = lists._create_interpolation_map, default._resolve_interpolation_impl
    lists._create_interpolation_map = lambda *given: partial(choices, *given)
    default._resolve_interpolation_impl = lambda self, later, text: resolve(self, later(), text)


@lru_cache(maxsize=512)
def _parsed(text: str) -> Any:
    return yaml.load(text, Loader=get_yaml_loader())


def _loaded(given: Any, Loader: Any) -> Any:
    """What a file or a text says; most files are those of other commands, too."""
    try:
        return copy.deepcopy(_parsed(given if isinstance(given, str) else given.read()))
    except yaml.YAMLError:
        if not isinstance(given, str):
            given.seek(0)
        return yaml.load(given, Loader=Loader)  # its error names the file
