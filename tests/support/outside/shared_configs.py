"""Hydra, without what it does again for each command of a test: a third of what composing takes.

A user's process composes once. What a config becomes is the same.
"""

import copy
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import omegaconf.omegaconf
import yaml
from hydra._internal import defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault
from omegaconf._utils import get_yaml_loader
from omegaconf.base import Metadata


def share_configs() -> None:
    """Change Hydra and OmegaConf for all tests of this process."""

    _ask_for_choices_later(defaults_list, InputDefault)
    ConfigStore.__deepcopy__ = lambda store, memo: store  # pyright: ignore[reportAttributeAccessIssue]
    Metadata.__deepcopy__ = _copied  # pyright: ignore[reportAttributeAccessIssue]
    loading: Any = omegaconf.omegaconf
    loading.yaml = SimpleNamespace(**{**vars(yaml), "load": _loaded})


def _copied(known: Metadata, memo: dict[int, Any]) -> Metadata:
    """What OmegaConf knows of a value: else each field of it would be copied deeply."""
    copied = copy.copy(known)
    copied.flags = None if known.flags is None else dict(known.flags)
    copied.resolver_cache = copy.deepcopy(known.resolver_cache, memo)
    return copied


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
