"""Discovered dependencies: what a step turned out to depend on, and whether it has changed since.

A key holds what a step is expected to depend on. What it really depends on is known only after it
has run: the functions that ran, the modules that it loaded, the files that it read and the folders
that it listed. Each of these that is in no key becomes a *discovered dependency*, like in the
depfiles of a compiler. It is recorded with its digest, and the artifact is a hit only while all
digests are unchanged (Mokhov et al., 2018, call this verifying traces).

- :func:`discover` runs in the worker: it evaluates an observation after the step.
- :class:`Present` serves a planner: it finds what has changed, and reads each file once.

The name of a file in the project is relative to the folder from which the step's module is
imported, or another module that the step has loaded, as `<module>/…`. So a copy of the project
elsewhere has the same names, and its own files are looked at. Other files have absolute paths. A
file that the step found beside an input file has a second name, relative to that file's folder: an
input is known by its content, so another one may lie beside other files.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any

from pipeline import cells
from pipeline.code import Closure, digests_of
from pipeline.dag.canonical import Json, hash_json
from pipeline.dag.digests import file_digests
from pipeline.dag.input_folders import InputFolders
from pipeline.errors import TemperError
from pipeline.installed import in_library
from pipeline.observed.observation import Observation
from pipeline.observed.rules import Rules
from pipeline.observed.states import ABSENT, LINK, folder_digest, state_of, target_of
from pipeline.processes import working_folder
from pipeline.store.accepted import equal_states
from pipeline.store.manifest import Discovered

UNSTEADY = "changed while the step ran"
"""Stands for the digest of a file that changed during the step; it is equal to no digest."""
_UNREADABLE = "unreadable"
_FOLDER = "folder"
_UNKNOWN = "a file that could not be noted"

_MARKS = (".git", "pyproject.toml")
"""In the folder of a project that is copied as a whole."""
_RELATIVE = "./"
"""Begins the name of a file that a step opened relative to its working folder."""

Pairs = Sequence[tuple[Json, Json]]


@dataclass(frozen=True)
class Home:
    """The module of a step, the folder from which it is imported, and where its input files lie."""

    module: str
    folder: str
    inputs: InputFolders = field(default_factory=InputFolders)

    @classmethod
    def read(cls, text: str) -> "Home":
        """The home whose fields were written as JSON."""
        module, folder, (inputs,) = json.loads(text)
        return cls(module, folder, InputFolders(None if inputs is None else tuple(inputs)))

    @classmethod
    def of(cls, module: str, file: str) -> "Home":
        """The home of a module with this file, which may run as a script."""
        path = Path(os.path.abspath(file))
        if path.stem == "__init__":
            path = path.parent
        return cls(module, str(path.parents[module.count(".")]))

    def name(self, path: str, roots: tuple[str, ...], imported: Mapping[str, str]) -> str:
        """The name of a file: its path within the project, or else its absolute path.

        Args:
            imported: the names of modules by the folders from which they are imported.
        """
        own = {self.folder: "", os.path.realpath(self.folder): ""}
        folders = own | {f: f"<{name}>/" for f, name in imported.items() if f not in own}
        root = max((r for r in roots if f"{path}/".startswith(r)), key=len, default="/")
        near = [f for f in folders if _is_below(path, f)]  # else beside it, in a project or a root
        near = near or [f for f in folders if _is_below(path, _project_of(f))]
        near = near or [f for f in folders if root != "/" and f"{f}/".startswith(root)]
        if near:
            nearest = max(near, key=lambda folder: len(os.path.commonpath([folder, path])))
            return folders[nearest] + os.path.relpath(path, nearest)
        if not in_library(f"{self.folder}/x") and f"{path}/".startswith(roots):
            return os.path.relpath(path, self.folder)
        return path

    def path(self, name: str) -> str | None:
        """The file with this name; None if it is named after a module that is there no more, or
        after input files that do not lie in one folder any more."""
        if InputFolders.has(name):
            return self.inputs.path(name)
        start = working_folder() if name.startswith(_RELATIVE) else self.folder
        if name.startswith("<"):
            module, _, name = name[1:].partition(">/")
            file = _file_of(module)
            if file is None:
                return None
            start = Home.of(module, file).folder
        return os.path.normpath(os.path.join(start, name))


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


@cache
def _project_of(folder: str) -> str:
    """The innermost folder above one of code that holds a repository or a project's settings; the
    folder itself if there is none."""
    above = (folder, *map(str, Path(folder).parents))
    marked = (top for top in above if any(os.path.exists(f"{top}/{name}") for name in _MARKS))
    return next(marked, folder)


def home_of(function: Any, arguments: Mapping[str, Json] | None = None) -> Home:
    """The location of a step function's code, and of the input files among the arguments."""
    inner = inspect.unwrap(function.function)
    home = Home.of(function.reference.partition(":")[0], cells.project_file(inner))
    return replace(home, inputs=InputFolders.of(arguments))


