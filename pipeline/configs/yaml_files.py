"""Reads YAML files of settings that users write; one that cannot be read is named with its line."""

import os
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from pipeline.base.errors import TemperError


class _EachKeyOnce(yaml.SafeLoader):
    """Refuses a name that stands twice in one group; YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                problem = f"{key.value} stands there twice"
                raise ConstructorError(None, None, problem, key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)


_EachKeyOnce.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)


def text_of(file: Path) -> str:
    """The text of a file.

    Raises:
        TemperError: it cannot be read as text.
    """
    try:
        if file.exists() and not file.is_file():
            raise TemperError(f"{file} is no file that can be read; move it away")
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise TemperError(f"{file} cannot be read; save it as text, in UTF-8") from None
    except OSError as error:
        target = f", a link to {os.readlink(file)}," if file.is_symlink() else ""
        raise TemperError(f"{file}{target} cannot be read: {error.strerror}") from None


def read_settings(file: Path) -> Any:
    """The content of a file.

    Raises:
        TemperError: it is no YAML.
    """
    text = text_of(file)
    try:
        return yaml.load(text, _EachKeyOnce)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise TemperError(
            f"{file} cannot be read: line {line}: {error.problem}; write `name: value`, with the "
            "settings of a group indented by spaces, and each name once"
        ) from None
    except yaml.YAMLError:
        raise TemperError(f"{file} cannot be read; save it as text, in UTF-8") from None
