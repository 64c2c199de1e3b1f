"""Idioms: small projects with a step ``train`` in ``steps.py``, and edits of them.

They lie in text files, one kind of idiom a file::

    ## name_of_the_idiom
    --- steps.py
    from helpers import rate
    def train(out):
        return rate()
    --- helpers.py
    def rate():
        return 1
    ! return 1 => return 2
    = return 1 => return 1  # a comment

``!`` is an edit that changes the result: after it, the result of before must not be served. ``=``
is one that does not change it, of what did not run or is read by nothing: the result is served.
``-`` is one that changes the result and is documented as not seen.
``\\n`` in an edit is a line break, and `` && `` stands between two edits that are made at once.
``@file`` before an edit tells which file it is in; else the old text is once in all files.
``new:FILE`` for the old text adds a file; with the new text ``(gone)`` a file is taken away.
``mv A => B`` renames a file. ``=>*`` replaces every occurrence of the old text in all files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from laboratory import Files

FOLDER = Path(__file__).parent / "idioms"


@dataclass(frozen=True)
class Edit:
    """Attributes: class_: ``!``, ``=`` or ``-``; parts: what is replaced, all at once."""

    class_: str
    text: str
    parts: tuple[tuple[str, str, str], ...]

    def apply(self, files: Files) -> dict[str, str]:
        edited = dict(files)
        for file, old, new in self.parts:
            _replace(edited, file, old, new, self.text)
        return edited


@dataclass(frozen=True)
class Idiom:
    topic: str
    name: str
    files: Files
    edits: tuple[Edit, ...]


def _replace(files: dict[str, str], file: str, old: str, new: str, text: str) -> None:
    if old.startswith("mv "):
        files[new] = files.pop(old[3:])
        return
    if old.startswith("new:"):
        name = old[4:]
        if new == "(gone)":
            del files[name]
        else:
            files[name] = new + "\n"
        return
    if old.startswith("every "):
        for name in files:
            files[name] = files[name].replace(old[6:], new)
        return
    names = [name for name in files if file in ("", name) and files[name].count(old)]
    counts = sum(files[name].count(old) for name in names)
    assert counts == 1, f"{old!r} is {counts} times in the project: {text}"
    files[names[0]] = files[names[0]].replace(old, new)


@cache
def idioms() -> tuple[Idiom, ...]:
    found = tuple(idiom for path in sorted(FOLDER.glob("*.txt")) for idiom in _read(path))
    names = [(idiom.topic, idiom.name) for idiom in found]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}
    return found


def _read(path: Path) -> Iterator[Idiom]:
    for section in re.split(r"^## ", path.read_text("utf-8"), flags=re.M)[1:]:
        name, _, rest = section.partition("\n")
        files: dict[str, str] = {}
        edits: list[Edit] = []
        current: list[str] | None = None
        file = ""
        for line in rest.split("\n"):
            if line.startswith("--- "):
                if current is not None:
                    files[file] = "\n".join(current).rstrip() + "\n"
                file, current = line[4:].strip(), []
            elif re.match(r"[!=-] ", line):
                edits.append(_edit(line))
            elif current is not None and not edits:
                current.append(line)
        if current is not None:
            files[file] = "\n".join(current).rstrip() + "\n"
        assert "steps.py" in files, f"{path.name}: {name}"
        assert edits, f"{path.name}: {name}"
        yield Idiom(path.stem, name.strip(), files, tuple(edits))


def _edit(line: str) -> Edit:
    """Parts are separated by `` && ``."""
    parts = []
    for part in line[2:].split(" && "):
        part = re.sub(r"^(.*) =>\* ", r"every \1 => ", part)
        old, arrow, new = part.partition(" => ")
        assert arrow, f"no arrow: {line}"
        file = ""
        if match := re.match(r"@([\w/]+\.[a-z]+) (.*)", old, re.S):
            file, old = match.groups()
        parts.append((file, _unescape(old), _unescape(new)))
    return Edit(line[0], line, tuple(parts))


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace("(nothing)", "")
