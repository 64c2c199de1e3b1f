"""Finds the files that a command, a shell script, a makefile or a query names."""

import contextlib
import glob
import os
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from pipeline.observed.rules import Rules
from pipeline.observed.states import state_of

_BELOW_A_VARIABLE = re.compile(r"""(?:\$\w+|[)}])["']?/([\w./-]+)""")
"""In a command, the rest of a path like ``$HERE/file``, ``${HERE}/file`` or ``$(pwd)/file``."""
_SCRIPT_BYTES = 2**16
_LONGEST_PATH = 4096
_LIKE_A_PATH = re.compile(r"[\w~-].*/.*|[./]*[\w~-].*/|.*\w\.\w+|/[\w.~-]+.*", re.DOTALL)
_PATTERN = re.compile(r"(?=.*[./])\S*\*\S*")
_QUOTED = re.compile(r"'([^'\n]+)'")
"""A text in a query of SQL, which may name a file."""
_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
"""What `make` looks for, in this order, without being told to; it reads the first."""
_MAKE = frozenset({"make", "gmake", "MAKE"})
_TAKES_TEXTS = frozenset({
    "echo", "printf", "git", "apt", "apt-get", "brew", "conda", "dnf", "pacman", "pip", "uv", "yum",
    "man", "which", "type", "grep", "sed",
})  # fmt: skip
"""Programs that only read the word `make`; others may start it, as `srun make` does."""
_ENDS_A_COMMAND = re.compile(r"[();|&`\n]+")
_SHELL = re.compile(r"(?:.*/)?(?:\w*sh|su)")
_OPTION_OF_A_COMMAND = re.compile(r"-\w*c")
_COMMENT = re.compile(r"""('[^']*'|"(?:\\.|[^"\\])*")|(?<![^\s;&|()])#(?!!).*""")
"""A quoted text, or a comment of a shell, which is no group."""
_RUN_BY_SHELL = re.compile(r"#!.*\b\w*sh\b")


def words_of(command: list[str]) -> list[str]:
    """The words of a command with the words inside them, and the makefiles if it starts `make`."""
    found = [piece for word in command for piece in pieces(word)]
    return [*found, *_MAKEFILES] if _starts_make(command) else found


def pieces(word: str) -> list[str]:
    """A word of a command, and the words inside it if it is itself a command or an option, without
    those to which output is redirected."""
    found = [word]
    if any(character.isspace() or character in "();<>|&" for character in word):
        words = ["", *_split(word)]
        found += [word for before, word in pairwise(words) if ">" not in before]
    found += _BELOW_A_VARIABLE.findall(word)
    found += [piece[2:] for piece in found if piece.startswith("-") and piece[2:]]
    return found + [piece.partition("=")[2] for piece in found if "=" in piece]


def _split(text: str) -> list[str]:
    """The words of a text as a shell reads it, with what separates commands, without comments;
    none if a quote is open."""
    inside = shlex.shlex(_COMMENT.sub(r"\1", text), posix=True, punctuation_chars="();<>|&\n")
    inside.commenters, inside.whitespace = "", " \t\r"
    with contextlib.suppress(ValueError):
        return [*inside]
    return []


def _starts_make(words: list[str]) -> bool:
    """Whether a command may start `make`, which is no mere text in it, as in ``echo make``."""
    is_text = is_in_shell = False
    for before, word in pairwise(("", *words)):
        is_command = is_in_shell and _OPTION_OF_A_COMMAND.fullmatch(before)
        if (is_command or before == "eval") and _starts_make(_split(word)):
            return True
        program = os.path.basename(word).strip("$@+-(){}")
        if program in _MAKE and not is_text:
            return True
        if _ENDS_A_COMMAND.fullmatch(word):
            is_text = is_in_shell = False
        else:  # `conda run make` is no text
            is_text = word != "run" and (is_text or program in _TAKES_TEXTS)
            is_in_shell = is_in_shell or bool(_SHELL.fullmatch(word))
    return False


def paths_in(text: str) -> Iterator[str]:
    """What may be a path in a text: the whole, or a quoted part of a query. A bare word is none: it
    is a name of a column more often than of a folder."""
    if len(text) <= _LONGEST_PATH and "\0" not in text:
        yield from filter(_LIKE_A_PATH.fullmatch, (text, *_QUOTED.findall(text)))


_MOVES = re.compile(r"cd|pushd|-C.*|--directory(?:=.*)?", re.DOTALL)
"""Words that move a command to a folder, from which its other words count."""


def files_named(words: list[str], folder: str, rules: Rules) -> set[str]:
    """The project files that the words of a command name, and those that the scripts among them
    name from the folder in which the command runs or from their own. Of a pattern such as
    ``parts/*.txt``: the files that it finds, and their folder, in which others may appear. With a
    makefile: those that are not there and would be read in its place."""
    found: set[str] = set()
    waiting = [(words, [folder])]
    while waiting:
        words, folders = waiting.pop()
        folders += [f for place in folders for f in _entered(words, place) if f not in folders]
        files = {path for place in folders for path in _files_of(words, place, rules)}
        new = set(filter(rules.is_project, files)) - found
        found |= new
        for path in new:
            if state := state_of(path):
                inner = _words_of_script(path, *state)
                waiting.append((inner, [*folders, os.path.dirname(path)]))
    return found


@lru_cache(256)
def _words_of_script(path: str, *state: int) -> list[str]:
    """The words of a shell script or makefile, which may name files; empty for any other file. A
    script that is started again is read again only if its `state` has changed."""
    with open(path, "rb") as file:
        text = file.read(_SCRIPT_BYTES).decode("utf-8", "replace")
    endings = (".sh", ".bash", ".mk", "makefile", "Makefile")
    if not path.endswith(endings) and not _RUN_BY_SHELL.match(text):
        return []
    lines = text.replace("\\\n", " ").split("\n")
    found = [piece for line in lines for piece in pieces(line)]
    return [*found, *_MAKEFILES] if any(_starts_make(_split(line)) for line in lines) else found


def _entered(words: list[str], folder: str) -> list[str]:
    """The folders to which a command may move, as by ``cd data`` or ``make -C data``: all that it
    names, if it moves at all, since a folder may lie behind a variable."""
    if not any(map(_MOVES.fullmatch, words)):
        return []
    paths = {os.path.abspath(os.path.join(folder, word)): None for word in words if word}
    return list(filter(os.path.isdir, paths))


def _files_of(words: list[str], folder: str, rules: Rules) -> Iterator[str]:
    """The files that the words of a command name, as paths or, after ``-m``, as modules."""
    for before, piece in pairwise(("", *words)):
        inner = piece.replace(".", "/")
        names = [f"{inner}.py", f"{inner}/__main__.py"] if before == "-m" else [piece]
        for place in (folder, *rules.roots) if before == "-m" else [folder]:
            for name in names:
                path = os.path.abspath(os.path.join(place, name))
                if state_of(path) or _is_missed(path):
                    yield path
                elif _PATTERN.fullmatch(name):
                    found = glob.glob(path)
                    yield from filter(state_of, found)
                    yield from {os.path.dirname(inner) for inner in found}


def _is_missed(path: str) -> bool:
    """Whether `make` reads another file only because this one is not there."""
    folder, name = os.path.split(path)
    after = _MAKEFILES[_MAKEFILES.index(name) + 1 :] if name in _MAKEFILES else ()
    return any(state_of(os.path.join(folder, other)) for other in after)
