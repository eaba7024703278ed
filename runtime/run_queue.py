"""Limits the concurrent runs of a session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import BoundedSemaphore, Lock
from typing import Any, Self

from occ.runtime.errors import RunError
from occ.runtime.session import Session

Result = dict[str, Any]


class RunQueue:
    """Runs a model on several inputs at once, and blocks submitters while it is full.

    Open the session with fewer threads for more concurrent runs: `occ.compile(path, threads=1)` and a queue with one
    run per processor have the highest throughput.

    Args:
        session: the session to run.
        size: maximum concurrent runs; `submit` waits for a slot.

    Attributes:
        callback: called with the outputs of each run and the `data` of its `submit`, in the thread of the run.

    Raises:
        RunError: OCC0501 the size is not positive, or there is no session.
    """

    def __init__(self, session: Session, size: int = 4) -> None:
        if not hasattr(session, "run"):
            what = f"a queue runs a session, not {type(session).__name__}"
            raise RunError("OCC0501", what, "`occ.load(path)` and `occ.compile(model)` return one")
        if size < 1:
            raise RunError("OCC0501", f"the size of a queue is {size}", "it must be 1 or above")
        self.session, self.size = session, size
        self.callback: Callable[[Result, Any], None] | None = None
        self._places = BoundedSemaphore(size)
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="occ-run")
        self._running: set[Future[Result]] = set()
        self._lock = Lock()

    def submit(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, data: Any = None
    ) -> Future[Result]:
        """Start a run like `Session.run`, as soon as there is a slot; waits until then.

        Returns:
            A future of the outputs by name. It raises the exception of the run or the callback.

        Raises:
            RuntimeError: the queue was closed.
        """
        self._places.acquire()
        return self._begin(inputs, outputs, data)

    async def run(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None, data: Any = None
    ) -> Result:
        """`submit` for coroutines: other tasks continue while it waits for a slot and for the run."""
        while not self._places.acquire(blocking=False):
            await self._next()
        return await asyncio.wrap_future(self._begin(inputs, outputs, data))

    def wait(self) -> None:
        """Wait for all started runs, whether they fail or not."""
        with self._lock:
            running = list(self._running)
        wait(running)

    def close(self) -> None:
        """Wait for all runs, and accept no more."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None, data: Any) -> Future[Result]:
        try:
            future = self._pool.submit(self._run, inputs, outputs, data)
        except BaseException:
            self._places.release()
            raise
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None, data: Any) -> Result:
        found = self.session.run(inputs, outputs)
        if self.callback is not None:
            self.callback(found, data)
        return found

    def _ended(self, future: Future[Result]) -> None:
        with self._lock:
            self._running.discard(future)
        self._places.release()

    async def _next(self) -> None:
        """Wait until a run has ended."""
        with self._lock:
            running = [asyncio.wrap_future(f) for f in self._running]
        if running:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(0)
