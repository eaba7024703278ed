"""Ownership of driver resources: released in reverse order, whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from occ.runtime.errors import RunError


class Owner:
    """Releases in reverse order.

    A release that fails does not stop the others, and the first failure is the one that is raised. As a context manager
    it releases when the block fails, and keeps everything when it succeeds. A forked child has no part in what its parent
    acquired: there nothing is released.
    """

    def __init__(self) -> None:
        self._releases: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._process = os.getpid()

    def add(self, release: Callable[..., Any], *args: Any) -> None:
        """Have `release(*args)` called on close."""
        self._releases.append((release, args))

    def close(self) -> None:
        """Release everything; a second call does nothing.

        Raises:
            RunError: the first release that failed, after all were tried.
        """
        first: RunError | None = None
        if self._process != os.getpid():
            self._releases.clear()
        while self._releases:
            release, args = self._releases.pop()
            try:
                release(*args)
            except RunError as e:
                first = first or e
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            return
        try:
            self.close()
        except RunError:
            return  # the error on its way is the cause, and is the one to tell
