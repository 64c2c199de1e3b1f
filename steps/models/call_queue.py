"""A thread that executes calls in order and refuses all calls after its first error."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from steps.shared.execution_detail import kept

Result = TypeVar("Result")


class PoisonedError(RuntimeError):
    """A call was refused, because an earlier error has left the model in an unknown state."""


class SerialQueue:
    """Executes calls one after another in a thread of its own.

    Torch releases the interpreter's lock while kernels run, so the caller can prepare a batch at
    the same time. After the first call that raises, all later calls, also those already queued,
    raise PoisonedError, which names that first error.

    The thread works on the GPU of the thread that made the queue: by default, each thread begins
    with the first GPU, also in a rank that has another one.
    """

    def __init__(self) -> None:
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="engine", initializer=torch.cuda.set_device, initargs=(device,)
        )
        self._fault: BaseException | None = None

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue `call`; the future gets its result or its exception."""
        return self._executor.submit(self._run, call)

    def close(self) -> None:
        """Wait for queued calls; accept no more."""
        self._executor.shutdown()

    def _run(self, call: Callable[[], Result]) -> Result:
        if self._fault is not None:
            raise PoisonedError(
                f"the engine cannot go on after {type(self._fault).__name__}: {self._fault}. "
                "Build it again and load a checkpoint."
            ) from self._fault
        try:
            return call()
        except BaseException as fault:
            self._fault = kept(fault)
            raise
