"""Runs a function in a forked process, which a kernel may crash."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def isolated(work: Callable[[], T]) -> T | None:
    """The result of a function run in a forked process; None if a signal ended it.

    Args:
        work: returns something that can be pickled. Its side effects stay in the child.

    Raises:
        Exception: raised by the function.
    """
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(source)
            with os.fdopen(sink, "wb") as f:
                try:
                    f.write(pickle.dumps((work(), None)))
                except Exception as e:
                    f.write(pickle.dumps((None, e)))
            code = 0
        finally:
            os._exit(code)  # nothing of the parent's is closed or flushed twice
    os.close(sink)
    with os.fdopen(source, "rb") as f:
        said = f.read()
    os.waitpid(child, 0)
    if not said:
        return None
    value, problem = pickle.loads(said)
    if problem is not None:
        raise problem
    return value
