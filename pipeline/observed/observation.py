"""Collects what the processes of a running step open, list and start.

The model:

- The worker makes an *observation*: a temporary folder to which all processes of the step write.
  The environment variable ``TEMPER_OBSERVED`` names it, so that ranks and spawned processes join;
  forked processes inherit it. Every record is one appended line, so a process may be killed at any
  moment.
- In each process, the audit hook (:mod:`pipeline.observed.hook`) records the files and folders that
  count (:mod:`pipeline.observed.path_filter`).
- At the first read of a file, its state (size, times, inode) is recorded. Its content is hashed
  after the step: see :mod:`pipeline.observed.discovery`. A file that the step wrote before it read
  it is no dependency.
- What an attempt left in scratch depends on what it had read, also after it was killed. So the
  records are written to scratch, too, before the step can use what they tell of: see
  :mod:`pipeline.observed.scratch_dependencies`.
"""

import contextlib
import fcntl
import json
import marshal
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import IO, Any

import blake3

from pipeline.base import processes
from pipeline.base.redaction import exact_record, shown
from pipeline.observed import function_marks, native
from pipeline.observed.file_fingerprints import file_digest
from pipeline.observed.hook import HOOK
from pipeline.observed.path_filter import Rules

ENVIRONMENT = "TEMPER_OBSERVED"
"""Set in the processes of a step: the folder of its observation."""
MOST_MARKS = 2**20
"""The most marks that all modules may have in all processes together. A mark's number is a byte
offset in the file of module records; see :meth:`Observation.add_module`."""
_REPEATED = frozenset({"relative", "base", "beside", "list", "link", "module", "started"})
"""The kinds of events of which a repetition says nothing new."""
_MOST_HASHED_AT_ONCE = 64 * 2**20
"""The bytes of the largest file of which scratch is told the digest and not only the state."""
_SOMETHING_LOST = MOST_MARKS
"""The mark that says that a record is missing."""
_PREFIX = "temper-observed-"
_STARTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "started")
"""First in the ``PYTHONPATH`` of what a step starts, where Python looks for ``sitecustomize``. The
step does not see it in ``os.environ``."""


def _locked(path: str, mode: str) -> IO[str] | None:
    """Lock a file; ``None`` if another process holds the lock."""
    try:
        file = open(path, mode)  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    return file


def _remove_left_over(parent: str) -> None:
    """Remove the folders of workers that were killed: their locks are free, and so they are where
    the step of a living worker has closed every file."""
    with contextlib.suppress(OSError, UnicodeError):
        for name in os.listdir(parent):
            folder = f"{parent}/{name}"
            if name.startswith(_PREFIX) and (lock := _locked(f"{folder}/lock", "r")) is not None:
                with lock:
                    if not processes.exists(_number(lock.read())):
                        shutil.rmtree(folder, ignore_errors=True)


def _number(text: str) -> int:
    """The process id in a lock; 0, which no process has, if there is none."""
    return int(text) if text.isdecimal() else 0


