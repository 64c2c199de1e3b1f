"""The driver's side of the mirror: starts it, sends it the events of steps, shows its output."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from pipeline.dag.step import Step
from pipeline.plan.resolver import Resolver
from pipeline.plan.variants import settings_of
from pipeline.show.sinks import mirror

END_SECONDS = 60.0
"""How long the mirror may continue after the run before it is killed."""


class MirrorProcess:
    """Sends the scheduler's events to a mirror process; does nothing once that process has ended.

    Args:
        names: the display name of each step, by fingerprint.
    """

    def __init__(
        self, resolver: Resolver, group: str, sinks: Iterable[str], names: Mapping[str, str]
    ):
        self.resolver, self.names = resolver, names
        self.output: list[str] = []
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", mirror.__name__, resolver.store.url, group, *sinks],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the driver, which stops the mirror
        )

    def observe(self, step: Step, state: str) -> None:
        resolved = self.resolver.current_key_and_recipe(step)
        if resolved is None:
            return
        key, recipe = resolved
        event = {
            "state": state, "step": step.name, "name": self.names[step.fingerprint], "key": key,
            "settings": settings_of(recipe) if state == "running" else {},
        }  # fmt: skip
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{json.dumps(event)}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait()
        self._output.seek(0)
        self.output = self._output.read().splitlines()
        self._output.close()
        if self._process.returncode:
            self.output.append(f"the sinks' process ended with status {self._process.returncode}")


@contextlib.contextmanager
def mirrored(
    resolver: Resolver, group: str, sinks: Iterable[str], names: Mapping[str, str]
) -> Iterator[MirrorProcess | None]:
    """Run a mirror until the block ends; ``None`` if there are no sinks."""
    sinks = list(sinks)
    if not sinks:
        yield None
        return
    process = MirrorProcess(resolver, group, sinks, names)
    try:
        yield process
    finally:
        process.close()
