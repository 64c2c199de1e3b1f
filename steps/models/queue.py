"""One thread that works off calls in order, and does nothing more after the first error."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from steps.shared.execution_detail import kept

Result = TypeVar("Result")


class PoisonedError(RuntimeError):
    """Something was asked of a model that an earlier error has left in an unknown state."""


class SerialQueue:
    """Calls run one after another beside the caller's thread.

    Torch lets go of the interpreter's lock while its kernels run, so the caller prepares a batch
    meanwhile. The first call that raises poisons the queue: calls behind it, queued or yet to come,
    raise PoisonedError naming that error.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._fault: BaseException | None = None

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queues `call`; the future has what it returns or raises."""
        return self._executor.submit(self._run, call)

    def close(self) -> None:
        """Waits for what is queued, and takes no more."""
        self._executor.shutdown()

    def _run(self, call: Callable[[], Result]) -> Result:
        if self._fault is not None:
            raise PoisonedError(
                f"the {self._name} cannot go on after {type(self._fault).__name__}: {self._fault}. "
                "Build it again and load a checkpoint."
            ) from self._fault
        try:
            return call()
        except BaseException as fault:
            self._fault = kept(fault)
            raise
