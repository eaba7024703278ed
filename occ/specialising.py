"""Sessions that build a specialised plan in the background for shapes that they see often.

Nothing here may make a run fail or slower: a build that fails leaves things as they are, and a plan takes over only where it was
faster on runs of the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any

import numpy as np

from occ.background import BackgroundBuild
from occ.compiler.driver.sessions import Soon
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source
from occ.runtime.native.engine import NativeEngine
from occ.runtime.session import Session
from occ.tiered import Better, TieredSession

SEEN = 32  # runs of a shape after which a plan for it is built
MOST = 8  # shapes of a session that get one
TIMED = 5  # runs of each of two plans that decide between them, in turn, after one of the new plan that is not counted

Shapes = Mapping[str, tuple[int, ...]]
Build = Callable[[Shapes, Event], Session | None]


@dataclass
class _Shape:
    """The record of one input shape.

    Attributes:
        seen: runs of it before a build began.
        other: the session for it alone; None before it is there, and where it has lost.
        won: it has been chosen.
        times: of both on runs of the caller, seconds; the first of the new one does not count.
    """

    seen: int = 0
    other: Session | None = None
    won: bool = False
    turn: int = 0
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


class SpecialisingSession(TieredSession):
    """A session on a model of symbolic sizes, with others for the shapes that it sees often.

    May be called from many threads. Shapes count from when there is no better code to come for all of them.
    """

    def __init__(self, session: Session, build: Build, better: Better | None = None) -> None:
        self._build, self._lock = build, Lock()
        self._shapes: dict[tuple[tuple[int, ...], ...], _Shape] = {}
        self._chosen, self._builder = 0, None
        super().__init__(session, better)

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `Session.run`, by the plan that is faster for the shapes of the inputs."""
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
        """The record of the inputs' shape; None where they are no arrays, or kernels are being watched."""
        if isinstance(self.engine, NativeEngine) and self.engine.observer is not None:
            return None
        try:
            key = tuple([inputs[i.name].shape for i in self._signature.inputs])
        except (KeyError, AttributeError):
            return None
        found = self._shapes.get(key)
        if found is None:
            with self._lock:
                if len(self._shapes) >= 64 * MOST:  # shapes that came once, long ago
                    self._shapes = {k: s for k, s in self._shapes.items() if s.seen >= SEEN}
                found = self._shapes.setdefault(key, _Shape())
        return found

    def _note(self, inputs: Mapping[str, Any], shape: _Shape) -> None:
        """Count a run, and have a plan built if the shape has been seen often.

        One is built at a time.
        """
        if shape.seen >= SEEN:
            return
        with self._lock:
            busy = self._builder is not None and self._builder.is_alive()
            if shape.seen + 1 == SEEN and (busy or self._stopped.is_set() or self._chosen >= MOST):
                return  # it is asked again at the next run
            shape.seen += 1
            if shape.seen == SEEN:
                self._chosen += 1
                shapes = {i.name: tuple(np.shape(inputs[i.name])) for i in self._signature.inputs}
                work = (self._build, shapes, self._stopped, shape)  # not the session, which may go away meanwhile
                self._builder = Thread(target=_build, args=work, daemon=True, name="occ-specialise")
                self._builder.start()

    def _timed(self, shape: _Shape, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """A run by one of the two, in turn, until it is clear which is faster."""
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
            except Exception:  # what is wrong with the inputs, the session for all shapes says
                shape.other = None
        return super().run(inputs, outputs)


def _build(build: Build, shapes: Shapes, stopped: Event, shape: _Shape) -> None:
    try:
        shape.other = build(shapes, stopped)
    except Exception:  # nobody asked for this build: it changes nothing
        shape.other = None


def in_background(model: Source, settings: Settings, soon: Soon) -> Session:
    """A session that gets better code while it runs.

    That of the target where this one is of another, and then plans for the shapes that it sees often.
    """
    session, build = soon.session, BackgroundBuild.of(model, settings, soon.session)
    better: Better | None = (lambda stopped: build({}, stopped)) if soon.missing else None
    if any(isinstance(d, str) for i in session.inputs for d in i.shape):
        return SpecialisingSession(session, build, better)
    return session if better is None else TieredSession(session, better)
