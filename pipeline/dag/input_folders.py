"""Names files after the input files beside which a step found them.

An input file is known by its content, not by its place. So a step that reads `images/1.png` beside
its input reads another file if the input is one of the same content elsewhere. The name of such a
file is `<N:GROUPS>/images/1.png`. N counts the step's input files in the order of its arguments;
the file lies relative to the folder of the Nth. GROUPS is a digest of which inputs lie in one
folder: if others do, the name means nothing any more.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import blake3

from pipeline.dag.canonical import Json, reference_to
from pipeline.dag.inputs import File

_FILE = reference_to(File)
_NAME = re.compile(r"<(\d+):([0-9a-f]{8})>/(.*)", re.DOTALL)


@dataclass(frozen=True)
class InputFolders:
    """The folder of each local input file, or input folder, in order; None if it is not known where
    they lie."""

    folders: tuple[str, ...] | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Json] | None) -> "InputFolders":
        """Those of the arguments in the form for a worker; None stands for unknown arguments."""
        if arguments is None:
            return cls()
        return cls(tuple(os.path.dirname(os.path.abspath(path)) for path in _paths(arguments)))

    @staticmethod
    def has(name: str) -> bool:
        """Whether a file is named after an input."""
        return _NAME.fullmatch(name) is not None

    def names(self, path: str, folder: str) -> Iterator[str]:
        """The name of a file that was found beside the inputs in this folder, if there are any."""
        folders = self.folders or ()
        number = next((n for n, own in enumerate(folders) if _is_same(own, folder)), None)
        if number is not None:
            yield f"<{number}:{_groups(folders)}>/{os.path.relpath(path, folder)}"

    def path(self, name: str) -> str | None:
        """The file that has this name now; None if inputs of one folder do not lie in one now."""
        found = _NAME.fullmatch(name)
        if found is None or self.folders is None or found[2] != _groups(self.folders):
            return None
        if int(found[1]) >= len(self.folders):  # no worker wrote that
            return None
        return os.path.normpath(os.path.join(self.folders[int(found[1])], found[3]))


@cache
def _groups(folders: tuple[str, ...]) -> str:
    """A digest of the first input in the folder of each."""
    firsts: dict[str, int] = {}
    for number, folder in enumerate(folders):
        firsts.setdefault(folder, number)
    return blake3.blake3(str([firsts[folder] for folder in folders]).encode()).hexdigest(4)


@cache
def _is_same(own: str, folder: str) -> bool:
    return folder.rstrip("/") in (own.rstrip("/"), os.path.realpath(own).rstrip("/"))


def _paths(arguments: Json | Mapping[str, Json]) -> Iterator[str]:
    """The paths of local files among encoded arguments, in the order of the arguments' names."""
    if isinstance(arguments, list):
        for value in arguments:
            yield from _paths(value)
    elif isinstance(arguments, Mapping):
        if (url := _url(arguments)) is None:
            for name in sorted(arguments):
                yield from _paths(arguments[name])
        elif "://" not in (path := url.removeprefix("file://")):
            yield path


def _url(encoded: Mapping[str, Json]) -> str | None:
    """Where the file is that a mapping encodes; None if it encodes another value."""
    fields = encoded.get("fields")
    url = encoded.get("$path") if encoded.get("kind") == "Path" else None
    if encoded.get("$type") == _FILE and isinstance(fields, Mapping):
        url = fields.get("url")
    return url if isinstance(url, str) else None
