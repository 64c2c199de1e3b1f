"""Observes what a running step opens, lists and starts, with an audit hook in each of its
processes.

The model:

- The worker makes an *observation*: a temporary folder to which all processes of the step write.
  The environment variable ``TEMPER_OBSERVED`` names it, so that ranks and spawned processes join;
  forked processes inherit it. Every record is one appended line, so a process may be killed at any
  moment.
- A file or folder *counts* unless it lies in a place that is no dependency or is in the key
  already: libraries, the store, inputs, temporary folders, caches. If several rules match a path,
  the longest prefix wins: code in ``/tmp/project`` counts although ``/tmp`` does not, and a store
  inside the project does not count.
- At the first read of a file, its state (size, times, inode) is recorded. Its content is hashed
  after the step: see :mod:`pipeline.observed.discovery`. A file that the step wrote before it read
  it is no dependency.

Python calls the hook for very many irrelevant events, and in hot loops. So the hook returns at once
for irrelevant events and for paths that it has seen. It never raises and reports no error of its
own: a step must not fail because it is observed.
"""

import contextlib
import fcntl
import glob
import json
import linecache
import marshal
import mmap
import os
import re
import shlex
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import islice, pairwise
from pathlib import Path
from threading import current_thread, get_ident, main_thread
from types import FrameType
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import blake3

from pipeline.observed import marks, natives, taps

ENVIRONMENT = "TEMPER_OBSERVED"
"""Set in the processes of a step: the folder of its observation."""

MOST_MARKS = 2**20
"""The most marks that all modules may have in all processes together. A mark's number is a byte
offset in the file of module records; see :meth:`Observation.add_module`."""

_REPEATED = frozenset({"relative", "base", "list", "link", "module", "python"})
"""The kinds of events of which a repetition says nothing new."""

_SOMETHING_LOST = MOST_MARKS
"""The mark that says that a record is missing."""

ABSENT = "absent"
"""Stands for the digest of a file or folder that the step looked for and that did not exist."""

LINK = "link to"
"""Begins what stands for the digest of a symbolic link."""

