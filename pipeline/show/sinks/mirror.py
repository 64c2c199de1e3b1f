"""The process that sends metrics to sinks: ``python -m pipeline.show.sinks.mirror STORE RUN GROUP
SINK...``.

It reads one JSON object a line from standard input; each reports that a step began or ended. Every
few seconds it reads the metrics of running steps. It ends when its input ends, so it never outlives
its driver for long. The driver shows what it prints.
"""

import contextlib
import json
import select
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.errors import TemperError
from pipeline.base.redaction import is_secret, shown
from pipeline.dag.canonical import Json
from pipeline.show.artifact_handle import Made
from pipeline.show.metrics import is_interval, is_number
from pipeline.show.metrics_log import METRICS, unfinished_log
from pipeline.show.sinks import Sink, View, Watched, open_sink
from pipeline.store.layout import Store
from pipeline.store.lease import Leases
from pipeline.store.manifest import Manifest

POLL_SECONDS = 2.0
MADE = ("done", "cached")
"""The last states of steps with an artifact; ``cached`` is one that another driver has made."""


@dataclass
class _Open:
    """A running step: its views in sinks once this run makes it, and the last training step that
    each has."""

    watched: Watched
    is_ours: bool = False
    views: dict[str, View] = field(default_factory=dict)
    logged: dict[str, int] = field(default_factory=dict)


@dataclass
class Mirror:
    """Sends the metrics of steps to sinks. It prints each error once and goes on.

    Attributes:
        run: the run whose steps are shown: those whose lease it holds, or which it has made.
        reached: whether each sink has taken some step, for the sinks that were tried.
        failed: the sinks that raised an error, so they may lack metrics.
    """

    store: Store
    run: str
    group: str
    sinks: Mapping[str, Sink]
    folder: Path
    reached: dict[str, bool] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    _open: dict[tuple[str, str], _Open] = field(default_factory=dict)
    _printed: set[str] = field(default_factory=set)

    def begin(self, step: str, name: str, key: str, settings: Mapping[str, Json]) -> None:
        config = {
            **{encodable(path): _value(path, value) for path, value in settings.items()},
            "temper/key": key,
            "temper/step": step,
            "temper/store": shown(self.store.url),
        }
        watched = Watched(self.group, step, encodable(name), key, config, self.folder)
        self._open[step, key] = _Open(watched)

    def _show(self, opened: _Open) -> None:
        """Open the views of a step that this run makes."""
        opened.is_ours = True
        for kind, sink in self.sinks.items():
            if (view := self._try(kind, sink.open, opened.watched)) is not None:
                opened.views[kind] = view
            self.reached[kind] = self.reached.get(kind, False) or view is not None

    def _makers(self, step: str, key: str) -> set[str]:
        """The run that makes a step now, if any and if it can be found out."""
        with contextlib.suppress(OSError, TemperError):
            holder = Leases(self.store.objects, self.store.root, self.run).holder(step, key)
            return set() if holder is None else {holder.run}
        return set()

    def look(self) -> None:
        """Send what running steps have logged up to their last checkpoint. Its last training step
        waits, as more records of it may follow."""
        for (step, key), opened in self._open.items():
            if not opened.is_ours and self._makers(step, key) == {self.run}:
                self._show(opened)
            self._hand_on(opened, unfinished_log(self.store, step, key), is_whole=False)

    def end(self, step: str, key: str, is_made: bool = False) -> None:
        """Send the rest of a step's log, and its metrics if it made an artifact.

        Without one, the log is what lies in scratch: of a training that failed, the last values
        are those that tell why.
        """
        opened = self._open.pop((step, key), None)
        if opened is None:
            return
        made = self.store.latest(step, key) if is_made else None
        makers = self._makers(step, key) if made is None else {made.provenance.get("run")}
        if not opened.is_ours and makers <= {self.run}:
            self._show(opened)
        if made is None:
            self._hand_on(opened, unfinished_log(self.store, step, key))
        else:
            self._hand_on(opened, Made(made, self.store).records(METRICS))
        for kind, view in opened.views.items():
            self._try(kind, view.end, None if made is None else _numbers(made))

    def end_all(self) -> None:
        """End the steps whose end was not reported, since the driver has stopped."""
        for step, key in [*self._open]:
            self.end(step, key)

    def outcome(self, kind: str) -> str:
        """One line that says what became of the metrics in a sink."""
        if not self.reached.get(kind, True):
            return "nothing was sent or kept"
        lacking = " (not all metrics, see the error above)" if kind in self.failed else ""
        return f"{self.sinks[kind].notice()}{lacking}"

    def _hand_on(
        self, opened: _Open, log: Iterable[Mapping[str, Any]], is_whole: bool = True
    ) -> None:
        """Send what the sinks lack of a log, in the order of training steps; all records of one
        step together, so the last step of a log that still grows waits for its end."""
        if not opened.views:
            return
        least = min(opened.logged.get(kind, -1) for kind in opened.views)
        found: dict[int, dict[str, float]] = {}
        for record in log:
            at = record.get("step")
            if isinstance(at, int) and at > least:
                numbers = {n: v for n, v in record.items() if n != "step" and is_number(v)}
                values = {encodable(name): float(value) for name, value in numbers.items()}
                found.setdefault(at, {}).update(values)
        for at in sorted(found)[: None if is_whole else -1]:
            for kind, view in opened.views.items():
                if at > opened.logged.get(kind, -1):
                    opened.logged[kind] = at
                    self._try(kind, view.log, at, found[at])

    def _try(self, kind: str, call: Any, *arguments: Any) -> Any:
        """What a sink returns; ``None`` if it fails."""
        try:
            return call(*arguments)
        except Exception as error:  # an error in a sink must not stop the others
            self.failed.add(kind)
            self.say(f"{kind}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return None

    def say(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            print(encodable(shown(line)), flush=True)


def main(url: str, run: str, group: str, names: list[str]) -> None:
    store = Store(url)
    folder = Path(store.root if store.is_local else ".") / "sinks"
    mirror = Mirror(store, run, group, {name: open_sink(name) for name in names}, folder)
    for event in _events():
        if event is None:
            mirror.look()
        elif event["state"] == "running":
            mirror.begin(event["step"], event["name"], event["key"], event["settings"])
        else:
            mirror.end(event["step"], event["key"], event["state"] in MADE)
    mirror.end_all()
    for name in mirror.sinks:
        mirror.say(f"{name}: {mirror.outcome(name)}")


def _events() -> Iterator[Mapping[str, Any] | None]:
    """The driver's events, and ``None`` after each ``POLL_SECONDS`` without an event."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:  # `select` sees all
        while True:
            if not select.select([lines], [], [], POLL_SECONDS)[0]:
                yield None
            elif line := lines.readline():
                yield json.loads(line)
            else:
                return


def _value(path: str, value: Any) -> Any:
    if is_secret(path):
        return "…"
    return encodable(shown(value)) if isinstance(value, str) else value


def encodable(text: str) -> str:
    """A text without unpaired surrogates, which cannot be encoded."""
    return text.encode(errors="replace").decode()


def _numbers(made: Manifest) -> dict[str, Any]:
    """The metrics that are numbers; an interval becomes three numbers."""
    found: dict[str, Any] = {"seconds": made.seconds}
    for name, value in made.metrics.items():
        if is_interval(value):
            name = encodable(name)
            found |= {name: value["value"], f"{name}.low": value["low"],
                      f"{name}.high": value["high"]}  # fmt: skip
        elif is_number(value):
            found[encodable(name)] = value
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
