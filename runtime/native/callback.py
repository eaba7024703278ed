"""A callback from a native entry into Python that loses no exception."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from typing import Any

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Callback:
    """A C function that answers for one call, which one run at a time uses.

    Python handles signals received during native code before the first instruction of a callback, and ctypes prints and
    drops exceptions from their handlers. A generator waits *within* its `try`, so it catches those too. What prevents
    it from being resumed at all, such as stack overflow, is still printed and dropped, and ctypes then returns an
    arbitrary value: native code counts its requests in `call.detail`, and answered ones are subtracted.

    Args:
        call: an `EntryCall`.
        answer: returns the value for C; 0 is returned if it raises.

    Attributes:
        function: the function for C.
        address: its address.
        raised: exception of an answer; the run fails, and raises it when native code has returned.
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
