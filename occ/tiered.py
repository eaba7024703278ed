"""Tiered compilation: runs start with code that is available quickly, and continue with better code."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any

from occ.runtime.binding import Binding
from occ.runtime.session import Session

Better = Callable[[Event], Session | None]


class TieredSession(Session):
    """A session that switches its runs to another session once that is ready.

    Thread-safe. A run uses one of the two from begin to end, and a binding the one that made it. A failed build changes
    nothing.

    Args:
        session: used first.
        better: creates the other one, in a thread; None if there is none. It stops when the event is set.
    """

    def __init__(self, session: Session, better: Better | None) -> None:
        super().__init__(session.artifact, session.engine, session.threads)
        self.otherwise, self.for_ranks = session.otherwise, session.for_ranks
        self._now = session
        self._stopped = Event()
        weakref.finalize(self, self._stopped.set)
        self._upgrade: Thread | None = None
        if better is not None:
            work = (better, self._stopped, weakref.ref(self))  # not the session, which may be deleted meanwhile
            self._upgrade = Thread(target=_upgrade, args=work, daemon=True, name="occ-upgrade")
            self._upgrade.start()

    @property
    def is_settled(self) -> bool:
        """Whether no better code is expected."""
        return self._upgrade is None or not self._upgrade.is_alive()

    def take(self, better: Session) -> None:
        """Use another session on the same model for all later runs."""
        better.otherwise, better.for_ranks = self.otherwise, self.for_ranks
        self._now = better
        super().__init__(better.artifact, better.engine, better.threads)  # what is saved, shown and profiled
        self.otherwise, self.for_ranks = better.otherwise, better.for_ranks

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run the model by the better session if it is ready; see `Session.run`."""
        return self._now.run(inputs, outputs)

    def bind(
        self, inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None, **arrays: Any
    ) -> Binding:
        """Bind memory to the better session if it is ready; see `Session.bind`."""
        return self._now.bind(inputs, outputs, **arrays)

    def close(self) -> None:
        """Close the session, and stop a build in progress."""
        self._stopped.set()
        super().close()


def _upgrade(better: Better, stopped: Event, session: weakref.ref[TieredSession]) -> None:
    try:
        made = better(stopped)
    except Exception:  # nobody requested this build: it changes nothing
        return
    waiting = session()
    if made is not None and waiting is not None and not stopped.is_set():
        waiting.take(made)
