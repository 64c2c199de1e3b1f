"""Reads records of runs: what was requested, and the outcome of each step.

Records of the first layout contain no keys and no command; see :attr:`Run.names_keys`.
"""

import calendar
import platform
import shlex
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pipeline.base import processes
from pipeline.base.errors import TemperError
from pipeline.store.activity import holding_runs, leases, unwritable
from pipeline.store.layout import Store
from pipeline.store.lease import MOST_PROCESSES
from pipeline.store.manifest import Manifest
from pipeline.store.network_timeouts import may_pass
from pipeline.store.untrusted_input import is_attempt, is_count, parse_json

READERS = 16
_TEXTS = (
    "step", "label", "fingerprint", "key", "attempt", "state", "why", "message", "place",
)  # fmt: skip
_ETERNITY = 1e10
FINISHED_STATES = ("done", "cached")
UNKNOWN = "unknown"
"""Stands for the changes since a commit where git did not list them."""


@dataclass(frozen=True)
class Run:
    """The record of one invocation.

    Attributes:
        started: seconds since the epoch, by the clock of its machine.
        steps: name, state, key, attempt… of each step; a key is ``None`` if it was not known yet.
        command: the interpreter, the script and its arguments; empty if not recorded.
        dirty: a digest of the changes since the commit; empty if there were none, and `UNKNOWN` if
            git did not list them.
        roots: the fingerprint of each result, by its name.
        experiment: the name of the script.
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
    experiment: str = ""
    title: str = ""

    @classmethod
    def from_json(
        cls, data: bytes, url: str, went: Callable[[], Mapping[str, Any]] = dict
    ) -> "Run":
        """
        Args:
            went: returns the outcomes of steps since the record was written, by fingerprint.

        Raises:
            TemperError: the data is no record of a run.
        """
        try:
            record = parse_json(data)
            if record["run"] != Path(url).stem or not is_attempt(record["run"]):
                raise ValueError("it is the record of another run")
            if record["outcome"] == "running":
                _bring_up_to_date(record, went())
            return cls(
                name=record["run"],
                started=stamp_seconds(record["run"]) or 0.0,
                seconds=_seconds(record.get("seconds")),
                outcome=_text(record["outcome"]),
                steps=[_entry(step) for step in record["steps"] if step["step"]],
                command=[str(argument) for argument in record.get("argv", ())],
                cwd=_text(record.get("cwd", "")),
                host=_text(record.get("host", "")),
                pid=record["pid"] if is_count(record.get("pid"), MOST_PROCESSES) else 0,
                commit=_text(record.get("commit") or ""),
                dirty=_text(record.get("dirty") or ""),
                roots={_text(name): _text(f) for name, f in record.get("roots", {}).items()},
                experiment=_text(record.get("experiment") or experiment_of(record.get("argv", ()))),
                title=_text(record.get("title") or ""),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            name = Path(url).stem
            raise TemperError(
                f"the record of a run {url} is damaged ({error}); "
                f"delete it with: temper runs --forget {name}"
            ) from error

    @property
    def names_keys(self) -> bool:
        """Whether the record contains the keys of the artifacts it used; old records do not."""
        return all("key" in step for step in self.steps)

    @property
    def last_stamp(self) -> str:
        """The time of its last known activity, in the format of attempts' names."""
        return time.strftime("%Y%m%dT%H%M%S", time.gmtime(self.started + self.seconds + 1))

    def may_go_on_with(self, step: str, key: str) -> bool:
        """Whether it left a step unfinished that has this key, or may have it."""
        return any(
            entry["step"] == step
            and entry.get("state") not in FINISHED_STATES
            and entry.get("key") in (None, key)
            for entry in self.steps
        )

    def count(self, *states: str) -> int:
        return sum(entry.get("state") in states for entry in self.steps)

    def is_at_work(self, holders: Container[str] = ()) -> bool:
        """Whether its driver is certainly running; ``holders`` are the runs that hold a lease."""
        here = self.host == platform.node() and processes.exists(self.pid)
        return self.outcome == "running" and (here or self.name in holders)

    def is_in_progress(self, holders: Container[str] = ()) -> bool:
        """Whether its driver may be running; one on another machine may have died unnoticed."""
        elsewhere = self.outcome == "running" and self.host != platform.node()
        return elsewhere or self.is_at_work(holders)

    def shown_seconds(self) -> float:
        """How long it took; if its driver is running on this machine, how long it has until now."""
        return max(self.seconds, time.time() - self.started) if self.is_at_work() else self.seconds

    def typed(self) -> str:
        """Its command as somebody types it: without the interpreter of a script, and ``temper``
        without its folder, which would fill a column."""
        words = [PurePath(word).name for word in self.command[:1]] + list(self.command[1:])
        if len(words) > 1 and not words[1].startswith("-"):
            script = PurePath(words[1])
            words = ["temper" if script.name == "temper" else words[1], *words[2:]]
        return shlex.join(words)

    def shown_outcome(self) -> str:
        """The outcome for display: ``killed`` if the driver died before it wrote an outcome."""
        return self.outcome if self.outcome != "running" or self.is_in_progress() else "killed"


