"""The environment of the workers of every engine.

It begins with the one in which the driver was started. Workers do not get what code of the driver
has set since: it is in no key, and a step that runs without this driver would not see it. Keys of
services and places of caches are passed on as they are now: no result depends on them, and
notebooks set them in a cell.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import FileFinder, PathFinder
from itertools import takewhile
from pathlib import Path

from pipeline.base import cells, processes
from pipeline.base.errors import TemperError
from pipeline.base.installed import in_library
from pipeline.base.redaction import may_hold_key
from pipeline.launchers.config import LauncherConfig
from pipeline.launchers.devices import VISIBLE
from pipeline.observed.path_filter import names_a_cache
from pipeline.trace.modules import is_core
from pipeline.uncaught.user_errors import ROOT
from pipeline.wire.lifeline import WORKER_ENVIRONMENT

UNOPTIMISED = {"PYTHONOPTIMIZE": ""}
"""Makes a worker run assertions, as they are code of the step: no key says whether they ran."""


def require_ours(folders: Sequence[str]) -> None:
    """Refuse folders in which another process, which looks through them in this order, finds
    another ``pipeline``.

    Raises:
        TemperError: it does.
    """
    found = PathFinder.find_spec("pipeline", [*folders])
    if found and found.origin and not os.path.samefile(found.origin, ROOT / "pipeline/__init__.py"):
        raise TemperError(f"{found.origin} would be imported for Temper's pipeline; rename it")


def users_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The user's variables for a worker.

    Args:
        settings: further variables, from the launcher's config.
    """
    fixed = {n: v for n, v in processes.STARTED_WITH.items() if not _is_passed_on(n)}
    present = {name: value for name, value in os.environ.items() if _is_passed_on(name)}
    return {**fixed, **present, **settings}


def _is_passed_on(variable: str) -> bool:
    return may_hold_key(variable) or names_a_cache(variable)


def kept_from_workers(config: LauncherConfig | None) -> list[str]:
    """The variables that this driver has set, changed or removed, that workers do not see so, and
    that the project's own code names: libraries set others."""
    theirs = users_environment({})
    names = {n for n in {*os.environ, *theirs} if os.environ.get(n) != theirs.get(n)}
    names.discard(VISIBLE)  # it says which devices steps may use
    for kind in [] if config is None else config.use:
        own = getattr(config, kind, None)  # none of a launcher that is unknown, as a run will say
        names.difference_update(getattr(own, "env", ()))
    sources = [*_sources()] if names else []
    return sorted(name for name in names if any(name in source for source in sources))


def _sources() -> Iterator[str]:
    """The texts of the modules and cells of the project."""
    if cells.are_known():
        yield from cells.texts()
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".py") and not is_core(name) and not in_library(os.path.abspath(file)):
            with suppress(OSError):
                yield Path(file).read_text("utf-8", errors="replace")


def import_path(python: str = sys.executable) -> str:
    """A ``PYTHONPATH`` with which a worker imports the same modules as the driver, from the same
    places in the same order.

    It lacks the folders that Python itself puts last. With them, another Python that a step starts
    would import the driver's libraries in place of its own. (If the driver has put folders behind
    those, only the whole path has the same order.)

    Args:
        python: the worker's interpreter; one other than the driver's gets the whole path.

    Raises:
        TemperError: a file of the user has the name of our package and comes first on the path.
    """
    folders = [_where(entry) for entry in sys.path]
    require_ours(folders)
    return os.pathsep.join(_own(folders) if python == sys.executable else folders)


def _where(entry: str) -> str:
    """The folder that an entry of ``sys.path`` stands for: a relative one that was used for that
    in which it was used first, although the program has changed its working folder since."""
    finder = sys.path_importer_cache.get(entry)
    return os.path.abspath(finder.path if isinstance(finder, FileFinder) else entry)


def _own(folders: list[str]) -> list[str]:
    """The folders before those that Python itself puts last; all, if others are among these."""
    library = _library()
    own = list(takewhile(lambda folder: folder not in library, folders))
    usual = {*library, *_installed()}
    last = filter(os.path.exists, folders[len(own) :])
    return own if usual.issuperset(last) else folders


def _library() -> list[str]:
    """Where this Python has its standard library."""
    folder = sysconfig.get_path("stdlib")
    version = "".join(map(str, sys.version_info[:2]))
    return [f"{Path(folder).parent}/python{version}.zip", folder, f"{folder}/lib-dynload"]


def _installed() -> Iterator[str]:
    """Where this Python looks for packages that are installed."""
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        yield folder
        with suppress(OSError):
            for file in Path(folder).glob("*.pth"):
                lines = file.read_text(errors="replace").splitlines()
                yield from (os.path.abspath(os.path.join(folder, line.strip())) for line in lines)


def job_environment(python: str | None) -> dict[str, str]:
    """The environment of a worker whose engine does not pass on the driver's environment.

    Args:
        python: the worker's interpreter; None for the driver's.
    """
    return {
        "PYTHONPATH": import_path(python or sys.executable),
        **UNOPTIMISED,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        WORKER_ENVIRONMENT: "1",
    }