_STARTED = os.fsencode(os.path.join(os.path.dirname(os.path.abspath(__file__)), "started"))
_BELOW_A_VARIABLE = re.compile(r"""(?:\$\w+|[)}])["']?/([\w./-]+)""")
"""In a command, the rest of a path like ``$HERE/file``, ``${HERE}/file`` or ``$(pwd)/file``."""
_SCRIPT_BYTES = 2**16
_MOST_GIVEN = 1000
_LONGEST_PATH = 4096
_LIKE_A_PATH = re.compile(r"[\w~-].*/.*|[./]*[\w~-].*/|.*\w\.\w+|/[\w.~-]+.*", re.DOTALL)
_QUOTED = re.compile(r"'([^'\n]+)'")
"""A text in a query of SQL, which may name a file."""
_RUN_BY_SHELL = re.compile(r"#!.*\b\w*sh\b")
_BLOCK_BYTES = 4 * 2**20
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run")
_MADE_BY_TOOLS = ("/__pycache__/", ".egg-info/", ".dist-info/")
"""In paths that Python and installers write below a project, from what the project itself holds."""
_TEMPORARY = ("/tmp", "/var/tmp")
_CACHE_VARIABLES = ("HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
_ENDS_OF_CACHES = ("_CACHE", "_CACHE_DIR", "_CACHE_HOME")
_WRITES = os.O_WRONLY | os.O_TRUNC
_KINDS_OF_OPEN = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_CREAT


@dataclass(frozen=True)
class Rules:
    """Which paths count; see the module docstring. All are absolute paths.

    Attributes:
        roots: folders of project code; everything below them counts.
        others: folders that do not count.
        package: the step's package, which is project code wherever it lies.
        start: the working folder in which the step starts.
    """

    roots: tuple[str, ...]
    others: tuple[str, ...]
    package: str
    start: str = ""

    @classmethod
    def of(cls, package: str, roots: Iterable[str], known: Iterable[str]) -> "Rules":
        """The rules for these roots; nothing of ``known`` counts: the store, inputs and others."""
        others = (*_variants((*known, *_elsewhere())), os.path.expanduser("~/."))
        return cls(tuple(_variants(roots)), others, package, working_folder())

    def counts(self, path: str) -> bool:
        """Whether a file or folder counts as a dependency."""
        below = f"{path}/"
        if any(name in below for name in _MADE_BY_TOOLS):
            return False
        longest = 0
        if below.startswith(self.others):  # a fast check, which decides most paths
            longest = max(len(other) for other in self.others if below.startswith(other))
        for name in ("/site-packages/", "/dist-packages/"):
            longest = max(longest, below.rfind(name) + len(name) if name in below else 0)
        return longest == 0 or self._root(below) > longest

    def is_project(self, path: str) -> bool:
        """Whether a path lies in a folder of project code."""
        return self._root(f"{path}/") > 0 and self.counts(path)

    def _root(self, below: str) -> int:
        return max((len(root) for root in self.roots if below.startswith(root)), default=0)


def _variants(folders: Iterable[str]) -> Iterator[str]:
    """Folders with a trailing slash, both as given and with symbolic links resolved."""
    paths = (p for f in folders for p in (os.path.abspath(f), os.path.realpath(f)))
    yield from sorted({f"{path.rstrip('/')}/" for path in paths} - {"/"})


def _elsewhere() -> Iterator[str]:
    """Folders of the machine, the interpreter and the user on which no result depends."""
    yield from (*_SYSTEM, *_TEMPORARY, tempfile.gettempdir())
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        with contextlib.suppress(Exception):  # Python 3.13.0 raises in some cases
            yield sysconfig.get_path(name)
    yield from (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    for name, value in os.environ.items():
        is_cache = name in _CACHE_VARIABLES or name.endswith(_ENDS_OF_CACHES)
        if is_cache and os.path.isabs(value):
            yield value


_PREFIX = "temper-observed-"


def _locked(path: str, mode: str) -> IO[str] | None:
    """Lock a file; ``None`` if another process holds the lock."""
    try:
        file = open(path, mode)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return file


def _remove_left_over(parent: str) -> None:
    """Remove the folders of workers that were killed: their locks are free."""
    with contextlib.suppress(OSError):
        for name in os.listdir(parent):
            folder = f"{parent}/{name}"
            if name.startswith(_PREFIX) and (lock := _locked(f"{folder}/lock", "r")) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()


class Observation:
    """The folder to which all processes of a step write; see the module docstring."""

    def __init__(self, folder: str, rules: Rules):
        self.folder, self.rules = folder, rules
        self.events, self.modules = f"{folder}/events", f"{folder}/modules"
        own = "".join(filter(str.isalnum, folder))
        self.mark, self.look = f"__temper_ran_{own}__", f"__temper_looks_{own}__"
        self._lock: IO[str] | None = None  # held while this process or one of its forks lives
        self._recorded: frozenset[bytes] = frozenset()  # what other processes had noted before
        self._repeated = _REPEATED

    @classmethod
    def begin(cls, rules: Rules) -> "Observation":
        """Start to observe this process and the processes that it starts."""
        _remove_left_over(tempfile.gettempdir())
        begun = tempfile.mkdtemp(prefix="temper-begun-")
        lock = _locked(f"{begun}/lock", "w")
        folder = f"{os.path.dirname(begun)}/{_PREFIX}{begun.rpartition('-')[2]}"
        os.rename(begun, folder)  # under this name, a free lock means a dead worker
        made = cls(folder, rules)
        made._lock = lock
        Path(folder, "rules").write_text(json.dumps(astuple(rules)))
        with open(f"{folder}/marks", "wb") as file:  # with its space, in case the disk becomes full
            os.posix_fallocate(file.fileno(), 0, MOST_MARKS + 1)
        for path in (made.events, made.modules):
            Path(path).touch()
        os.environ[ENVIRONMENT] = folder
        made._watch()
        return made

    @classmethod
    def join(cls) -> "Observation | None":
        """Observe this process too, if a step's process started it; else return ``None``."""
        folder = os.environ.get(ENVIRONMENT, "")
        if not os.path.isdir(folder):
            return None
        roots, others, *names = json.loads(Path(folder, "rules").read_text())
        joined = cls(folder, Rules(tuple(roots), tuple(others), *names))
        for file in (joined.events, joined.modules):
            joined._recorded |= frozenset(Path(file).read_bytes().splitlines(keepends=True))
        if not any(line.startswith(b'["kept"') for line in joined._recorded):
            joined._repeated |= {"read"}  # after a file was kept, another read of it says more
        joined._watch()
        return joined

    def _watch(self) -> None:
        with open(f"{self.folder}/marks", "r+b") as file:
            self.marks = mmap.mmap(file.fileno(), MOST_MARKS + 1)
        marks.install(self.mark, self.marks)
        natives.install(self.look, _hook.note_given)
        _hook.watch(self)

    def end(self) -> None:
        """Stop observing in this process."""
        _hook.watch(None)
        os.environ.pop(ENVIRONMENT, None)

    def forget(self) -> None:
        """Stop observing, and delete the records."""
        self.end()
        natives.uninstall(self.look)
        marks.uninstall(self.mark)  # so that no function keeps the memory map open
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            with contextlib.suppress(OSError):  # the step may have closed the descriptor
                self._lock.close()

    def share_sources(self, sources: Mapping[str, bytes]) -> None:
        """Share the bytes of project files with processes that join from now on."""
        path = Path(self.folder, "sources")
        path.with_suffix(".new").write_bytes(marshal.dumps(dict(sources)))
        path.with_suffix(".new").replace(path)

    def shared_sources(self) -> dict[str, bytes]:
        """The bytes that :meth:`share_sources` shared."""
        path = Path(self.folder, "sources")
        return marshal.loads(path.read_bytes()) if path.exists() else {}

    def add_event(self, kind: str, path: str, *details: Any) -> None:
        """Record an event of a file or folder."""
        self._add(self.events, [kind, path, *details], kind in self._repeated)

    def add_whole_module(self, name: str, path: str, content: bytes) -> None:
        """Record that a module without marks is loaded, so that any unit of it may run."""
        self._add(self.modules, [name, path, blake3.blake3(content).hexdigest(), None], True)

    def _add(self, file: str, record: list[Any], is_once: bool) -> None:
        """Append a record; one that counts once is left out if an earlier process appended it."""
        line = _line(record)
        if is_once and line in self._recorded:
            return
        try:
            _append(file, line)
        except OSError:
            self.marks[_SOMETHING_LOST] = 1

    @property
    def is_complete(self) -> bool:
        """Whether no record is missing; records are lost if the disk is full."""
        return not self.marks[_SOMETHING_LOST]

    def add_module(self, name: str, path: str, content: bytes, units: list[str] | None) -> int:
        """Record that a module of project code is loaded.

        Args:
            units: the unit of each of its marks; ``None`` without marks, so that any may run.

        Returns:
            The number of the first mark: the offset of this record in the file of records. A record
            is longer than its number of marks, so no two processes get the same numbers.
        """
        digest = blake3.blake3(content).hexdigest()
        return _append(self.modules, _line([name, path, digest, units]))


def _append(path: str, line: bytes) -> int:
    """Append a line in one write, and return its offset. The file is opened each time, because a
    step may close any descriptor and reuse its number for a file of its own."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(descriptor, line)
        return os.lseek(descriptor, 0, os.SEEK_CUR) - len(line)
    finally:
        os.close(descriptor)


def _line(record: Any) -> bytes:
    return json.dumps(record).encode("ascii") + b"\n"


class Hook:
    """The audit hook. There is one in a process, since Python cannot remove an audit hook."""

    def __init__(self) -> None:
        self._observation: Observation | _Witness | None = None
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
            "os.system": lambda command: self._started(_pieces(os.fsdecode(command)), None),
            "cpython.run_file": lambda file: self.note_source(os.path.abspath(file)),
        }

    def watch(self, observation: "Observation | _Witness | None") -> None:
        self._seen.clear()
        self._read.clear()
        self._has_moved = False
        if observation is not None:
            rules = observation.rules
            self._has_moved = working_folder() != rules.start
            self._fast = tuple(
                other for other in rules.others if not any(r.startswith(other) for r in rules.roots)
            )
        self._observation = observation
        if observation is not None and not self._installed:
            self._installed = True
            taps.install(self)
            os.register_at_fork(after_in_child=self._busy.clear)
            sys.addaudithook(self._make())

    def _make(self) -> Callable[[str, tuple[Any, ...]], None]:
        handlers = self._handlers

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            handler = handlers.get(event)
            if handler is not None and self._observation is not None:
                self.tell(handler, *arguments)

        return hook

    def tell(self, note: Callable[..., None], *arguments: Any) -> None:
        """Call a function that records something, unless nothing is to be recorded now."""
        busy = self._busy
        if self._observation is None or (me := get_ident()) in busy:
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
        if not self._counts(path) or _readers_of_source(path) == {"linecache.py"}:
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
        is_made_up = os.path.basename(path).startswith("<")
        return state is None and not is_made_up and self._is_project(path)

    def note_source(self, path: str) -> None:
        """Record a read of a source file that ``linecache`` served."""
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
        if place is None or not self._counts(place) or _readers_of_source(place):
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
        is_root = self._observation is not None and f"{place}/" in self._observation.rules.roots
        if not is_root and os.path.islink(place) and self._is_asked_by_project():
            self._add("link", place, target_of(place))

    def note_given(self, value: Any) -> None:
        """Record the files that code gave to a library which opens files in native code."""
        if isinstance(value, str | os.PathLike):
            self.tell(self._note_given, value)
        elif isinstance(value, list | tuple) and len(value) <= _MOST_GIVEN:
            for inner in value:
                self.note_given(inner)

    def _note_given(self, value: Any) -> None:
        for name in [os.fsdecode(value)] if isinstance(value, os.PathLike) else _paths_in(value):
            if ("given", name) in self._seen:
                continue
            self._seen.add(("given", name))
            for found in glob.glob(name, recursive=True) if "*" in name else [name]:
                self._note_all(self._path(found))
            if "*" in name:
                self._note_listed(self._path(name.partition("*")[0].rpartition("/")[0] or "."))

    def _note_all(self, path: str | None) -> None:
        """Record a file, or all files below a folder."""
        if path is None or not self._counts(path) or not os.path.exists(path):
            return
        for folder, inner, names in os.walk(path):
            inner[:] = [name for name in inner if self._counts(os.path.join(folder, name))]
            self._note_listed(folder)
            for name in names:
                self._note_all(os.path.join(folder, name))
        if state := state_of(path):
            self._note_read(path, state)

    def _note_listed(self, folder: str | None) -> None:
        if folder is not None and self._counts(folder):
            self._add("list", folder, folder_digest(folder))

    def _is_asked_by_project(self) -> bool:
        """Whether code of the project is at work, and not the import of a library: libraries look
        for many files when they are imported."""
        for file in _callers(sys.maxsize):
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
        if self._observation is not None:
            self._observation.add_event(kind, path, *details)

    def _read_before_change(self, path: str) -> None:
        """Record a file's content now, since the step may change the file in place."""
        if path not in self._read:
            self._read.add(path)
            self._note_before(path)

    def _note_before(self, path: str) -> None:
        if state := state_of(path):
            self._add("before", path, state, _file_digest(path))

    def _note_kept(self, path: str, state: list[int]) -> None:
        """Record the content to which the step appends: it counts if the step reads it later."""
        if path not in self._read and ("written", path) not in self._seen:
            self._add("kept", path, state, _file_digest(path))

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
        if _is_for_an_import() and not self._is_added(folder):
            return
        self._seen.add(("list", folder))
        if os.path.isdir(folder) or self._is_project(folder):
            self._note_listed(folder)

    def _scan(self, name: Any) -> None:
        self._list(name)
        folder = self._path("." if name is None else name)
        if folder is not None and self._counts(folder) and _may_ask_for_sizes():
            for name in os.listdir(folder):
                if state := state_of(path := os.path.join(folder, name)):
                    self._note_read(path, state)

    def _is_added(self, folder: str) -> bool:
        """Whether it is a folder that the step has added to ``sys.path``."""
        assert self._observation is not None
        return folder in sys.path and f"{folder}/" not in self._observation.rules.roots

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
        elif (frame := next(_frames(), None)) is not None:
            code = frame.f_code  # the static analysis follows its statements
            if "__import__" in code.co_names and self.is_of_project(code.co_filename):
                self.note_search(name, taps.folders_of(name))

    def _load_library(self, name: Any) -> None:
        path = self._path(name) if name else None
        if path is not None and self._counts(path) and (state := state_of(path)):
            self._note_read(path, state)

    def _start(self, program: Any, words: Any, *rest: Any) -> None:
        *folder, environment = rest  # `Popen` tells the working folder
        words = [words] if isinstance(words, str | bytes | os.PathLike) else list(words)
        words = [os.fsdecode(word) for word in (program, *words) if word]
        search = (environment or os.environ).get("PATH")
        program = shutil.which(words[0], path=search) or words[0]
        self._started([program, *words], next(iter(folder), None))

    def _started(self, words: list[str], folder: Any) -> None:
        """Record the project files in a command, and whether it starts a Python with them."""
        if (observation := self._observation) is None:
            return
        where = os.path.abspath(os.fsdecode(folder) if folder else ".")
        pieces = [piece for word in words for piece in _pieces(word)]
        for piece in () if folder else pieces:
            self._path(piece)  # it may be a path relative to the working folder
        named = self._named(pieces, where, observation.rules)
        for path in named:
            self._read_before_change(path)
        is_python = any(os.path.basename(piece).startswith("python") for piece in pieces)
        imports = any(observation.rules.package in word or "loky" in word for word in words)
        if is_python and (named or imports) and ("python", "") not in self._seen:
            self._seen.add(("python", ""))
            observation.add_event("python", "")

    def _named(self, pieces: list[str], where: str, rules: Rules) -> set[str]:
        """The project files that a command names, and those that the shell scripts among them name
        from the working folder or from their own."""
        found: set[str] = set()
        waiting = [(pieces, [where])]
        while waiting:
            pieces, folders = waiting.pop()
            files = {path for folder in folders for path in _files_of(pieces, folder, rules)}
            new = set(filter(self._is_project, files)) - found
            found |= new
            for path in new:
                words = _words_of_script(path, *(state_of(path) or ()))
                waiting.append((words, [*folders, os.path.dirname(path)]))
        return found

    def additions(self, environment: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Variables for a process that is started with an environment, so that a Python in it
        joins; none if nothing is observed."""
        if not isinstance(self._observation, Observation):
            return {}
        path = environment.get(b"PYTHONPATH")
        return {
            b"PYTHONPATH": _STARTED + (os.pathsep.encode() + path if path else b""),
            ENVIRONMENT.encode(): os.fsencode(self._observation.folder),
        }

    # --- paths ---------------------------------------------------------------------------------

    def _path(self, name: Any) -> str | None:
        """The absolute path; ``None`` for a descriptor, or for a path that cannot count."""
        if isinstance(name, int):
            return None
        name = os.path.realpath(name) if self._has_links else name
        name = os.fsdecode(name)
        if not name.startswith("/"):
            self._note_relative(name)
        if name.startswith(self._fast) and "/../" not in name:
            return None
        return os.path.abspath(name)

    def _note_relative(self, name: str) -> None:
        """Record that a path is relative to the working folder in which the step started."""
        if self._observation is None or self._has_moved or ("relative", name) in self._seen:
            return
        self._seen.add(("relative", name))
        if working_folder() == self._observation.rules.start:
            self._observation.add_event("relative", os.path.abspath(name))

    def _counts(self, path: str) -> bool:
        return self._observation is not None and self._observation.rules.counts(path)

    def _is_project(self, path: str) -> bool:
        return self._observation is not None and self._observation.rules.is_project(path)


_hook = Hook()
unobserved = _hook.unobserved
"""A context in which this thread's events are not recorded: they are not the step's."""
note_source = _hook.note_source
"""Records that the step read a file, inside ``unobserved`` too."""


@dataclass(frozen=True)
class _Witness:
    """Stands for an observation if only the paths that are used matter, and how."""

    rules: Rules
    seen: list[tuple[str, str]] = field(default_factory=list)

    def add_event(self, kind: str, path: str, *details: Any) -> None:
        if kind not in ("module", "relative", "base"):
            self.seen.append((kind, path))


@contextlib.contextmanager
def witnessed(rules: Rules) -> Iterator[list[tuple[str, str]]]:
    """Collect the paths that count and are used inside the block, each after the kind of its use,
    in a process that runs no step."""
    witness = _Witness(rules)
    _hook.watch(witness)
    try:
        yield witness.seen
    finally:
        _hook.watch(None)


def state_of(path: str) -> list[int] | None:
    """Numbers that change with a file's content; ``None`` without a file, empty for a folder."""
    try:
        now = os.stat(path)
    except (OSError, ValueError):  # a manifest may name what no file system can
        return None
    if not stat.S_ISREG(now.st_mode):
        return []
    return [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns]


def working_folder() -> str:
    """The working folder; empty if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def target_of(link: str) -> str:
    """Stands for the digest of a symbolic link of which the step asked where it points."""
    try:
        return f"{LINK} {os.readlink(link)}"
    except (OSError, ValueError):
        return ABSENT


def _file_digest(path: str) -> str:
    hasher = blake3.blake3()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def folder_digest(folder: str) -> str:
    """The digest of the names in a folder; :data:`ABSENT` if there is none."""
    try:
        names = sorted(name for name in os.listdir(folder) if name != "__pycache__")
    except (OSError, ValueError):
        return ABSENT
    return blake3.blake3("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _pieces(word: str) -> list[str]:
    """A word of a command, and the words inside it if it is itself a command or an option, without
    those to which output is redirected."""
    found = [word]
    if any(character.isspace() or character in "();<>|&" for character in word):
        inside = shlex.shlex(word, posix=True, punctuation_chars=True)
        inside.commenters = ""
        with contextlib.suppress(ValueError):
            words = ["", *inside]
            found += [word for before, word in pairwise(words) if ">" not in before]
    found += _BELOW_A_VARIABLE.findall(word)
    found += [piece[2:] for piece in found if piece.startswith("-")]
    return found + [piece.partition("=")[2] for piece in found if "=" in piece]


def _paths_in(text: str) -> Iterator[str]:
    """What may be a path in a text: the whole, or a quoted part of a query. A bare word is none: it
    is a name of a column more often than of a folder."""
    if len(text) <= _LONGEST_PATH and "\0" not in text:
        yield from filter(_LIKE_A_PATH.fullmatch, (text, *_QUOTED.findall(text)))


@lru_cache(256)
def _words_of_script(path: str, *state: int) -> list[str]:
    """The words of a shell script, which may name files; empty for any other file. A script that is
    started again is read again only if its `state` has changed."""
    with open(path, "rb") as file:
        text = file.read(_SCRIPT_BYTES).decode("utf-8", "replace")
    is_script = path.endswith((".sh", ".bash")) or _RUN_BY_SHELL.match(text)
    return [piece for line in text.split("\n") for piece in _pieces(line)] if is_script else []


def _files_of(pieces: list[str], folder: str, rules: Rules) -> Iterator[str]:
    """The files that the words of a command name, as paths or, after ``-m``, as modules."""
    for before, piece in pairwise(("", *pieces)):
        inner = piece.replace(".", "/")
        names = [f"{inner}.py", f"{inner}/__main__.py"] if before == "-m" else [piece]
        for place in (folder, *rules.roots) if before == "-m" else [folder]:
            for name in names:
                path = os.path.abspath(os.path.join(place, name))
                if state_of(path):
                    yield path


def _may_ask_for_sizes() -> bool:
    """Whether the module that calls ``os.scandir`` uses ``stat``: an entry tells the size of its
    file without a further event. The snapshot has put the source of a project module there."""
    frame = next(_frames(), None)
    entry = linecache.cache.get(frame.f_code.co_filename) if frame is not None else None
    return entry is not None and len(entry) > 1 and any(".stat(" in line for line in entry[2])


def _callers(most: int = 24) -> Iterator[str]:
    """The files of the calling frames outside this module, the nearest first."""
    return (frame.f_code.co_filename for frame in islice(_frames(), most))


def _frames() -> Iterator[FrameType]:
    """The calling frames outside this module, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            yield frame
        frame = frame.f_back


def _readers_of_source(path: str) -> set[str]:
    """Which of ``inspect`` and ``linecache`` are among the callers, for a source file."""
    callers = map(os.path.basename, _callers()) if path.endswith(".py") else ()
    return {"inspect.py", "linecache.py"}.intersection(callers)


def _is_for_an_import() -> bool:
    """Whether the import system looks for a module, or for an installed package."""
    caller = next(_callers(), "")
    return caller.startswith("<frozen importlib") or "/importlib/metadata/" in caller
