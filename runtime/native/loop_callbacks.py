"""Parallel loops that kernels leave to Python: through the Python runner, or as callbacks of a native entry."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from typing import Any

from occ.runtime.native.workers import Workers

_RANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
_PARALLEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


def run_tasks(workers: Workers, kernel: int, arguments: int, tasks: int) -> int:
    """The tasks of a kernel on several threads; the first error code, or 0.

    Raises:
        BaseException: what the handler of a signal raised; no thread is in the kernel any more.
    """
    run = _RANGE(kernel)
    return workers.run(lambda begin, end: run(arguments, begin, end), tasks)


class LoopCallbacks:
    """Answers `occ_call.parallel` of one call, which one run at a time uses.

    Python handles the signals that came while native code ran before the first instruction of a callback, and ctypes prints and
    drops what their handlers raise there. A generator waits *within* its `try`, so that it catches that too. What keeps
    it from being resumed at all, such as a stack that is full, is still printed and dropped, and ctypes returns whatever is on the
    stack: native code counts the loops that it asks for in `call.detail`, and those that have run are taken off.

    Args:
        call: an `EntryCall`.
        workers: the threads of a run.

    Attributes:
        address: of the function for C.
        raised: by a loop; the run fails, and is to raise it when native code has returned.
        codes: of the last loop that ran, if any did.
    """

    def __init__(self, call: Any, workers: Workers) -> None:
        self.raised: list[BaseException] = []
        self.codes: list[int] = []
        answers = _answers(call, workers, self.raised, self.codes)
        next(answers)
        self._function = _PARALLEL(answers.send)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0


def _answers(
    call: Any, workers: Workers, raised: list[BaseException], codes: list[int]
) -> Generator[int, object, None]:
    """1 + the error code of each loop that `call` asks for; 0 for one that raised."""
    answer = 0
    while True:
        try:
            while True:
                yield answer
                codes[:] = [run_tasks(workers, call.kernel, call.arguments, call.tasks)]
                call.detail -= 1
                answer = 1 + codes[0]
        except GeneratorExit:
            return
        except BaseException as e:
            raised.append(e)
            answer = 0
