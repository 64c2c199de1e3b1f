"""The trace of a step: what it turned out to depend on, and whether it has changed since.

A key holds the step's name, its arguments and the digests of its inputs. What the step depends on
besides is known only after it has run: the code that ran, the files that it read and the folders
that it listed. Each is recorded with its digest, like in the depfiles of a compiler, and the
artifact is a hit only while all digests are unchanged (Mokhov et al., 2018, call this verifying
traces). Which code counts is the rule of :mod:`pipeline.trace.counted`.

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
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pipeline.base import cells, user_cache
from pipeline.base.errors import TemperError
from pipeline.base.installed import SHIPPED_STEPS, in_library, releases
from pipeline.base.processes import working_folder
from pipeline.dag.canonical import Json
from pipeline.dag.digests import file_digests
from pipeline.dag.input_folders import InputFolders
from pipeline.observed import native
from pipeline.observed.file_fingerprints import (
    ABSENT,
    LINK,
    UNSTEADY,
    folder_digest,
    state_of,
    target_of,
)
from pipeline.observed.observation import Observation
from pipeline.observed.path_filter import Rules
from pipeline.store.manifest import Discovered
from pipeline.trace import counted, sources
from pipeline.trace.changes import RELEASE, UNREADABLE, Sources, code_changes, file_of
from pipeline.trace.counted import ALL, ASKED, BY_FILE, IMPORT, TEXT, Loaded, seen_in
from pipeline.trace.modules import Modules, is_core
from pipeline.trace.source_parts import Source

_FOLDER, _PACKAGE = "folder", "/__init__.py"
_UNKNOWN = "a file that could not be noted"

_MARKS = (".git", "pyproject.toml")
"""In the folder of a project that is copied as a whole."""
_RELATIVE = "./"
"""Begins the name of a file that a step opened relative to its working folder."""

Accepted = Mapping[str, Sequence[Discovered]]
_RULE = f"{user_cache.version_of('*.py', folder=Path(sources.__file__).parent)} {sys.version}"


@dataclass(frozen=True)
class Home:
    """Where a step's code begins and its files lie.

    Attributes:
        folder: the folder from which the module is imported.
        function: the qualified name of the step function.
        types: ``module:name`` of each class of its arguments and inputs, in order; ``None`` if
            they are those of any trace.
    """

    module: str
    folder: str
    inputs: InputFolders = field(default_factory=InputFolders)
    function: str = ""
    types: tuple[str, ...] | None = None

    @classmethod
    def read(cls, text: str) -> "Home":
        """The home whose fields were written as JSON."""
        module, folder, (inputs,), function, types = json.loads(text)
        folders = InputFolders(None if inputs is None else tuple(inputs))
        return cls(module, folder, folders, function, None if types is None else tuple(types))

    @classmethod
    def of(cls, module: str, file: str) -> "Home":
        """The home of a module with this file, which may run as a script."""
        path = Path(os.path.abspath(file))
        if path.stem == "__init__":
            path = path.parent
        return cls(module, str(path.parents[module.count(".")]))

    def places(self) -> Modules:
        """Where modules lie now, also those that a trace names by their files."""
        return Modules(self.module, self.path)

    def entry(self, types: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The step function and the classes; ``types`` are the classes if they are not known. A
        class of the core counts by its name: the core is no code of a project."""
        classes = types if self.types is None else self.types
        named = (f"pipeline:{t.partition(':')[2]}" if is_core(t) else t for t in classes)
        return f"{self.module}:{self.function}", *sorted(named)

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
            file = self.places().file(module)
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


def home_of(function: Any, arguments: Mapping[str, Json], types: tuple[str, ...]) -> Home:
    """The home of a call of a step function.

    Args:
        arguments: in the form for a worker.
        types: ``module:name`` of each class of the arguments and inputs, in order.
    """
    inner = inspect.unwrap(function.function)
    module, _, name = function.reference.partition(":")
    home = Home.of(module, cells.project_file(inner))
    return replace(home, inputs=InputFolders.of(arguments), function=name, types=types)


# --- the worker's side ---------------------------------------------------------------------------


