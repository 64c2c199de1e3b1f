"""How an experiment was called, for messages: its command, and the file that holds its settings."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.configs.yaml_files import read_settings


@dataclass(frozen=True)
class Called:
    """The call of an experiment.

    Attributes:
        words: the words of the command, without its arguments.
        typed: these arguments; a setting among them overrides the file.
        file: the file of settings; empty without one.
        settings: what the file sets: values, as they are typed, by the names of settings.
        lines: the lines on which these names stand.
    """

    words: Sequence[str]
    typed: Sequence[str] = ()
    file: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_file(cls, own: Path, typed: Sequence[str]) -> "Called":
        """The call of an experiment with a config of its own."""
        file = Path(os.path.relpath(own)) if own.is_relative_to(Path.cwd()) else own
        lines = read_settings(file)[1]
        return cls((), typed, str(file), dict.fromkeys(lines, ""), lines)

    def placed(self, message: str, is_of_settings: bool = True) -> str:
        """The message, after the place in the file of the setting that it is about.

        Args:
            is_of_settings: whether the message is about some setting in any case.
        """
        parts = (argument.lstrip("+~").partition("=") for argument in self.typed)
        typed = {name: value for name, equals, value in parts if equals}
        # what is suggested in place of an unknown setting is no fault in the file that has it
        about = message.partition("; ")[0] if message.startswith("unknown config key") else message
        found = _most_meant(about, {**self.settings, **typed})
        if not self.file or found in typed or not (found or is_of_settings):
            return message
        line = f", line {self.lines[found]}" if found in self.lines else ""
        return f"{self.file}{line}: {message}"


def _most_meant(message: str, settings: Mapping[str, str]) -> str:
    """The setting with the longest name of those that a message is about; empty if it is about
    none."""
    found = (name for name, value in settings.items() if _is_about(message, name, value))
    return max(found, key=len, default="")


def _is_about(message: str, name: str, value: str) -> bool:
    """Whether a message has the name of a setting, or its last part and what stands before that, or
    its value, if that is a path."""
    ways = [[name], name.rsplit(".", 1), *([[value]] if re.search(r"[./]", value) else [])]
    return any(all(_has(message, part) for part in way) for way in ways)


def _has(message: str, words: str) -> bool:
    return bool(re.search(rf"(?<![\w./]){re.escape(words)}(?![\w/]|\.\w)", message))
