"""Records of runs as they are read back: what was asked for, what each step came to.

Records written by the first layout name no keys and no command; see :attr:`Run.names_keys`.
"""

import calendar
import contextlib
import json
import os
import platform
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cli.activity import holding_runs, leases
from pipeline.errors import TemperError
from pipeline.store import Store

READERS = 16
_TEXTS = (
    "step", "label", "fingerprint", "key", "attempt", "state", "why", "message", "place",
)  # fmt: skip
_ETERNITY = 1e10
FINISHED_STATES = ("done", "cached")


@dataclass(frozen=True)
class Run:
    """One invocation, by its record.

    Attributes:
        started: seconds since the epoch, by the clock of its machine.
        steps: name, state, key, attempt… of each; a key is ``None`` where it was not known yet.
        command: the interpreter, the script and its arguments; empty if not recorded.
        dirty: a digest of what differed from the commit; empty if nothing did.
        roots: the fingerprint of each result, by its name.
    """

    name: str
    started: float
    seconds: float
    outcome: str
    steps: Sequence[Mapping[str, Any]]
    command: Sequence[str] = ()
    cwd: str = ""
    host: str = ""
    pid: int = 0
    commit: str = ""
    dirty: str = ""
    roots: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: bytes, url: str) -> "Run":
        """
        Raises:
            TemperError: it is no record of a run.
        """
        try:
            record = json.loads(data)
            return cls(
                name=_text(record["run"]),
                started=stamp_seconds(record["run"]) or 0.0,
                seconds=_seconds(record.get("seconds")),
                outcome=_text(record["outcome"]),
                steps=[_entry(step) for step in record["steps"] if step["step"]],
                command=[str(argument) for argument in record.get("argv", ())],
                cwd=_text(record.get("cwd", "")),
                host=_text(record.get("host", "")),
                pid=int(record.get("pid") or 0),
                commit=_text(record.get("commit") or ""),
                dirty=_text(record.get("dirty") or ""),
                roots={_text(name): _text(f) for name, f in record.get("roots", {}).items()},
            )
        except (
            ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError
        ) as error:  # fmt: skip
            name = Path(url).stem
            raise TemperError(
                f"the record of a run {url} is damaged ({error}); "
                f"delete it with: temper runs --forget {name}"
            ) from error

    @property
    def names_keys(self) -> bool:
        """Whether the record says which artifacts it used; older ones do not."""
        return all("key" in step for step in self.steps)

    @property
    def last_stamp(self) -> str:
        """When it was last heard of, as attempts are stamped."""
        return time.strftime("%Y%m%dT%H%M%S", time.gmtime(self.started + self.seconds + 1))

    def has_key(self, step: str, key: str) -> bool:
        return any(entry["step"] == step and entry.get("key") == key for entry in self.steps)

    def may_go_on_with(self, step: str, key: str) -> bool:
        """Whether it left a step unfinished that may have had this key."""
        return any(
            entry["step"] == step
            and entry.get("state") not in FINISHED_STATES
            and entry.get("key") in (None, key)
            for entry in self.steps
        )

    def count(self, *states: str) -> int:
        return sum(entry.get("state") in states for entry in self.steps)

    def is_at_work(self, holders: Container[str] = ()) -> bool:
        """Whether its driver is known to be at work.

        Args:
            holders: names of the runs that hold a lease.
        """
        here = self.host == platform.node() and _exists(self.pid)
        return self.outcome == "running" and (here or self.name in holders)

    def is_in_progress(self, holders: Container[str] = ()) -> bool:
        """Whether its driver may be at work; one on another machine may have died unseen."""
        elsewhere = self.outcome == "running" and self.host != platform.node()
        return elsewhere or self.is_at_work(holders)

    def shown_outcome(self) -> str:
        """The outcome for a person: a driver that was killed could not write down its end."""
        return self.outcome if self.outcome != "running" or self.is_in_progress() else "killed"

    def module_folders(self) -> list[str]:
        """Where to look for modules that the run had imported, the likeliest place first."""
        script = self.command[1] if len(self.command) > 1 else ""
        if not script.endswith(".py"):  # -c, or an interactive session
            return [self.cwd] if self.cwd else []
        places = [Path.cwd() / script, Path(self.cwd) / script]
        return [str(place.parent) for place in places if place.is_file()]


def read_runs(store: Store) -> list[Run]:
    """Every run on record, oldest first.

    Raises:
        TemperError: a record cannot be read, or is damaged.
    """
    with ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda name: _read(store, name), names_of_runs(store)))
    return [run for run in found if run is not None]


def newest_runs(store: Store) -> Iterator[Run]:
    """Runs, newest first, each read when it is asked for; damaged records are passed over."""
    for name in reversed(names_of_runs(store)):
        if (run := _unless_damaged(store, name)) is not None:
            yield run


def names_of_runs(store: Store) -> list[str]:
    """The names of all runs on record, oldest first; one request."""
    entries = store.objects.list(f"{store.root}/runs")
    return sorted(e.name.removesuffix(".json") for e in entries if e.name.endswith(".json"))


def one_run(names: Sequence[str], prefix: str) -> str:
    """The name of a run, of which ``prefix`` is the beginning.

    Raises:
        TemperError: there is none, or several are called so.
    """
    found = [name for name in names if name.startswith(prefix)]
    if prefix in names:
        return prefix
    if len(found) == 1:
        return found[0]
    if not found:
        raise TemperError(f"there is no run {prefix!r}; see: temper runs")
    raise TemperError(f"{prefix!r} may be {', '.join(found[:8])}; give more of the name")


def forget_run(store: Store, name: str) -> None:
    """Delete the record of a run, which keeps what it used from being collected.

    Raises:
        TemperError: it is in progress.
    """
    run = _unless_damaged(store, name)
    if run is not None and run.is_at_work(holding_runs(leases(store))):
        raise TemperError(
            f"the run {name} is in progress, on {run.host} (pid {run.pid}); stop it first"
        )
    store.objects.remove(_path(store, name))


def read_run(store: Store, name: str) -> Run:
    """
    Raises:
        TemperError: there is no such run, or its record is damaged.
    """
    run = _read(store, name)
    if run is None:
        raise TemperError(f"there is no run {name!r}; see: temper runs")
    return run


def stamp_seconds(name: str) -> float | None:
    """Seconds since the epoch of the time with which a run's or attempt's name begins."""
    try:
        return float(calendar.timegm(time.strptime(name[:15], "%Y%m%dT%H%M%S")))
    except ValueError:
        return None


def _entry(step: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _text(step[name]) for name in _TEXTS if step.get(name) is not None}
    return {**step, **texts, "seconds": _seconds(step.get("seconds"))}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _seconds(value: Any) -> float:
    seconds = float(value or 0.0)
    if not 0 <= seconds < _ETERNITY:
        raise ValueError(f"{value!r:.40} is no number of seconds")
    return seconds


def _path(store: Store, name: str) -> str:
    return f"{store.root}/runs/{name}.json"


def _read(store: Store, name: str) -> Run | None:
    data = store.read(_path(store, name))
    return None if data is None else Run.from_json(data, store.url_of(_path(store, name)))


def _unless_damaged(store: Store, name: str) -> Run | None:
    with contextlib.suppress(TemperError):
        return _read(store, name)
    return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's
    return pid > 0
