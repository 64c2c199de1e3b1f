"""Results of queued calls: to wait for, or to await under asyncio and trio."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from steps.shared.execution_detail import kept

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """What a call will have given."""

    def __init__(self, future: Future[Result]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result, or for the error, which is raised.

        Raises TimeoutError after `timeout` seconds.
        """
        return self._future.result(timeout)

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._future.done()

    def __await__(self) -> Generator[Any, Any, Result]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._in_trio().__await__()
        return asyncio.wrap_future(self._future).__await__()

    async def _in_trio(self) -> Result:
        import trio

        return await trio.to_thread.run_sync(self._future.result, abandon_on_cancel=True)


def after(calls: list[Future[Any]], then: Callable[..., Result]) -> Pending[Result]:
    """What `then` makes of the results of calls, of which the last one ends last; or the first
    error."""
    joined: Future[Result] = Future()

    def settle(_: Future[Any]) -> None:
        try:
            joined.set_result(then(*(call.result() for call in calls)))
        except BaseException as error:
            joined.set_exception(kept(error))

    calls[-1].add_done_callback(settle)
    return Pending(joined)
