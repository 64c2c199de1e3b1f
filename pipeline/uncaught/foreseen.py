"""Decides which exceptions are messages for the user at the terminal, and formats them.

An exception is a message if its text was written for the user:

- a :class:`TemperError`;
- any exception that a ``raise`` statement in code of the project or of Temper raises. So the
  libraries below ``steps/``, which do not know the core, report problems with a ``ValueError``,
  while a ``ValueError`` of ``int("x")`` in the same function is a bug. The traceback distinguishes
  them: it ends at the instruction that raised;
- an error of Python for a wrong use of Temper's own definitions (:mod:`pipeline.uncaught.misused`),
  or due to a file that hides a library (:mod:`pipeline.taken_names`);
- an error because this user may not use a file that Temper opened itself;
- an error because of a limit of the machine, such as a full disk, or because a package of one of
  our extras is missing, wherever it is raised.

Any other exception is a bug, or a problem that nobody foresaw.
"""

import dis
import errno
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

from pipeline.errors import TemperError, text_of
from pipeline.extras import how_to_install, is_extra
from pipeline.installed import in_library
from pipeline.processes import working_folder
from pipeline.taken_names import hidden
from pipeline.uncaught.misused import SHIPPED, explained

ROOT = Path(__file__).resolve().parents[2]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_FILE = (errno.EMFILE, errno.ENFILE)
_SAID_OF_NO_ROOM = (
    "No space left on device",
    "StorageFull",
    "Disk quota exceeded",
    "No usable temporary directory",
)
"""Texts of such errors in libraries whose exceptions have no error number."""
_SAID_OF_NO_THREAD = "can't start new thread"
_PLAIN = (ValueError, OSError, NotImplementedError, FloatingPointError)
"""Python's exceptions whose names add nothing to their messages."""


def message_of(
    error: BaseException,
    is_ours: Callable[[FrameType], bool] | None = None,
    places: Iterable[str] = (),
) -> str | None:
    """The message of an exception, as one sentence; ``None`` if it is no message.

    Args:
        is_ours: whether a ``raise`` in a frame counts; by default, one in Temper's own code.
        places: folders that the program writes to, to report which of them are full.
    """
    if isinstance(error, TemperError):
        return sentence(error)
    if (limit := _limit(error, places)) is not None:
        return limit
    if isinstance(error, ModuleNotFoundError):
        if told := hidden(error):  # first: what says which packages are extras may be hidden too
            return told
        if is_extra(package := str(error.name)):
            return f"the package {package} is not installed here: {how_to_install(package)}"
    has_name = isinstance(getattr(error, "filename", None), str | bytes)  # not a descriptor
    if isinstance(error, OSError) and has_name and _is_met_by_temper(error):
        if isinstance(error, PermissionError):
            allow = permit(Path(os.fsdecode(error.filename)))
            return f"{error.filename}: {error.strerror}; {allow}"
        if error.errno == errno.EROFS:
            return f"{error.filename}: {error.strerror}; mount it to write, or name another folder"
    raised_by = _raising_frame(error)
    if raised_by is not None and (is_ours or is_shipped)(raised_by):
        return _missing_method(error, raised_by) or sentence(error)
    return explained(error, [frame for frame, _ in frames_of(error)]) or hidden(error) or None


def sentence(error: BaseException) -> str:
    """The text of an exception on one line, with its type if that adds something."""
    text, name = " ".join(text_of(error).split()), type(error).__name__
    if isinstance(error, BaseExceptionGroup):  # its own text only counts them
        text = f"{error.message}: {'; '.join(map(sentence, error.exceptions))}"
    if not text:
        return name
    says_enough = isinstance(error, _PLAIN) or type(error).__module__ != "builtins"
    return text if says_enough else f"{name}: {text}"