def discover(observation: Observation, home: Home, earlier: "Earlier") -> Discovered:
    """The dependencies of an attempt, and of earlier ones whose results it has used."""
    modules = _modules(observation.modules, observation.marks)
    code, its_looks, held = _code(modules, observation.events, observation.rules, home, earlier)
    release = _release(home, modules, code)
    found = _found(modules, observation.events, observation.rules, home)
    is_complete = observation.is_complete and not _has_lost(observation.events)
    files = found.files if is_complete else {**found.files, _UNKNOWN: UNSTEADY}
    trace = Discovered(
        code=code | ({f"{home.module}:{RELEASE}": release} if release else {}),
        files=_agreeing(earlier.discovered.files, files),
        folders=_agreeing(earlier.discovered.folders, found.folders),
        looks=its_looks,
        entry=home.entry(),
    )
    if UNSTEADY not in code.values():
        _hold(trace, *held)
    return trace


def _release(home: Home, modules: "Mapping[str, _Module]", code: Mapping[str, str]) -> str:
    """The release of a shipped step that ran as it is installed; empty if it is no such step, or if
    its code changed while it ran."""
    release = releases().get(home.module, "") if _is_shipped(home) else ""
    shipped = {path for path in modules if path.startswith(f"{SHIPPED_STEPS}{os.sep}")}
    is_steady = UNSTEADY not in code.values() and all(
        modules[path].digest == sources.digest_of(Path(path).read_bytes()) for path in shipped
    )
    return release if is_steady else ""


def _is_shipped(home: Home) -> bool:
    """Whether the module is in the shipped package: a project may have one of the same name."""
    package = Path(SHIPPED_STEPS)
    return home.module.startswith(f"{package.name}.") and home.folder == str(package.parent)


def _found(modules: "Mapping[str, _Module]", events: str, rules: Rules, home: Home) -> Discovered:
    """The files and folders that a step used; a program, and code beside an input, is a file."""
    records = native.plain(_records(events), rules, os.path.dirname(events))
    reads, folders, names = _events(records, home.inputs)
    for path in filter(rules.counts, modules):
        if path in names.beside or _is_foreign(path, modules[path]):
            reads[path] = modules[path].digest
    by_name = partial(_by_name, names, home, rules, _imported(modules, home))
    files = by_name({path: _read_digest(path, reads[path]) for path in sorted(reads)})
    return Discovered({}, files, by_name(dict(sorted(folders.items()))))


def has_unseen(observation: Observation) -> bool:
    """Whether the step started a program of which nothing was seen."""
    return any(kind == "started" for kind, *_ in _records(observation.events))


def _has_lost(events: str) -> bool:
    return any(kind == "lost" for kind, *_ in _records(events))


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

    sources: the digest of the source of each module that they loaded, by its name.
    """

    discovered: Discovered = field(default_factory=Discovered)
    sources: Mapping[str, str] = field(default_factory=dict)


def discover_earlier(folder: Path, home: Home, rules: Rules) -> Earlier:
    """The dependencies of an attempt that may have been killed, from the folder of its records."""
    marks, events = (folder / "marks").read_bytes(), f"{folder}/events"
    modules = _modules(f"{folder}/modules", marks)
    code, *_ = _code(modules, events, rules, home, Earlier())
    found = _found(modules, events, rules, home)
    known = _known(modules, rules, home, home.places())
    trace = Discovered(code, found.files, found.folders, entry=home.entry())
    return Earlier(trace, {name: modules[path].digest for name, path in known.items()})


def _agreeing(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Both; what differs has changed between two attempts."""
    differ = {name: UNSTEADY for name in before.keys() & now.keys() if before[name] != now[name]}
    return dict(sorted({**before, **now, **differ}.items()))


@dataclass
class _Module:
    """A module of project code, as loaded by all processes together.

    Attributes:
        digest: the digest of its bytes.
        ran: its functions that ran; ``None`` if any of them may have run.
    """

    name: str
    digest: str
    ran: set[str] | None


