"""Ownership of driver resources: released in reverse order, whatever happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from occ.runtime.errors import RunError


class Owner:
    """Releases in reverse order.

    A failed release does not stop the others, and the first failure is raised. As a context manager it releases if the
    block fails, and keeps everything if it succeeds. In a forked child nothing of the parent's is released.
    """

    def __init__(self) -> None:
        self._releases: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._process = os.getpid()

    def add(self, release: Callable[..., Any], *args: Any) -> None:
        """Register `release(*args)` for close."""
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
            return  # the error in flight is the cause, and the one to report
