"""Sessions that build a specialised plan in the background for frequent shapes.

Nothing here may make a run fail or slower: a failed build changes nothing, and a plan takes over only if it was faster
on the caller's runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

from occ.background import BackgroundBuild
from occ.compiler.driver.sessions import Soon
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source
from occ.runtime.dataclass import dataclass
from occ.runtime.native.engine import NativeEngine
from occ.runtime.session import Session
from occ.tiered import Better, TieredSession

SEEN = 32  # runs of a shape after which a plan for it is built
MOST = 8  # maximum shapes of a session with a plan
TIMED = 5  # runs of each of two plans that decide between them, alternating, after an uncounted one of the new plan

Shapes = Mapping[str, tuple[int, ...]]
Build = Callable[[Shapes, Event], Session | None]


@dataclass
class _Shape:
    """The record of one input shape.

    Attributes:
        seen: runs of it before a build started.
        other: the session for it alone; None until it exists, and if it lost.
        won: whether it was chosen.
        times: of both on the caller's runs, in seconds; the first of the new one does not count.
    """

    seen: int = 0
    other: Session | None = None
    won: bool = False
    turn: int = 0
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


class SpecialisingSession(TieredSession):
    """A session on a model with symbolic sizes, with specialised ones for frequent shapes.

    Thread-safe. Shapes count once no better code for all of them is expected.
    """

    def __init__(self, session: Session, build: Build, better: Better | None = None) -> None:
        self._build, self._lock = build, Lock()
        self._shapes: dict[tuple[tuple[int, ...], ...], _Shape] = {}
        self._chosen, self._builder = 0, None
        super().__init__(session, better)

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run the model by the faster of both plans for the shapes of the inputs; see `Session.run`."""
        shape = self._shape_of(inputs) if self.is_settled else None
        if shape is None:
            return super().run(inputs, outputs)
        if shape.other is None:
            self._note(inputs, shape)
            return super().run(inputs, outputs)
        if shape.won:
            return self._by_other(shape, inputs, outputs)
        return self._timed(shape, inputs, outputs)

    def _shape_of(self, inputs: Mapping[str, Any]) -> _Shape | None:
        """The record of the inputs' shape; None if they are not arrays, or kernels are observed."""
        if isinstance(self.engine, NativeEngine) and self.engine.observer is not None:
            return None
        try:
            key = tuple([inputs[i.name].shape for i in self._signature.inputs])
        except (KeyError, AttributeError):
            return None
        found = self._shapes.get(key)
        if found is None:
            with self._lock:
                if len(self._shapes) >= 64 * MOST:  # shapes that occurred once, long ago
                    self._shapes = {k: s for k, s in self._shapes.items() if s.seen >= SEEN}
                found = self._shapes.setdefault(key, _Shape())
        return found

    def _note(self, inputs: Mapping[str, Any], shape: _Shape) -> None:
        """Count a run, and start to build a plan if the shape is frequent.

        One plan is built at a time.
        """
        if shape.seen >= SEEN:
            return
        with self._lock:
            busy = self._builder is not None and self._builder.is_alive()
            if shape.seen + 1 == SEEN and (busy or self._stopped.is_set() or self._chosen >= MOST):
                return  # it is tried again at the next run
            shape.seen += 1
            if shape.seen == SEEN:
                self._chosen += 1
                shapes = {i.name: tuple(np.shape(inputs[i.name])) for i in self._signature.inputs}
                work = (self._build, shapes, self._stopped, shape)  # not the session, which may be deleted meanwhile
                self._builder = Thread(target=_build, args=work, daemon=True, name="occ-specialise")
                self._builder.start()

    def _timed(self, shape: _Shape, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """A run by one of the two, alternating, until it is clear which is faster."""
        with self._lock:
            shape.turn += 1
            turn = shape.turn % 2
        start = time.perf_counter()
        found = self._by_other(shape, inputs, outputs) if turn else super().run(inputs, outputs)
        seconds = time.perf_counter() - start
        with self._lock:
            general, special = shape.times
            (special if turn else general).append(seconds)
            if len(general) >= TIMED and len(special) > TIMED and not shape.won:
                shape.won = min(special[1:]) < min(general)
                if not shape.won:
                    shape.other = None
        return found

    def _by_other(self, shape: _Shape, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> dict[str, Any]:
        other = shape.other
        if other is not None:
            try:
                return other.run(inputs, outputs)
            except Exception:  # the session for all shapes reports errors of inputs
                shape.other = None
        return super().run(inputs, outputs)


def _build(build: Build, shapes: Shapes, stopped: Event, shape: _Shape) -> None:
    try:
        shape.other = build(shapes, stopped)
    except Exception:  # nobody requested this build: it changes nothing
        shape.other = None


def in_background(model: Source, settings: Settings, soon: Soon) -> Session:
    """A session that gets better code while it runs.

    The target's code if it starts on another one, and then plans for frequent shapes.
    """
    session, build = soon.session, BackgroundBuild.of(model, settings, soon.session)
    better: Better | None = (lambda stopped: build({}, stopped)) if soon.missing else None
    if any(isinstance(d, str) for i in session.inputs for d in i.shape):
        return SpecialisingSession(session, build, better)
    return session if better is None else TieredSession(session, better)