def _modules(file: str, marks: Any) -> dict[str, _Module]:
    """The modules that were loaded, by path, from the file of their records."""
    found: dict[str, _Module] = {}
    start = 0
    for line in Path(file).read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):  # a copy that was made while the step ran
            break
        name, path, digest, units, *kept = json.loads(line)
        first = kept[0] if kept else start
        module = found.setdefault(path, _Module(name, digest, set()))
        if module.digest != digest:
            module.digest = UNSTEADY
        if not _is_called_so(path, name):
            module.name = name  # a second copy, whose values may be read without any call
        if units is None:
            module.ran = None
        elif module.ran is not None:
            ran = marks[first : first + len(units)]
            module.ran.update(unit for unit, mark in zip(units, ran, strict=True) if mark)
        start += len(line)
    return found


def _code(
    modules: Mapping[str, _Module], events: str, rules: Rules, home: Home, earlier: Earlier
) -> tuple[dict[str, str], dict[str, str], "_Held"]:
    """The digests and the looks of the code that counts, and its modules as they were."""
    places, loaded = home.places(), dict[str, Loaded]()
    unsteady, held, had = dict[str, str](), dict[str, tuple[str, bool]](), dict[str, int]()
    seen = seen_in(earlier.discovered.code)
    asked = _asked(events)
    for name, path in _known(modules, rules, home, places).items():
        nothing = None if BY_FILE in name else frozenset[str]()
        ran, before = seen.pop(name, (nothing, frozenset[str]()))
        module = modules[path]
        if (source := _source(path, module.digest)) is None:
            unsteady[f"{name}:{ALL}"] = UNSTEADY
        else:
            all_ran = None if module.ran is None or ran is None else ran | module.ran
            names = before | asked.get(name, set())
            loaded[name] = Loaded(source, path.endswith(_PACKAGE), all_ran, names)
            held[name] = module.digest, path.endswith(_PACKAGE)
    for name, (ran, before) in seen.items():
        file, digest = places.file(name), earlier.sources.get(name, "")
        if file is None or (source := _source(file, digest)) is None:
            unsteady[f"{name}:{ALL}"] = UNSTEADY
        else:
            loaded[name] = Loaded(source, file.endswith(_PACKAGE), ran, before)
            held[name] = digest, file.endswith(_PACKAGE)
    code, its_looks = counted.digests_and_looks(loaded, lambda n: had.setdefault(n, places.has(n)))
    return {**code, **unsteady}, its_looks, (held, had)


def _known(
    modules: Mapping[str, _Module], rules: Rules, home: Home, places: Modules
) -> dict[str, str]:
    """The names by which a planner finds modules, and their files. Those that are not found by
    their own names are found by their files."""
    found, imported = dict[str, str](), cache(lambda: _imported(modules, home))
    for path, module in modules.items():
        if places.file(module.name) == path:
            found[module.name] = path
        elif rules.counts(path) and not _is_foreign(path, module):
            file = home.name(path, rules.roots, imported())
            name = module.name.replace(":", "_").replace(BY_FILE, "_")
            found[f"{name}{BY_FILE}{file.replace(':', '//')}"] = path
    return found


def _is_foreign(path: str, module: _Module) -> bool:
    """Whether all bytes of a module count: it runs as a program, or a loader translates it."""
    is_python = path.endswith(".py") or _source(path, module.digest) is not None
    return not is_python or module.name == "__main__"


def _asked(events: str) -> dict[str, frozenset[str]]:
    """What the step looked up by names known only at run time: names in a module, by the module."""
    found: dict[str, frozenset[str]] = {}
    for kind, name, *details in _records(events):
        if kind == "module":
            found[name] = found.get(name, frozenset()) | {str(details[0])}
    return found


def _source(path: str, digest: str) -> Source | None:
    """The statements of a module as it was loaded; ``None`` if nothing has these bytes now."""
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        if (found := sources.known(digest)) is not None:
            return found
        content = Path(path).read_bytes()
        return sources.parsed(content) if sources.digest_of(content) == digest else None
    return None


def _imported(modules: Mapping[str, _Module], home: Home) -> dict[str, str]:
    """The folders from which modules were imported, each with the name of one of them that a
    planner can find: the step's own, if it is there, or one near the top."""
    called = [(path, m.name) for path, m in modules.items() if _is_called_so(path, m.name)]
    places, found = Modules(home.module), dict[str, str]()
    for path, name in sorted(called, key=lambda m: (m[1] != home.module, m[1].count("."), m[1])):
        folder = Home.of(name, path).folder
        if folder not in found and places.file(name) is not None:
            found |= {folder: name, os.path.realpath(folder): name}
    return found


