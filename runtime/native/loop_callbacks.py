"""Parallel loops that kernels leave to Python: callbacks of a native entry."""

from __future__ import annotations

import ctypes
from typing import Any

from occ.runtime.native.callback import Callback
from occ.runtime.native.workers import Workers

_RANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


def run_tasks(workers: Workers, kernel: int, arguments: int, tasks: int) -> int:
    """The tasks of a kernel on several threads; the first error code, or 0.

    Raises:
        BaseException: raised by a signal handler; no thread is in the kernel any more.
    """
    run = _RANGE(kernel)
    return workers.run(lambda begin, end: run(arguments, begin, end), tasks)


class LoopCallbacks(Callback):
    """Implements `occ_call.parallel` of one call, which one run at a time uses.

    Args:
        call: an `EntryCall`.
        workers: the threads of a run.

    Native code sets `call.tasks` before the request. An answer resets it to 0, so a call whose callback was lost is
    detected.
    """

    def __init__(self, call: Any, workers: Workers) -> None:

        def answer() -> int:
            code = run_tasks(workers, call.kernel, call.arguments, call.tasks)
            call.tasks = 0
            return 1 + code

        super().__init__(call, answer)