# --- the worker's side ---------------------------------------------------------------------------


def discover(observation: Observation, home: Home, closure: Closure) -> Discovered:
    """The observed dependencies that are in no key."""
    modules = _modules(observation)
    reads, folders, names = _events(observation.events, home.inputs)
    code, sources = _code(modules, home, closure, observation)
    for path in sources:
        reads[path] = modules[path].digest
    rules = observation.rules
    imported = _imported(
        {path: module.name for path, module in modules.items()},
        closure,
        lambda path, name: _file_of(name) == path,
    )
    by_name = partial(_by_name, names, home, rules, imported)
    files = by_name({path: _read_digest(path, reads[path]) for path in sorted(reads)})
    return Discovered(
        code=dict(sorted(code.items())),
        files=files if observation.is_complete else {**files, _UNKNOWN: UNSTEADY},
        folders=by_name(dict(sorted(folders.items()))),
    )


def _by_name(
    names: "_Names", home: Home, rules: Rules, imported: Mapping[str, str], of: Mapping[str, str]
) -> dict[str, str]:
    """What is known of files, by the names under which these are recorded."""
    return {
        name: value
        for path, value in of.items()
        for name in names.of(path, home.name(path, rules.roots, imported), rules.start)
    }


@dataclass(frozen=True)
class Earlier:
    """What earlier attempts depended on, of which scratch has results.

    modules: of the files that are modules, the names.
    """

    discovered: Discovered
    modules: Mapping[str, str]


def discover_earlier(folder: Path, home: Home, rules: Rules, closure: Closure) -> Earlier:
    """The dependencies of an attempt that may have been killed, from the folder of its records.

    Which functions of a module ran is not known. So a module counts with its bytes if the present
    closure has no part of it, and otherwise not: what the step reaches of it is in the key.
    """
    known = set(map(os.path.abspath, closure.sources))
    of_details = {unit.partition(":")[0] for unit in closure.details}
    loaded = {path: (name, digest) for name, path, digest, _ in _records(f"{folder}/modules")}
    reads, folders, names = _events(f"{folder}/events", home.inputs)
    modules: dict[str, str] = {}
    for path, (name, digest) in loaded.items():
        is_known = _file_of(name) in known or name in of_details
        if not is_known and rules.counts(path):
            reads[path], modules[path] = digest, name
    called = {path: name for path, (name, _) in loaded.items()}
    imported = _imported(called, closure, lambda _, name: _file_of(name) is not None)
    by_name = partial(_by_name, names, home, rules, imported)
    files = by_name({path: _read_digest(path, seen) for path, seen in reads.items()})
    return Earlier(Discovered({}, files, by_name(folders)), by_name(modules))


def with_earlier(found: Discovered, earlier: Earlier, observation: Observation) -> Discovered:
    """The dependencies of an attempt and of those whose results it has used. A module that it has
    loaded itself counts as it does."""
    own = {module.name for module in _modules(observation).values()}
    files = {n: d for n, d in earlier.discovered.files.items() if earlier.modules.get(n) not in own}
    return Discovered(
        found.code,
        _agreeing(files, found.files),
        _agreeing(earlier.discovered.folders, found.folders),
    )