def _is_called_so(path: str, module: str) -> bool:
    """Whether a file is one for a module of this name, and was not loaded under a made-up name."""
    place = module.replace(".", "/")
    return path.endswith((f"/{place}.py", f"/{place}/__init__.py"))


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


def _events(
    records: Iterable[list[Any]], inputs: InputFolders
) -> tuple[dict[str, Any], dict[str, str], _Names]:
    """For each file that the step read before it wrote it: its state or its digest. For each folder
    that the step listed and did not make: its digest. How it named them."""
    reads: dict[str, Any] = {}
    folders: dict[str, str] = {}
    links: dict[str, str] = {}
    names = _Names(set(), set(), {})
    kept: dict[str, str] = {}
    own: set[str] = set()
    made: list[str] = []
    for kind, path, *details in records:
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
        elif kind == "forget":
            reads.pop(path, None)
        elif kind == "make":
            made.append(f"{path}/")
            own.add(path)
            for gone in [p for p in reads if p == path or p.startswith(made[-1])]:
                if gone == path or reads[gone] is None:
                    del reads[gone]
            if folders.get(path) == ABSENT:
                del folders[path]
        elif kind == "write" and reads.get(path) is None:
            own.add(path)
            reads.pop(path, None)
    reads = {p: s for p, s in reads.items() if s != [] or folders.get(p, ABSENT) == ABSENT}
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
    is_steady = state_of(path) == seen and digest != UNREADABLE
    return digest if is_steady else UNSTEADY


# --- the planner's side --------------------------------------------------------------------------