class Observation:
    """The folder to which all processes of a step write; see the module docstring."""

    def __init__(self, folder: str, rules: Rules):
        self.folder, self.rules = folder, rules
        self.events, self.modules = f"{folder}/events", f"{folder}/modules"
        own = "".join(filter(str.isalnum, folder))
        self.mark = f"__temper_ran_{own}__"
        self._lock: IO[str] | None = None  # held while this process or one of its forks lives
        self._recorded: frozenset[bytes] = frozenset()  # what other processes had noted before
        self._repeated = _REPEATED
        self._kept: Path | None = None  # a folder in scratch

    @classmethod
    def begin(cls, rules: Rules) -> "Observation":
        """Start to observe this process and the processes that it starts."""
        _remove_left_over(tempfile.gettempdir())
        begun = tempfile.mkdtemp(prefix="temper-begun-")
        lock = _locked(f"{begun}/lock", "w")
        Path(begun, "lock").write_text(str(os.getpid()))
        folder = f"{os.path.dirname(begun)}/{_PREFIX}{begun.rpartition('-')[2]}"
        os.rename(begun, folder)  # under this name, a free lock means a dead worker
        made = cls(folder, rules)
        made._lock = lock
        Path(folder, "rules").write_bytes(exact_record(astuple(rules)))
        native.write_rules(Path(folder, "native"), rules, _STARTED)
        _make_marks(f"{folder}/marks")
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
        joined = cls(folder, Rules.read(Path(folder, "rules").read_text()))
        for file in (joined.events, joined.modules):
            joined._recorded |= frozenset(Path(file).read_bytes().splitlines(keepends=True))
        if not any(line.startswith(b'["kept"') for line in joined._recorded):
            joined._repeated |= {"read"}  # after a file was kept, another read of it says more
        if (kept := Path(folder, "kept")).exists():
            joined._kept = kept.readlink()
        joined._watch()
        return joined

    def _watch(self) -> None:
        self._use_marks()
        own = os.environ.get("PYTHONPATH")
        os.putenv("PYTHONPATH", f"{_STARTED}{os.pathsep}{own}" if own else _STARTED)
        native.watch(self.folder)
        HOOK.watch(self)

    def _use_marks(self) -> None:
        """Record which functions run in the file in scratch, once there is one."""
        folder = self.folder if self._kept is None else self._kept
        path = f"{folder}/marks"
        if not os.path.exists(path):  # the step has emptied its scratch
            _make_marks(path := f"{self.folder}/marks")
            self._add(self.events, ["lost", ""], True)
        with open(path, "r+b") as file:
            self.marks = mmap.mmap(file.fileno(), MOST_MARKS + 1)
        function_marks.install(self.mark, self.marks)

    def end(self) -> None:
        """Stop observing in this process."""
        HOOK.watch(None)
        native.watch("")
        os.environ.pop(ENVIRONMENT, None)
        os.unsetenv("PYTHONPATH")
        if (own := os.environ.get("PYTHONPATH")) is not None:
            os.putenv("PYTHONPATH", own)

    def forget(self) -> None:
        """Stop observing, and delete the records."""
        self.end()
        function_marks.uninstall(self.mark)  # so that no function keeps the memory map open
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            with contextlib.suppress(OSError):  # the step may have closed the descriptor
                self._lock.close()

    def keep(self, folder: Path) -> None:
        """Write what was recorded to a folder in scratch, too, and what will be; ``modules`` is the
        last file to be made."""
        shutil.copyfile(f"{self.folder}/rules", folder / "rules")
        _make_marks(f"{folder}/marks", self.marks[:])
        self._kept = folder
        self._use_marks()
        for file in (self.events, self.modules):
            (folder / os.path.basename(file)).touch()
            start = 0
            for line in Path(file).read_bytes().splitlines(keepends=True):
                record = json.loads(line)
                self._keep(file, [*record, start] if file == self.modules else record)
                start += len(line)
        Path(self.folder, "kept").symlink_to(folder.absolute())

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
        """Record an event of a file or folder. The name of what is not there is redacted: it may be
        a URL, or the key of a service."""
        if not os.path.lexists(path) and (safe := shown(path)) != path:
            if kind == "read" and ":/" not in path:  # a file could still appear under this name
                self.marks[_SOMETHING_LOST] = 1
            path = safe
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
        self._keep(file, record)

    def _keep(self, file: str, record: list[Any]) -> None:
        """Write a record to scratch: of a file that was read its digest, as it may change until
        the step goes on."""
        if self._kept is None:
            return
        if record[0] == "read" and record[2] and record[2][2] <= _MOST_HASHED_AT_ONCE:
            with contextlib.suppress(OSError):  # its state then stands for what it may not read
                record = ["read", record[1], file_digest(record[1])]
        try:
            _append(str(self._kept / os.path.basename(file)), _line(record))
        except FileNotFoundError:
            pass  # the step has emptied its scratch
        except OSError:  # the disk is full: the next attempt shall not trust these records
            with contextlib.suppress(OSError):
                os.truncate(self._kept / "rules", 0)

    @property
    def sees_programs(self) -> bool:
        """Whether it records what native code and started programs open."""
        return native.is_loaded()

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
        record = [name, path, blake3.blake3(content).hexdigest(), units]
        first = _append(self.modules, _line(record))
        self._keep(self.modules, [*record, first])
        return first


def _make_marks(path: str, found: bytes = b"") -> None:
    """Make a file of marks, with its space, in case the disk becomes full."""
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, MOST_MARKS + 1)
        file.write(found)


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
    return exact_record(record) + b"\n"
