"""Input and output arrays bound to a session, for many runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from occ.runtime.errors import RunError


class Binding:
    """A model bound to fixed arrays (`Session.bind`); a call runs it on their current contents.

    A call checks and allocates nothing, so it costs about a microsecond in addition to the kernels. Only one thread at
    a time may call it; each thread can have a binding of its own.

    Attributes:
        outputs: the arrays that each run writes, by name, in the order of the model.
    """

    def __init__(self, run: Callable[[], None], outputs: Mapping[str, Any]) -> None:
        self.outputs = dict(outputs)
        self._run, self._lock = run, Lock()

    def __call__(self) -> dict[str, Any]:
        """Run once.

        Returns:
            `outputs`: the same arrays each time.

        Raises:
            RunError: OCC0501 another thread is in a call; or a node cannot process its data.
        """
        if not self._lock.acquire(False):
            raise RunError("OCC0501", "another thread is in a run of this binding", "make a binding for each thread")
        try:
            self._run()
        finally:
            self._lock.release()
        return self.outputs