def is_shipped(frame: FrameType) -> bool:
    """Whether the code of a frame is part of Temper."""
    file = Path(frame.f_code.co_filename)
    return any(file.is_relative_to(ROOT / package) for package in SHIPPED)


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that an exception has passed, outermost first, each with its line."""
    place = error.__traceback__
    while place is not None:
        yield place.tb_frame, place.tb_lineno
        place = place.tb_next


LET_READ = "let this user read it (chmod), or copy it"
"""What to do about a file that may not be read."""


def permit(file: Path) -> str:
    """What permits an access that was refused, and whose file or folder it is, if another user's.
    It was for reading, unless the user may read the file, or could see that there is none."""
    is_there = _may(file, os.F_OK)
    if not _may(file, os.R_OK) and (is_there or not _may(file.parent, os.X_OK)):
        return LET_READ + _owner(file)
    place = "it" if is_there else f"in {file.parent}"
    return f"let this user write {place} (chmod), or name another folder{_owner(file)}"


def _owner(file: Path) -> str:
    """Whose a file is that another user has, or the nearest folder that can be seen."""
    for place in (file, *file.parents):
        try:
            uid = place.lstat().st_uid
        except OSError:  # it lies in a folder that may not be searched, or there is none
            continue
        if uid == os.geteuid():
            return ""
        try:
            return f"; it belongs to {pwd.getpwuid(uid).pw_name}"
        except KeyError:
            return f"; it belongs to user {uid}"
    return ""


def _may(file: Path, mode: int) -> bool:
    try:
        return os.access(file, mode, effective_ids=os.access in os.supports_effective_ids)
    except OSError:  # a name that is too long
        return False


def _is_met_by_temper(error: BaseException) -> bool:
    """Whether Temper's own code called what raised an exception, directly or through libraries."""
    frames = [frame for frame, _ in frames_of(error)]
    return next(
        (is_shipped(f) for f in reversed(frames) if is_shipped(f) or not _is_library(f)), False
    )


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in sys.stdlib_module_names or in_library(frame.f_code.co_filename)


def _raising_frame(error: BaseException) -> FrameType | None:
    """The frame whose ``raise`` statement raised an exception; ``None`` if an expression raised
    it."""
    place = error.__traceback__
    if place is None or isinstance(error, AssertionError):  # `assert` uses the same instruction
        return None
    while place.tb_next is not None:
        place = place.tb_next
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return place.tb_frame if dis.opname[instruction] == "RAISE_VARARGS" else None


def _missing_method(error: BaseException, raised_by: FrameType) -> str:
    """The message if a class leaves out a method of its base class; empty for other errors."""
    if (
        not isinstance(error, NotImplementedError)
        or text_of(error)
        or "self" not in raised_by.f_locals
    ):
        return ""
    name, method = type(raised_by.f_locals["self"]).__name__, raised_by.f_code.co_name
    return f"the class {name} has no method {method}; write one, as the docs of its base class say"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, followed by its causes and by what it groups."""
    ahead: list[BaseException | None] = [error]
    seen: set[int] = set()
    while ahead:
        link = ahead.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        ahead.append(link.__cause__)
        if isinstance(link, BaseExceptionGroup):
            ahead.extend(link.exceptions)


def _limit(error: BaseException, places: Iterable[str]) -> str | None:
    """The limit of this machine that an exception ran into, and what to do; ``None`` if none."""
    chain = list(_chain(error))
    if any(map(_is_no_room, chain)):
        return _no_room(error, places)
    if any(map(_is_no_memory, chain)):
        return (
            f"there was not enough memory ({sentence(error)}); give the step a larger machine, or "
            "less to hold at a time, as with a lower tokens_per_forward"
        )
    if any(text_of(e) == _SAID_OF_NO_THREAD for e in chain):
        return (
            "no further thread can be started here: memory or the number of processes has come to "
            "a limit (ulimit -v, ulimit -u); raise it, or run less beside this"
        )
    if any(isinstance(e, OSError) and e.errno in _NO_FILE for e in chain):
        return (
            "no further file can be opened here: a limit has been reached (ulimit -n); raise it, "
            "or run fewer steps at once (jobs=)"
        )
    if any(isinstance(e, OSError) and e.errno == errno.EFBIG for e in chain):
        return "a file may not become larger here (ulimit -f); raise the limit, and run again"
    if (
        any(isinstance(e, FileNotFoundError) and not e.filename for e in chain)
        and not working_folder()
    ):
        return "the working folder is no longer there; change to another one (cd), and run again"
    return None


def _is_no_room(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    said = text_of(error)
    return not isinstance(error, TemperError) and any(s in said for s in _SAID_OF_NO_ROOM)


def _is_no_memory(error: BaseException) -> bool:
    """Whether memory of the machine or a device is full; device libraries use this name too."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _no_room(error: BaseException, places: Iterable[str]) -> str:
    free = []
    temporary = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
    for place in dict.fromkeys([*places, temporary, working_folder() or temporary]):
        try:
            free.append(f"{place} has {shutil.disk_usage(place).free / 2**20:,.0f} MiB free")
        except OSError:
            continue
    return (
        f"no space is left on a disk ({sentence(error)}; {', '.join(free)}); make room there "
        "(temper gc shows what nobody needs), or name another with store=FOLDER or TMPDIR"
    )
