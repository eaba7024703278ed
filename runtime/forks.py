"""After a fork: new thread pools and locks for the child process."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """An object with locks or threads, which a fork renews."""

    def renew(self) -> None:
        """Recreate locks and threads: the process is a newly forked child with one thread."""
        ...


_owners: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(owner: Renewable) -> None:
    """Register `owner.renew` to be called in every child forked from this process, during the life of `owner`."""
    _owners.add(owner)


def _renew_all() -> None:
    for owner in list(_owners):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
