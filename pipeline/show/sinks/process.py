"""The driver's side of the mirror: starts it, sends it the events of steps, shows its output."""

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping

from pipeline.base.redaction import record
from pipeline.dag.step import Step
from pipeline.plan.resolver import Resolver
from pipeline.plan.variants import settings_of
from pipeline.show.sinks import mirror

END_SECONDS = 60.0
"""How long the mirror may continue after the run before it is killed."""


class MirrorProcess:
    """Sends the scheduler's events to a mirror process; does nothing once that process has ended.

    A thread writes to the process's input, since a sink that waits for its server reads none of it,
    and the run must not wait for a sink.

    Args:
        names: the display name of each step, by fingerprint.
    """

    def __init__(
        self, resolver: Resolver, run: str, group: str, sinks: Iterable[str],
        names: Mapping[str, str],
    ):  # fmt: skip
        self.resolver, self.names = resolver, names
        self.output: list[str] = []
        self._events = queue.SimpleQueue[str | None]()  # None: there are no more
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", mirror.__name__, resolver.store.url, run, group, *sinks],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the driver, which stops the mirror
        )
        self._writing = threading.Thread(target=self._write, name="sinks", daemon=True)
        self._writing.start()

    def observe(self, step: Step, state: str) -> None:
        resolved = self.resolver.current_key_and_recipe(step)
        if resolved is None:
            return
        key, recipe = resolved
        event = {
            "state": state, "step": step.name, "name": self.names[step.fingerprint], "key": key,
            "settings": settings_of(recipe) if state == "running" else {},
        }  # fmt: skip
        self._events.put(f"{record(event).decode()}\n")

    def _write(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError), self._process.stdin as lines:
            while (line := self._events.get()) is not None:
                lines.write(line)
                lines.flush()

    def close(self) -> None:
        """Wait until the sinks have everything, or for ``END_SECONDS``."""
        self._events.put(None)
        is_late = False
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:  # also after a second Ctrl-C
            self._process.kill()
            self._process.wait()
        self._writing.join()
        self._output.seek(0)
        self.output = self._output.read().splitlines()
        self._output.close()
        if is_late:
            self.output.append(
                f"the sinks were still busy {END_SECONDS:.0f} s after the run and were stopped: "
                "they may lack metrics, which are all in the store"
            )
        elif self._process.returncode:
            self.output.append(
                f"the sinks' process ended with status {self._process.returncode}: they may lack "
                "metrics, which are all in the store"
            )


@contextlib.contextmanager
def mirrored(
    resolver: Resolver, run: str, group: str, sinks: Iterable[str], names: Mapping[str, str]
) -> Iterator[MirrorProcess | None]:
    """Run a mirror until the block ends; ``None`` if there are no sinks."""
    sinks = list(sinks)
    if not sinks:
        yield None
        return
    process = MirrorProcess(resolver, run, group, sinks, names)
    try:
        yield process
    finally:
        process.close()