def _agreeing(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Both; what differs has changed between two attempts."""
    differ = {name: UNSTEADY for name in before.keys() & now.keys() if before[name] != now[name]}
    return dict(sorted({**before, **now, **differ}.items()))


def started_python(observation: Observation) -> bool:
    """Whether the step has started another Python, which imports project code from its files."""
    return any(kind == "python" for kind, *_ in _records(observation.events))


@dataclass
class _Module:
    """A module of project code, as loaded by all processes together.

    Attributes:
        digest: the digest of its bytes.
        ran: its units that ran; ``None`` if any of them may have run.
    """

    name: str
    digest: str
    ran: set[str] | None


def _modules(observation: Observation) -> dict[str, _Module]:
    """The modules that were loaded, by path."""
    found: dict[str, _Module] = {}
    start = 0
    for line in Path(observation.modules).read_bytes().splitlines(keepends=True):
        name, path, digest, units = json.loads(line)
        module = found.setdefault(path, _Module(name, digest, set()))
        if module.digest != digest:
            module.digest = UNSTEADY
        if not _is_called_so(path, name):
            module.name = name  # a second copy, whose values may be read without any call
        if units is None:
            module.ran = None
        elif module.ran is not None:
            ran = observation.marks[start : start + len(units)]
            module.ran.update(unit for unit, mark in zip(units, ran, strict=True) if mark)
        start += len(line)
    return found


def _code(
    modules: Mapping[str, _Module], home: Home, closure: Closure, observation: Observation
) -> tuple[dict[str, str], list[str]]:
    """Digests of units outside the closure, and files of modules without an importable name."""
    known = closure.units.keys() | closure.details
    analysed = set(map(os.path.abspath, closure.sources))
    of_details = {unit.partition(":")[0] for unit in closure.details}
    wanted: dict[str, _Module] = {}
    for path, module in modules.items():
        is_analysed = path in analysed and _is_called_so(path, module.name)
        read = is_analysed or module.name in of_details
        if not read or module.ran is None:
            wanted[f"{module.name}:*"] = module
        else:
            units = (f"{module.name}:{unit}" for unit in module.ran)
            wanted |= {unit: module for unit in units if unit not in known}
    paths = {module.name: path for path, module in modules.items()}
    for kind, name, *details in _records(observation.events):
        if kind == "module" and name in paths and (unit := f"{name}:{details[0]}") not in known:
            wanted[unit] = modules[paths[name]]
    nameless = {name for name, path in paths.items() if _file_of(name) != path}
    names = [name for name, module in wanted.items() if module.name not in nameless]
    digests = digests_of(names, home.module)
    whole = [f"{wanted[n].name}:*" for n in names if digests[n] is None]
    digests = {n: d for n, d in digests.items() if d is not None} | digests_of(whole, home.module)
    found: dict[str, str] = {}
    for name, digest in digests.items():
        module = wanted.get(name) or modules[paths[name.partition(":")[0]]]
        is_steady = _present_file(paths[module.name]) == module.digest
        found[name] = digest if digest is not None and is_steady else UNSTEADY
    sources = [paths[name] for name in {module.name for module in wanted.values()} & nameless]
    return found, sorted(filter(observation.rules.counts, sources))


def _imported(
    names: Mapping[str, str], closure: Closure, can_be_found: Callable[[str, str], bool]
) -> dict[str, str]:
    """The folders from which modules were imported, each with the name of one of them that a
    planner can find: one in the key, if there is any, and one near the top.

    Args:
        names: those of the modules, by path.
    """
    analysed = set(map(os.path.abspath, closure.sources))
    called = [(path, name) for path, name in names.items() if _is_called_so(path, name)]
    found: dict[str, str] = {}
    for path, name in sorted(called, key=lambda m: (m[0] not in analysed, m[1].count("."), m[1])):
        folder = Home.of(name, path).folder
        if folder not in found and can_be_found(path, name):
            found |= {folder: name, os.path.realpath(folder): name}
    return found


def _is_called_so(path: str, module: str) -> bool:
    """Whether a file is one for a module of this name, and was not loaded under a made-up name."""
    place = module.replace(".", "/")
    return path.endswith((f"/{place}.py", f"/{place}/__init__.py"))


def _file_of(module: str) -> str | None:
    """The file of a module, found without importing anything."""
    folders = spec = None
    for name in accumulate(module.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return os.path.abspath(spec.origin) if spec and spec.origin else None


@dataclass(frozen=True)
class _Names:
    """How the step named files.

    Attributes:
        relative: the paths that it gave relative to its working folder.
        bases: the paths that it made absolute from there; ``start`` if it asked for the folder.
        beside: the names of paths that it found beside input files.
    """

    relative: set[str]
    bases: set[str]
    beside: dict[str, set[str]]

    def of(self, path: str, name: str, start: str) -> list[str]:
        """The names under which a file is recorded; ``name`` is the one apart from working folders
        and inputs."""
        from_start = _RELATIVE + os.path.relpath(path, start or "/")
        parents = {path, *map(str, Path(path).parents)} & self.bases
        beside = sorted(self.beside.get(path, ()))
        if path in self.relative or parents - {start}:
            return [from_start, *beside]
        return [name, from_start, *beside] if parents else [name, *beside]


def _events(file: str, inputs: InputFolders) -> tuple[dict[str, Any], dict[str, str], _Names]:
    """For each file that the step read before it wrote it: its state or its digest. For each folder
    that the step listed and did not make: its digest. How it named them."""
    reads: dict[str, Any] = {}
    folders: dict[str, str] = {}
    links: dict[str, str] = {}
    names = _Names(set(), set(), {})
    kept: dict[str, str] = {}
    own: set[str] = set()
    made: list[str] = []
    for kind, path, *details in _records(file):
        if kind in ("relative", "base"):
            (names.relative if kind == "relative" else names.bases).add(path)
        elif kind == "beside":
            names.beside.setdefault(path, set()).update(inputs.names(path, details[0]))
        elif kind == "read" and path in kept:
            reads[path] = kept.pop(path)
        elif path in own or path.startswith(tuple(made)):
            continue
        elif kind == "read":
            reads.setdefault(path, details[0])
        elif kind == "before":
            state, digest = details
            if not isinstance(reads.get(path), str):
                reads[path] = digest if reads.get(path, state) == state else UNSTEADY
        elif kind == "list":
            folders.setdefault(path, details[0])
        elif kind == "link":
            links.setdefault(path, details[0])
        elif kind == "kept":
            kept[path] = details[1]
        elif kind == "make":
            made.append(f"{path}/")
            own.add(path)
            reads.pop(path, None)
        elif kind == "write" and reads.get(path) is None:
            own.add(path)
            reads.pop(path, None)
    through = {os.path.realpath(path): reads[path] for path in links if path in reads}
    return {**through, **reads, **links}, folders, names


def _records(path: str) -> Iterator[list[Any]]:
    for line in Path(path).read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):  # a copy that was made while the step ran may end in a part
            yield json.loads(line)


def _read_digest(path: str, seen: Any) -> str:
    """The digest of a file that was read, from its digest or its state at that time."""
    if isinstance(seen, str):
        return seen
    digest = _present_file(path)
    is_steady = state_of(path) == seen and digest != _UNREADABLE
    return digest if is_steady else UNSTEADY


# --- the planner's side --------------------------------------------------------------------------


class Present:
    """The present state of dependencies, each read once: a plan sees one version of everything."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], str] = {}

    def changes(
        self, home: Home, discovered: Discovered, accepted: Callable[[], Pairs] = tuple
    ) -> list[str]:
        """A phrase for each dependency that has changed; none if ``accepted`` returns pairs of
        states (:func:`state_of_discovered`) by which the change is accepted."""
        now = self.state(home, discovered) if discovered else discovered
        if now == discovered:
            return []
        if state_of_discovered(now) in equal_states(state_of_discovered(discovered), accepted()):
            return []
        code = discovered.code.items()
        phrases = [_of_code(name) for name, digest in code if now.code[name] != digest]
        of_files: dict[str, str] = {}  # by the file, which may have two names
        for name, digest in discovered.files.items():
            if now.files[name] != digest:
                phrase = _of_file(name, digest, now.files[name])
                of_files.setdefault(home.path(name) or name, phrase)
        phrases += of_files.values()
        for name, digest in discovered.folders.items():
            if now.folders[name] != digest:
                phrases.append(f"what is in the folder {_shown(name)}, which it listed, changed")
        return phrases

    def state(self, home: Home, discovered: Discovered) -> Discovered:
        """The same dependencies with their present digests."""
        place = f"{home.folder} {home.module}"
        unseen = [name for name in discovered.code if (place, name) not in self._seen]
        now = _present_code(unseen, home) if unseen else {}
        gone = {name: discovered.code[name] for name, digest in now.items() if digest is None}
        moved = _elsewhere(gone, home) if gone else set()
        for name, digest in now.items():
            digest = discovered.code[name] if name in moved else digest
            self._seen[place, name] = digest or ABSENT
        code = {name: self._seen[place, name] for name in discovered.code}
        looks = {
            name: target_of if digest.startswith(LINK) else _present_file
            for name, digest in discovered.files.items()
        }
        files = {name: self._of(look, home.path(name)) for name, look in looks.items()}
        folders = {name: self._of(folder_digest, home.path(name)) for name in discovered.folders}
        if home.inputs.folders is None:  # where they lie now is not known
            files |= {n: d for n, d in discovered.files.items() if InputFolders.has(n)}
            folders |= {n: d for n, d in discovered.folders.items() if InputFolders.has(n)}
        return Discovered(code, files, folders)

    def _of(self, look: Any, path: str | None) -> str:
        if path is None:
            return _UNREADABLE
        if (look.__name__, path) not in self._seen:
            self._seen[look.__name__, path] = look(path)
        return self._seen[look.__name__, path]


def discovered_lines(discovered: Discovered) -> list[str]:
    """A phrase for each discovered dependency."""
    files = discovered.files.items()
    return [
        *(f"{_unit(n)} {'was imported' if _is_whole(n) else 'ran'}" for n in discovered.code),
        *(f"{_shown(name)} was {_what_was_done(digest)}" for name, digest in files),
        *(f"the folder {_shown(name)} was listed" for name in discovered.folders),
    ]


def state_of_discovered(discovered: Discovered) -> Json:
    """The entry that represents the dependencies when two states are accepted as equivalent."""
    digest = hash_json([{**discovered.code}, {**discovered.files}, {**discovered.folders}])
    return {"discovered": digest}


def _present_code(names: list[str], home: Home) -> Mapping[str, str | None]:
    try:
        return digests_of(names, home.module)
    except TemperError:  # a file is not valid Python now
        return dict.fromkeys(names, _UNREADABLE)


def _elsewhere(gone: Mapping[str, str], home: Home) -> set[str]:
    """The missing units, given with their former digests, that another module of the step's
    package, or beside the step's module, holds now."""
    folder, package = Path(home.folder), home.module.partition(".")[0]
    files = (folder / package).rglob("*.py") if "." in home.module else folder.glob("*.py")
    places: dict[str, list[str]] = {name: [] for name in gone}
    for file in files:
        source = file.read_bytes()
        module = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for name, found in places.items():
            was, _, unit = name.partition(":")
            alike = file.stem == was.rpartition(".")[2]
            if unit.encode() in source if unit.isidentifier() else alike:
                found.append(f"{module}:{unit}")
    now = _present_code([place for found in places.values() for place in found], home)
    return {name for name, found in places.items() if gone[name] in map(now.get, found)}


def _present_file(path: str) -> str:
    state = state_of(path)
    if state is None:
        return ABSENT
    if not state and os.path.isdir(path):
        return _FOLDER
    try:
        return file_digests([path])[0]
    except (OSError, ValueError, TemperError):
        return _UNREADABLE


def _of_code(name: str) -> str:
    return f"{_unit(name)}, which it {'imported' if _is_whole(name) else 'ran'}, changed"


def _unit(name: str) -> str:
    """The name of a unit; for a whole module, the name of the module."""
    return name.removesuffix(":*")


def _shown(name: str) -> str:
    """A file's name as text, without the module; its bytes need not be valid text."""
    within = name.partition(">/")[2] if name.startswith("<") else name
    where = " beside an input" if InputFolders.has(name) else ""
    return within.encode("utf-8", "backslashreplace").decode() + where


def _what_was_done(digest: str) -> str:
    if digest == ABSENT:
        return "looked for, and not there"
    return "looked for" if digest == _FOLDER or digest.startswith(LINK) else "read"


def _is_whole(name: str) -> bool:
    return name.endswith(":*")


def _of_file(name: str, was: str, now: str) -> str:
    name = _shown(name)
    if was == UNSTEADY:
        return f"{name}, which it read, changed while it ran"
    if was == ABSENT:
        return f"{name}, which it looked for, is there now"
    return f"{name}, which it read, {'is gone' if now == ABSENT else 'changed'}"
