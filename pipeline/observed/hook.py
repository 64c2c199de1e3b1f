"""The audit hook of a process, which tells an observation what the process opens, lists and starts.

Python calls the hook for very many irrelevant events, and in hot loops. So the hook returns at once
for irrelevant events and for paths that it has seen. It never raises and reports no error of its
own: a step must not fail because it is observed.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from threading import current_thread, get_ident, main_thread
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from pipeline.base.processes import working_folder
from pipeline.observed import stdlib_patches
from pipeline.observed.callers import (
    callers,
    frames,
    is_for_an_import,
    may_ask_for_sizes,
    readers_of_source,
)
from pipeline.observed.file_fingerprints import file_digest, folder_digest, state_of, target_of
from pipeline.observed.path_filter import Rules, is_made_up

_WRITES = os.O_WRONLY | os.O_TRUNC
_KINDS_OF_OPEN = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT


class Recorder(Protocol):
    """What records the events that the hook sees.

    Attributes:
        rules: which paths count.
        sees_programs: whether it records what native code and started programs open.
    """

    @property
    def rules(self) -> Rules: ...

    @property
    def sees_programs(self) -> bool: ...

    def add_event(self, kind: str, path: str, *details: Any) -> None:
        """Record an event of a file or folder."""
        ...


class Hook:
    """The audit hook. There is one in a process, since Python cannot remove an audit hook."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._installed = False
        self._busy: set[int] = set()
        self._seen: set[tuple[str, Any]] = set()
        self._read: set[str] = set()
        self._fast: tuple[str, ...] = ()
        self._has_links = False  # whether the step has made symbolic links
        self._has_moved = False  # whether the step has changed the working folder
        self._handlers: dict[str, Callable[..., None]] = {
            "open": self._open,
            "os.listdir": self._list,
            "os.scandir": self._scan,
            "os.mkdir": self._make_folder,
            "os.chdir": self._move,
            "os.rename": self._link,
            "os.link": self._link,
            "os.symlink": self._make_symbolic_link,
            "sqlite3.connect": self._connect,
            "import": self._import,
            "pickle.find_class": lambda module, name: self.note_lookup(module, name.split(".")[0]),
            "ctypes.dlopen": self._load_library,
            "subprocess.Popen": self._start,
            "os.posix_spawn": self._start,
            "os.exec": self._start,
            "os.system": self._start,
            "cpython.run_file": lambda file: self.note_source(os.path.abspath(file)),
        }

    def watch(self, recorder: Recorder | None) -> None:
        self._seen.clear()
        self._read.clear()
        self._has_moved = False
        if recorder is not None:
            rules = recorder.rules
            self._has_moved = working_folder() != rules.start
            self._fast = tuple(
                other for other in rules.others if not any(r.startswith(other) for r in rules.roots)
            )
        self._recorder = recorder
        if recorder is not None and not self._installed:
            self._installed = True
            stdlib_patches.install(self)
            os.register_at_fork(after_in_child=self._busy.clear)
            sys.addaudithook(self._make())

    def _make(self) -> Callable[[str, tuple[Any, ...]], None]:
        handlers = self._handlers

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            handler = handlers.get(event)
            if handler is not None and self._recorder is not None:
                self.tell(handler, *arguments)

        return hook

    def tell(self, note: Callable[..., None], *arguments: Any) -> None:
        """Call a function that records something, unless nothing is to be recorded now."""
        busy = self._busy
        if self._recorder is None or (me := get_ident()) in busy:
            return
        busy.add(me)
        try:
            note(*arguments)
        except Exception:  # the hook must not make a step fail
            pass
        finally:
            busy.discard(me)

    @contextlib.contextmanager
    def unobserved(self) -> Iterator[None]:
        me = get_ident()
        was_busy = me in self._busy
        self._busy.add(me)
        try:
            yield
        finally:
            if not was_busy:
                self._busy.discard(me)

    # --- events --------------------------------------------------------------------------------

    def _open(self, name: Any, mode: Any, flags: int) -> None:
        kind = flags & _KINDS_OF_OPEN
        if (name, kind) in self._seen or (path := self._path(name)) is None:
            return
        if os.path.isabs(name):
            self._seen.add((name, kind))
        if not self._counts(path) or readers_of_source(path) == {"linecache.py"}:
            return  # `linecache` alone reads it for a traceback
        state = state_of(path)
        if state and flags & os.O_EXCL:
            self._note_read(path, state)  # it is there, so this fails
        elif kind & _WRITES or (kind & os.O_CREAT and state is None):
            if state and not kind & os.O_TRUNC:
                self._note_kept(path, state)
            self._write(path)
        elif kind & os.O_RDWR:
            self._read_before_change(path)
        else:  # without a mode, the name may be relative to a descriptor
            is_path = mode is not None or os.path.isabs(name)
            if state or (is_path and self._may_be_missed(path, state)):
                self._note_read(path, state)

    def _may_be_missed(self, path: str, state: list[int] | None) -> bool:
        """Whether a missing project file counts; a name like ``<string>`` names no file."""
        return state is None and not is_made_up(path) and self._is_project(path)

    def note_source(self, path: str) -> None:
        """Record a read of a source file that ``linecache`` served, inside ``unobserved`` too."""
        if self._counts(path):
            self._note_read(path, state_of(path))

    def note_look(self, path: Any, follows: bool = True) -> None:
        """Record that code asked about a file or folder: whether it exists, its size and so on; if
        it ``follows``, about what a symbolic link points to."""
        if isinstance(path, int) or ("look", (follows, path)) in self._seen:
            return
        if os.path.isabs(path):
            self._seen.add(("look", (follows, path)))
        place = self._path(path)
        if place is None or not self._counts(place) or readers_of_source(place):
            return
        if not self._is_asked_by_project():
            return
        state = state_of(place)
        is_folder = state == [] and follows and os.path.isdir(place) and self._is_project(place)
        if state or is_folder or self._may_be_missed(place, state):
            self._note_read(place, state)

    def note_link(self, path: Any) -> None:
        """Record that code asked where a symbolic link points."""
        place = self._path(path)
        if place is None or ("link", place) in self._seen or not self._is_project(place):
            return
        self._seen.add(("link", place))
        is_root = self._recorder is not None and f"{place}/" in self._recorder.rules.roots
        if not is_root and os.path.islink(place) and self._is_asked_by_project():
            self._add("link", place, target_of(place))

    def _note_listed(self, folder: str | None) -> None:
        if folder is not None and self._counts(folder):
            self._add("list", folder, folder_digest(folder))

    def _is_asked_by_project(self) -> bool:
        """Whether code of the project is at work, and not the import of a library: libraries look
        for many files when they are imported."""
        for file in callers(sys.maxsize):
            if file.startswith("<frozen importlib"):
                return False
            if self.is_of_project(file):
                return True
        return current_thread() is not main_thread()  # the project told a library to look

    def note_lookup(self, module: str, unit: str = "*") -> None:
        """Record that code looked up a module, or a name in it, that was known only at run time."""
        file = getattr(sys.modules.get(module), "__file__", None)
        if (module, unit) in self._seen:
            return
        self._seen.add((module, unit))
        if file is None or self._counts(os.path.abspath(file)):
            self._add("module", module, unit)

    def note_search(self, module: str, folders: Iterable[str]) -> None:
        """Record where project code looked in vain for a module."""
        name = module.rpartition(".")[2]
        places = [os.path.join(os.path.abspath(folder), name) for folder in folders]
        for place in places:
            for path in (f"{place}/__init__.py", f"{place}.py"):
                if os.path.exists(path):
                    return
                self._note_absent(path)
        for place in places:  # it is no module in Python, nor a package without `__init__.py`
            for ending in ("", *EXTENSION_SUFFIXES):
                self._note_absent(f"{place}{ending}")

    def _note_absent(self, path: str) -> None:
        if self._is_project(path) and not os.path.lexists(path):
            self._note_read(path, None)

    def note_base(self, name: str) -> None:
        """Record that code of the project made the absolute path of a name, below which it may
        look for files; ``.`` for the working folder."""
        if not self._has_moved:
            self._add("base", os.path.abspath(name))

    def is_of_project(self, path: str) -> bool:
        """Whether a source file is code of the project."""
        return not path.startswith("<") and self._is_project(os.path.abspath(path))

    def _note_read(self, path: str, state: list[int] | None) -> None:
        if path not in self._read:
            self._read.add(path)
            self._add("read", path, state)

    def _add(self, kind: str, path: str, *details: Any) -> None:
        if self._recorder is not None:
            self._recorder.add_event(kind, path, *details)

    def _read_before_change(self, path: str) -> None:
        """Record a file's content now, since the step may change the file in place."""
        if path not in self._read:
            self._read.add(path)
            self._note_before(path)

    def _note_before(self, path: str) -> None:
        if state := state_of(path):
            self._add("before", path, state, file_digest(path))

    def _note_kept(self, path: str, state: list[int]) -> None:
        """Record the content to which the step appends: it counts if the step reads it later."""
        if path not in self._read and ("written", path) not in self._seen:
            self._add("kept", path, state, file_digest(path))

    def _write(self, path: str) -> None:
        if ("written", path) in self._seen:
            return
        self._seen.add(("written", path))
        if path in self._read:
            self._note_before(path)
        self._add("write", path)

    def _list(self, name: Any) -> None:
        folder = self._path("." if name is None else name)
        if folder is None or ("list", folder) in self._seen:
            return
        if is_for_an_import() and not self._is_added(folder):
            return
        self._seen.add(("list", folder))
        if os.path.isdir(folder) or self._is_project(folder):
            self._note_listed(folder)

    def _scan(self, name: Any) -> None:
        self._list(name)
        folder = self._path("." if name is None else name)
        if folder is not None and self._counts(folder) and may_ask_for_sizes():
            for name in os.listdir(folder):
                if state := state_of(path := os.path.join(folder, name)):
                    self._note_read(path, state)

    def _is_added(self, folder: str) -> bool:
        """Whether it is a folder that the step has added to ``sys.path``."""
        assert self._recorder is not None
        return folder in sys.path and f"{folder}/" not in self._recorder.rules.roots

    def _make_folder(self, name: Any, *_: Any) -> None:
        path = self._path(name)
        if path and self._counts(path) and not os.path.lexists(path):
            self._add("make", path)

    def _link(self, source: Any, target: Any, *_: Any) -> None:
        path = self._path(source)
        if path is not None and self._counts(path) and ("written", path) not in self._seen:
            self._read_before_change(path)  # it may be read or changed under its other name
        self._make_link(target)

    def _make_link(self, target: Any) -> None:
        if (path := self._path(target)) is not None and self._counts(path):
            self._write(path)

    def _make_symbolic_link(self, _: Any, target: Any, *__: Any) -> None:
        self._make_link(target)
        self._has_links = True

    def _move(self, *_: Any) -> None:
        self._has_moved = True

    def _connect(self, database: Any) -> None:
        name = os.fsdecode(database)
        path = self._path(unquote(urlsplit(name).path) if name.startswith("file:") else name)
        if path is None or name in ("", ":memory:") or not self._counts(path):
            return
        if state_of(path) is None:
            self._write(path)
        else:
            for file in (path, f"{path}-wal", f"{path}-journal"):
                self._read_before_change(file)

    def _import(self, name: str, file: Any, *_: Any) -> None:
        if file:  # an extension module
            self._load_library(file)
        elif (frame := next(frames(), None)) is not None:
            code = frame.f_code  # the static analysis follows its statements
            if "__import__" in code.co_names and self.is_of_project(code.co_filename):
                self.note_search(name, stdlib_patches.folders_of(name))

    def _load_library(self, name: Any) -> None:
        path = self._path(name) if name else None
        if path is not None and self._counts(path) and (state := state_of(path)):
            self._note_read(path, state)

    def _start(self, *_: Any) -> None:
        """Record that a program was started of which nothing is seen."""
        if self._recorder is not None and ("started", "") not in self._seen:
            self._seen.add(("started", ""))
            if not self._recorder.sees_programs:
                self._add("started", "")

    # --- paths ---------------------------------------------------------------------------------

    def _path(self, name: Any) -> str | None:
        """The absolute path; ``None`` for a descriptor, or for a path that cannot count."""
        if isinstance(name, int):
            return None
        name = os.path.realpath(name) if self._has_links else name
        name = os.fsdecode(name)
        if not name.startswith("/"):
            self._note_relative(name)
        self._note_beside(name)
        if name.startswith(self._fast) and "/../" not in name:
            return None
        return os.path.abspath(name)

    def _note_relative(self, name: str) -> None:
        """Record that a path is relative to the working folder in which the step started."""
        if self._recorder is None or self._has_moved or ("relative", name) in self._seen:
            return
        self._seen.add(("relative", name))
        if working_folder() == self._recorder.rules.start:
            self._recorder.add_event("relative", os.path.abspath(name))

    def _note_beside(self, name: str) -> None:
        """Record that a path begins with the folder of an input file: another file of the same
        content has others beside it."""
        beside = () if self._recorder is None else self._recorder.rules.beside
        given = os.path.join(working_folder(), name) if beside else name
        if not given.startswith(beside) or ("beside", given) in self._seen:
            return
        self._seen.add(("beside", given))
        if self._counts(path := os.path.abspath(given)):
            for folder in filter(given.startswith, beside):
                self._add("beside", path, folder)

    def _counts(self, path: str) -> bool:
        return self._recorder is not None and self._recorder.rules.counts(path)

    def _is_project(self, path: str) -> bool:
        return self._recorder is not None and self._recorder.rules.is_project(path)


HOOK = Hook()
unobserved = HOOK.unobserved
"""A context in which this thread's events are not recorded: they are not the step's."""


@dataclass(frozen=True)
class _Witness:
    """Records if only the paths that are used matter, and how."""

    rules: Rules
    sees_programs: bool = True
    seen: list[tuple[str, str]] = field(default_factory=list)

    def add_event(self, kind: str, path: str, *details: Any) -> None:
        if kind not in ("module", "relative", "base", "beside"):
            self.seen.append((kind, path))


@contextlib.contextmanager
def witnessed(rules: Rules) -> Iterator[list[tuple[str, str]]]:
    """Collect the paths that count and are used inside the block, each after the kind of its use,
    in a process that runs no step."""
    witness = _Witness(rules)
    HOOK.watch(witness)
    try:
        yield witness.seen
    finally:
        HOOK.watch(None)