def experiment_of(command: Sequence[str]) -> str:
    """The experiment of a command line: the name of its recipe, the file of that, its script,
    or of its module or package after ``-m``, whose file comes last."""
    words = [PurePath(word).name for word in command]
    after = words.index("temper") + 1 if "temper" in words[:-2] else 0
    if after and words[after] == "run" and not words[after + 1].startswith("-"):
        return words[after + 1].removesuffix(".yaml").removesuffix(".yml")
    scripts = [argument for argument in command if argument.endswith(".py")]
    if not scripts:
        return "interactive"
    is_module = "-m" in command[: command.index(scripts[0])]
    script = Path(scripts[-1 if is_module else 0])
    return script.parent.name if script.stem == "__main__" else script.stem


def read_runs(store: Store) -> list[Run]:
    """All recorded runs, oldest first.

    Raises:
        TemperError: a record cannot be read, is damaged, or is listed and not found.
    """
    names = names_of_runs(store)
    with ThreadPoolExecutor(READERS) as pool:
        found = dict(zip(names, pool.map(lambda name: _read(store, name), names), strict=True))
    missing = [f"{name}.json" for name, run in found.items() if run is None]
    store.require_gone(f"{store.root}/runs", missing)
    return [run for run in found.values() if run is not None]


def newest_runs(store: Store) -> Iterator[Run]:
    """Runs, newest first; each is read on demand, and damaged records are skipped."""
    for name in reversed(names_of_runs(store)):
        if (run := _unless_damaged(store, name)) is not None:
            yield run


def planned_labels(store: Store, manifests: Iterable[Manifest]) -> dict[str, str]:
    """The labels that artifacts have in the plans of the runs that made them, by attempt."""
    names = {str(manifest.provenance.get("run")) for manifest in manifests}
    with ThreadPoolExecutor(READERS) as pool:
        runs = pool.map(lambda name: _unless_damaged(store, name), filter(is_attempt, names))
        steps = [step for run in runs if run is not None for step in run.steps]
    made = (s for s in steps if s.get("state") == "done" and s.get("label"))
    return {str(s.get("attempt")): s["label"] for s in made}


def names_of_runs(store: Store) -> list[str]:
    """The names of all recorded runs, oldest first; it costs one request."""
    entries = store.listing(f"{store.root}/runs")
    names = (e.name.removesuffix(".json") for e in entries if e.name.endswith(".json"))
    return sorted(filter(is_attempt, names))


def one_run(names: Sequence[str], prefix: str) -> str:
    """The name of the run that starts with ``prefix``.

    Raises:
        TemperError: there is none, or the prefix is ambiguous.
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
    """Delete the record of a run; the record protects the artifacts that it used from ``temper
    gc``.

    Raises:
        TemperError: the run is in progress.
    """
    run = _unless_damaged(store, name)
    if run is not None and run.is_at_work(holding_runs(leases(store))):
        where = f"on {run.host} (pid {run.pid})"
        raise TemperError(f"the run {name} is in progress, {where}; stop it first")
    try:
        store.objects.remove(_path(store, name))
    except OSError as error:
        raise unwritable(store, error) from error
    store.forget_steps_of_run(name)


def read_run(store: Store, name: str) -> Run:
    """Raise `TemperError` if there is no such run, or its record is damaged."""
    run = _read(store, name)
    if run is None:
        raise TemperError(f"there is no run {name!r}; see: temper runs")
    return run


def stamp_seconds(name: str) -> float | None:
    """The time at the start of a run's or attempt's name, in seconds since the epoch."""
    try:
        return float(calendar.timegm(time.strptime(name[:15], "%Y%m%dT%H%M%S")))
    except ValueError:
        return None


def _entry(step: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: _text(step[name]) for name in _TEXTS if step.get(name) is not None}
    for fingerprint in step.get("inputs", ()):
        _text(fingerprint)
    return {**step, **texts, "seconds": _seconds(step.get("seconds"))}


def _bring_up_to_date(record: dict[str, Any], went: Mapping[str, Any]) -> None:
    """Add the outcomes since the run began to a record that was written at its beginning."""
    for step in record["steps"]:
        step |= went.get(step.get("fingerprint"), {})
    after = [_seconds(step.get("after")) for step in went.values()]
    record["seconds"] = max([_seconds(record.get("seconds")), *after])


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
    if data is None:
        return None
    return Run.from_json(data, store.url_of(_path(store, name)), lambda: store.steps_of_run(name))


def _unless_damaged(store: Store, name: str) -> Run | None:
    try:
        return _read(store, name)
    except TemperError as error:
        if may_pass(error):  # else an earlier run would be shown as the newest
            raise
        return None