class Present:
    """The present state of dependencies, each read once: a plan sees one version of everything."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], str] = {}
        self._places: dict[tuple[str, str], Modules] = {}
        self._states: dict[tuple[Home, int], tuple[Discovered, Discovered]] = {}
        self._releases: Mapping[str, str] | None = None
        self._words: dict[int, tuple[Discovered, list[str]]] = {}  # by the present state

    def changes(
        self, home: Home, discovered: Discovered, accepted: Callable[[], Accepted] = dict
    ) -> list[str]:
        """A phrase for each dependency that has changed; none if this trace holds, or one that
        ``accepted`` returns for its state."""
        return self.differences(home, *self.nearest(home, discovered, accepted))

    def differences(self, home: Home, was: Discovered, now: Discovered) -> list[str]:
        """A phrase for each dependency that differs between a trace and its present state."""
        if was == now:
            return []
        if id(now) not in self._words:  # many artifacts share a trace
            self._words[id(now)] = now, self._differences(home, was, now)
        return self._words[id(now)][1]

    def _differences(self, home: Home, was: Discovered, now: Discovered) -> list[str]:
        then, today = _held_sources(was), _sources(was, self._modules(home))
        phrases = _entry_changes(was.entry, now.entry)
        phrases += code_changes(was.code, now.code, then, today)
        of_files: dict[str, str] = {}  # by the file, which may have two names
        for name, digest in was.files.items():
            if now.files[name] != digest:
                phrase = _of_file(name, digest, now.files[name])
                of_files.setdefault(home.path(name) or name, phrase)
        phrases += of_files.values()
        for name, digest in was.folders.items():
            if now.folders[name] != digest:
                phrases.append(f"what is in the folder {_shown(name)}, which it listed, changed")
        return phrases

    def nearest(
        self, home: Home, discovered: Discovered, accepted: Callable[[], Accepted] = dict
    ) -> tuple[Discovered, Discovered]:
        """Of a trace and the accepted ones for its state: the one with the fewest changes, and the
        same with its present digests."""
        now = self.state(home, discovered) if discovered else discovered
        found = [(discovered, now)]
        if now != discovered:
            others = accepted().get(discovered.state, ())
            found[:0] = [(other, self.state(home, other)) for other in others]  # they are newer
        return min(found, key=lambda pair: _distance(*pair))

    def state(self, home: Home, discovered: Discovered) -> Discovered:
        """The same dependencies with their present digests; computed once for a trace that many
        artifacts share."""
        known = self._states.get((home, id(discovered)))
        if known is None or known[0] is not discovered:
            known = self._states[home, id(discovered)] = discovered, self._state(home, discovered)
        return known[1]

    def _state(self, home: Home, discovered: Discovered) -> Discovered:
        places = self._modules(home)
        looks = {
            name: target_of if digest.startswith(LINK) else _present_file
            for name, digest in discovered.files.items()
        }
        files = {name: self._of(look, home.path(name)) for name, look in looks.items()}
        folders = {name: self._of(folder_digest, home.path(name)) for name in discovered.folders}
        if home.inputs.folders is None:  # where they lie now is not known
            files |= {n: d for n, d in discovered.files.items() if InputFolders.has(n)}
            folders |= {n: d for n, d in discovered.folders.items() if InputFolders.has(n)}
        entry = home.entry(discovered.entry[1:])
        now = Discovered(_present_code(discovered, places), files, folders, entry=entry)
        return self._released(home, discovered, now)

    def _released(self, home: Home, was: Discovered, now: Discovered) -> Discovered:
        """Code of the release of a shipped step counts as it was, while that release is here, and
        so do the places of its classes."""
        if (unit := f"{home.module}:{RELEASE}") not in was.code:
            return now
        self._releases = releases() if self._releases is None else self._releases
        release = self._releases.get(home.module, "") if _is_shipped(home) else ""
        if release != was.code[unit]:  # in a checkout, its code counts by itself
            return replace(now, code={**now.code, unit: release or was.code[unit]})
        shipped = f"{home.module.partition('.')[0]}."
        code = {name: digest for name, digest in was.code.items() if name.startswith(shipped)}
        code |= {name: d for name, d in now.code.items() if not name.startswith(shipped)}
        classes = [name for name in was.entry[1:] if name.startswith(shipped)]
        classes += [name for name in now.entry[1:] if not name.startswith(shipped)]
        return replace(now, code=code, entry=(*now.entry[:1], *sorted(classes)))

    def _modules(self, home: Home) -> Modules:
        project = home.module.partition(".")[0], home.folder
        return self._places.setdefault(project, home.places())

    def _of(self, look: Any, path: str | None) -> str:
        if path is None:
            return UNREADABLE
        if (look.__name__, path) not in self._seen:
            self._seen[look.__name__, path] = look(path)
        return self._seen[look.__name__, path]


def described(discovered: Discovered) -> list[str]:
    """A phrase for each module, file and folder in a trace."""
    units: dict[str, list[str]] = {}
    for name in discovered.code:
        module, _, unit = name.partition(":")
        module = file_of(module) or module
        named = units.setdefault(module, [])
        if not (unit.startswith(ASKED) or unit in (IMPORT, TEXT, RELEASE)):
            named.append("all of it" if unit == ALL else unit)
    bare = ", ".join(module for module, named in units.items() if not named)
    found = [f"{module}: {', '.join(named)}" for module, named in units.items() if named]
    found += [f"the top level alone of {bare}"] if bare else []
    files = {_shown(n).removeprefix("./"): digest for n, digest in discovered.files.items()}
    found += [f"{name} was {_what_was_done(digest)}" for name, digest in files.items()]
    folders = dict.fromkeys(_shown(name).removeprefix("./") for name in discovered.folders)
    return found + [f"the folder {name} was listed" for name in folders]


def _distance(was: Discovered, now: Discovered) -> int:
    """How much differs between a trace and its present state."""
    pairs = (was.code, now.code), (was.files, now.files), (was.folders, now.folders)
    differ = ({*one.items()} ^ {*other.items()} for one, other in pairs)
    return sum(map(len, differ)) + (was.entry != now.entry)


def _present_code(trace: Discovered, places: Modules) -> Mapping[str, str]:
    """The present digests of the code that counts. They depend on the sources of its modules, and
    on which modules there are: while both are as when the trace last held, it holds."""
    held, had = _held(trace)
    if held and all(places.has(name) == was for name, was in had.items()):
        with suppress(OSError):
            if all(_file_of_module(name, places) == was for name, was in held.items()):
                return trace.code
    today, gone = _sources(trace, places), dict[str, str]()
    for name in seen_in(trace.code).keys() - today.modules.keys():
        gone[f"{name}:{ALL}"] = ABSENT if places.file(name) is None else UNREADABLE
    asked = dict[str, int]()
    found = counted.digests(today.modules, lambda n: asked.setdefault(n, places.has(n)))
    now = {**found, **gone}
    if now == trace.code:
        _hold(trace, {name: _file_of_module(name, places) for name in today.modules}, asked)
    return now


def _sources(trace: Discovered, places: Modules) -> Sources:
    """The modules of a trace as they are now."""
    found = dict[str, Loaded]()
    for name, (ran, names) in seen_in(trace.code).items():
        with suppress(OSError, SyntaxError, ValueError, RecursionError):
            source = sources.known(places.digest(name)) or sources.parsed(places.content(name))
            found[name] = Loaded(source, str(places.file(name)).endswith(_PACKAGE), ran, names)
    return Sources(found, places.has, text=places.content)


def _held_sources(trace: Discovered) -> Sources | None:
    """The modules of a trace as they were when it last held; ``None`` if that is not known."""
    held, had = _held(trace)
    found, seen = dict[str, Loaded](), seen_in(trace.code)
    for name, (digest, is_package) in held.items():
        if (source := sources.known(digest)) is None:
            return None
        found[name] = Loaded(source, is_package, *seen[name])
    return Sources(found, lambda name: had.get(name, 0), had) if held else None


_Held = tuple[Mapping[str, tuple[str, bool]], Mapping[str, int]]


def _held(trace: Discovered) -> _Held:
    """With which modules a trace last held, each with its digest and whether it is a package, and
    which modules there were; both empty if that is not known."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        held, had = user_cache.load(_held_place(trace))
        return {name: (digest, is_package) for name, (digest, is_package) in held.items()}, had
    return {}, {}


