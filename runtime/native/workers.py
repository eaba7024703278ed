"""Worker threads for parallel loops of kernels without a thread pool."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from queue import SimpleQueue

from occ.runtime.forks import renew_in_children

Range = Callable[[int, int], int]  # runs a range of tasks; returns an error code, or 0


class _Loop:
    """A loop in progress.

    A signal handler may raise at any call of Python: finished parts are counted where they finish, so that nobody waits
    for a part that nobody runs.
    """

    def __init__(self, run: Range, parts: list[tuple[int, int]]) -> None:
        self._run, self._count = run, len(parts)
        self._left = iter(parts)  # advancing it is atomic between threads
        self._codes: list[int] = []
        self._done: SimpleQueue[None] = SimpleQueue()

    def help(self) -> None:
        """Run parts that nobody has started, until there are none."""
        for part in self._left:
            code = -1
            try:
                code = self._run(*part)
            finally:
                self._codes.append(code)
                self._done.put(None)

    def finish(self) -> int:
        """Wait for the parts of other threads, which write to the memory of the run.

        The first error code, or 0.

        Raises:
            BaseException: raised by a signal handler, once all parts have finished.
        """
        raised: BaseException | None = None
        while len(self._codes) < self._count:
            try:
                self._done.get()
            except BaseException as e:
                raised = e
        if raised is not None:
            raise raised
        return next((c for c in self._codes if c), 0)

    def abandon(self) -> None:
        """Abandon the parts that nobody has started, and wait for the others.

        May be called again after a signal has interrupted it.
        """
        for _ in self._left:
            self._codes.append(-1)
        self.finish()


_Queue = SimpleQueue[_Loop | None]


def _serve(queue: _Queue) -> None:
    while (loop := queue.get()) is not None:
        loop.help()
        del loop  # its references end with the run


def _dismiss(queue: _Queue, threads: list[threading.Thread]) -> None:
    for _ in threads:
        queue.put(None)


class Workers:
    """Threads that start with the first loop and end with this object. Thread-safe.

    The caller of a loop works too, and runs any parts that nobody has started. So a loop ends however few threads the
    system grants: none in a process at its limit, or that is about to end.

    Args:
        count: maximum number of threads of a loop, including its caller.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Implements `Renewable.renew`."""
        self._lock = threading.Lock()
        self._queue: _Queue = SimpleQueue()
        self._threads: list[threading.Thread] | None = None

    def run(self, run: Range, tasks: int) -> int:
        """Run the tasks 0 to `tasks`, a part per thread; returns the first error code, or 0.

        Raises:
            BaseException: raised by a signal handler; no thread is in the loop any more.
        """
        if self._count == 1 or tasks < 2:
            return run(0, tasks)
        bounds = [tasks * k // self._count for k in range(self._count + 1)]
        parts = [(a, b) for a, b in pairwise(bounds) if a < b]
        loop = _Loop(run, parts)
        try:
            for _ in range(min(len(parts) - 1, self._started())):
                self._queue.put(loop)
            loop.help()
            return loop.finish()
        except BaseException as e:
            raised = e
        while True:
            try:
                loop.abandon()
                break
            except BaseException as e:  # another signal: the memory of the run is in use while a thread is in the loop
                raised = e
        raise raised

    def _started(self) -> int:
        """The number of threads; the first call starts them."""
        with self._lock:
            if self._threads is None:
                self._threads = []
                ending = weakref.finalize(self, _dismiss, self._queue, self._threads)
                ending.atexit = False
                while len(self._threads) < self._count - 1:
                    name = f"occ_{len(self._threads)}"
                    thread = threading.Thread(target=_serve, args=(self._queue,), name=name, daemon=True)
                    try:
                        thread.start()
                    except RuntimeError:  # the process is at its thread limit, or about to end
                        break
                    self._threads.append(thread)
            return len(self._threads)
