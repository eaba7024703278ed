"""A callback from a native entry into Python that loses no exception."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from typing import Any

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Callback:
    """A function for C which answers for one call, which one run at a time uses.

    Python handles the signals that came while native code ran before the first instruction of a callback, and ctypes prints and
    drops what their handlers raise there. A generator waits *within* its `try`, so that it catches that too. What keeps
    it from being resumed at all, such as a stack that is full, is still printed and dropped, and ctypes returns whatever is on the
    stack: native code counts in `call.detail` what it asks for, and what has been answered is taken off.

    Args:
        call: an `EntryCall`.
        answer: gives what C gets; 0 gets where it raises.

    Attributes:
        function: for C.
        address: of that.
        raised: by an answer; the run fails, and is to raise it when native code has returned.
    """

    def __init__(self, call: Any, answer: Callable[[], int]) -> None:
        self.raised: list[BaseException] = []
        answers = _answers(call, answer, self.raised)
        next(answers)
        self.function = _FUNCTION(answers.send)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value or 0


def _answers(call: Any, answer: Callable[[], int], raised: list[BaseException]) -> Generator[int, object, None]:
    said = 0
    while True:
        try:
            while True:
                yield said
                said = answer()
                call.detail -= 1
        except GeneratorExit:
            return
        except BaseException as e:
            raised.append(e)
            said = 0