def _hold(trace: Discovered, held: Mapping[str, tuple[str, bool]], had: Mapping[str, int]) -> None:
    user_cache.save(_held_place(trace), [held, had])


def _held_place(trace: Discovered) -> Path:
    return user_cache.place("held", f"{_RULE} {trace.state}".encode())


def _file_of_module(name: str, places: Modules) -> tuple[str, bool]:
    return places.digest(name), str(places.file(name)).endswith(_PACKAGE)


def _present_file(path: str) -> str:
    state = state_of(path)
    if state is None:
        return ABSENT
    if not state and os.path.isdir(path):
        return _FOLDER
    try:
        return file_digests([path])[0]
    except (OSError, ValueError, TemperError):
        return UNREADABLE


def _entry_changes(was: Sequence[str], now: Sequence[str]) -> list[str]:
    """A phrase for the step function, and for each class, that lies elsewhere or is another one."""
    new = {name.partition(":")[2]: name for name in now[1:] if name not in was}
    old = [name for name in was[1:] if name not in now]
    pairs = [*zip(was[:1], now[:1], strict=False)]
    pairs += [(name, new.pop(name.partition(":")[2], "")) for name in old]
    phrases = [f"{one} is {to} now" if to else f"no {one} now" for one, to in pairs if one != to]
    return phrases + [f"{name} is new" for name in new.values()]


def _of_file(name: str, was: str, now: str) -> str:
    """A phrase for a file that differs."""
    name = _shown(name)
    if was == UNSTEADY:
        return f"{name}, which it read, changed while it ran"
    if was == ABSENT:
        return f"{name}, which it looked for, is there now"
    return f"{name}, which it read, {'is gone' if now == ABSENT else 'changed'}"


def _shown(name: str) -> str:
    """A file's name as text, without the module; its bytes need not be valid text."""
    within = name.partition(">/")[2] if name.startswith("<") else name
    where = " beside an input" if InputFolders.has(name) else ""
    return within.encode("utf-8", "backslashreplace").decode() + where


def _what_was_done(digest: str) -> str:
    if digest == ABSENT:
        return "looked for, and not there"
    return "looked for" if digest == _FOLDER or digest.startswith(LINK) else "read"
