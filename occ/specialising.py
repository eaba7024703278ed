"""Sessions that build a specialised plan in the background for shapes that they see often.

Nothing here may make a run fail or slower: a build that fails leaves things as they are, and a plan takes over only where it was
faster on runs of the caller.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import numpy as np
from onnx import ModelProto

from occ.compiler.diagnostics import error
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source, is_text
from occ.runtime.artifact import Artifact
from occ.runtime.native.engine import NativeEngine
from occ.runtime.session import Session

SEEN = 32  # runs of a shape after which a plan for it is built
MOST = 8  # shapes of a session that get one
TIMED = 5  # runs of each of two plans that decide between them, in turn, after one of the new plan that is not counted
_PRIORITY = 19  # the lowest: what `nice` adds for the process that builds

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


class SpecialisingSession(Session):
    """A session on a model of symbolic sizes, with others for the shapes that it sees often.

    May be called from many threads.
    """

    def __init__(self, session: Session, build: Build) -> None:
        super().__init__(session.artifact, session.engine, session.threads)
        self.otherwise = session.otherwise
        self._build, self._lock, self._stopped = build, Lock(), Event()
        self._shapes: dict[tuple[tuple[int, ...], ...], _Shape] = {}
        self._chosen, self._builder = 0, None
        weakref.finalize(self, self._stopped.set)

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As `Session.run`, by the plan that is faster for the shapes of the inputs."""
        shape = self._shape_of(inputs)
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

    def close(self) -> None:
        """As `Session.close`; a build that is under way ends."""
        self._stopped.set()
        super().close()


def _build(build: Build, shapes: Shapes, stopped: Event, shape: _Shape) -> None:
    try:
        shape.other = build(shapes, stopped)
    except Exception:  # nobody asked for this build: it changes nothing
        shape.other = None


def check_buildable(model: Source, settings: Settings) -> None:
    """Refuse what another process could not build.

    Raises:
        CompileError: OCC0603 the model is a text, or has rules that are no files.
    """
    if is_text(model):
        message = 'specialise="background" needs the model itself, not a text'
        raise error("OCC0603", message, help="compile the .onnx file")
    if any(not isinstance(r, (str, os.PathLike)) for r in settings.rules):
        message = 'specialise="background" takes rules as paths of rule files, which another process can load'
        raise error("OCC0603", message, help="write the rules to a file")


def specialising(model: Source, settings: Settings, session: Session) -> Session:
    """A session that gets plans for the shapes that it sees often; as it is where all sizes are constant."""
    if not any(isinstance(d, str) for i in session.inputs for d in i.shape):
        return session
    return SpecialisingSession(session, _Process.of(model, settings, session))


@dataclass(frozen=True)
class _Process:
    """Builds the model with `occ build` at the lowest priority, which keeps the artifact in the build cache.

    Attributes:
        source: bytes of the model, or its path.
        stamp: size and time of the file: another model under its name is not built.
    """

    source: bytes | Path
    stamp: tuple[int, int]
    settings: Settings
    threads: int
    symbolic: tuple[str, ...]

    @classmethod
    def of(cls, model: Source, settings: Settings, session: Session) -> _Process:
        if isinstance(model, ModelProto):
            model = model.SerializeToString()
        source = model
        if not isinstance(source, bytes):
            assert isinstance(source, (str, os.PathLike)), "texts have been refused"
            source = Path(os.fspath(source)).absolute()
        symbolic = tuple(i.name for i in session.inputs if any(isinstance(d, str) for d in i.shape))
        return cls(source, _stamp(source), settings, session.threads, symbolic)

    def __call__(self, shapes: Shapes, stopped: Event) -> Session | None:
        if _stamp(self.source) != self.stamp:
            return None
        with tempfile.TemporaryDirectory(prefix="occ-specialise-") as folder:
            path, out = self.source, Path(folder) / "made.occ"
            if isinstance(path, bytes):
                path = Path(folder) / "model.onnx"
                path.write_bytes(self.source if isinstance(self.source, bytes) else b"")
            if not _ended_well(self._command(path, out, shapes), folder, stopped) or _stamp(self.source) != self.stamp:
                return None
            return open_session(Artifact.load(out), self.threads, rules=self.settings.rules)

    def _command(self, path: Path, out: Path, shapes: Shapes) -> list[str]:
        s = self.settings
        given = [("--shape", f"{n}={','.join(map(str, shapes[n]))}") for n in self.symbolic]
        given += [("-C", f"{k}={v}") for k, v in s.options.items()]
        given += [("--rules", str(Path(r).absolute())) for r in s.rules] + [
            ("--outputs", n) for n in s.overrides.outputs
        ]
        fixed = {n: e for n, e in s.overrides.shapes.items() if n not in self.symbolic}
        given += [("--shape", f"{n}={','.join(map(str, e))}") for n, e in fixed.items()]
        begin = f"import os, sys; os.nice({_PRIORITY}); from occ.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", begin, "build", str(path), "-t", s.target, "-o", str(out), "--jobs", "1"]
        return [*command, *(part for pair in given for part in pair), *([] if s.cache else ["--no-cache"])]


def _stamp(source: bytes | Path) -> tuple[int, int]:
    if isinstance(source, bytes):
        return len(source), 0
    found = source.stat()
    return found.st_size, found.st_mtime_ns


def _ended_well(command: list[str], folder: str, stopped: Event) -> bool:
    """Whether a process did its work in a folder, where it finds no rules of a project.

    It ends when the session goes away.
    """
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        while process.poll() is None:
            if stopped.wait(0.2):
                process.kill()
    return process.returncode == 0 and not stopped.is_set()
