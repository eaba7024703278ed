"""Runs with a time limit, in a child process, since native code cannot be interrupted.

Kernels and loops in native code cannot be stopped, so the work is done in a child process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from occ.cli.console import guarded
from occ.cli.resource_limits import kill_tree

if TYPE_CHECKING:
    from occ.runtime.session import Session

Note = Callable[[str], None]

_ROOM = 1024  # bytes of a note
_SHOWN = 3  # names in it
_GRACE = 1.0  # seconds that a child has to report that it was interrupted
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_within(seconds: float | None, work: Callable[[Note], None]) -> int:
    """Do work, in a child process if its time is limited; returns the exit code of the command.

    Args:
        seconds: wall-clock time, after which the child and its children are killed; None for no limit.
        work: receives a function to set the note for the timeout error.

    Raises:
        RunError: OCC0508 the time is over.
    """
    if seconds is None:
        work(lambda _: None)
        return 0
    note = mmap.mmap(-1, _ROOM)
    _write(note, "the model was still being read or compiled")
    sys.stdout.flush()
    sys.stderr.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _child(parent, lambda text: _write(note, text), work)
    ended = _wait(child, seconds)
    if ended is None:
        raise _late(seconds, note[:].rstrip(b"\0").decode(errors="replace"))
    return ended


def loops(session: Session) -> str:
    """A note on possibly infinite loops; empty if there are none."""
    if session.artifact.manifest.engine == "interp":
        from occ.compiler.codegen_interp.engine import InterpEngine  # the compiler, which other sessions do not need

        assert isinstance(session.engine, InterpEngine)
        names = [n for op in session.engine.interpreter.m.walk() if op.name == "Loop" for n in op.loc.nodes]
    else:
        names = [n for p in session.artifact.manifest.plans for s in p.steps if s.kind == "loop" for n in s.nodes]
    found = [f"`{n}`" for n in dict.fromkeys(names)]
    shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    return f"data decide how often {shown} (Loop) {'runs' if len(found) == 1 else 'run'}" if found else ""


def _child(parent: int, note: Note, work: Callable[[Note], None]) -> None:
    """Do the work, and exit as `occ` would."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else it has ended before that
            code = guarded(lambda: work(note))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _write(note: mmap.mmap, text: str) -> None:
    note[:] = text.encode()[:_ROOM].ljust(_ROOM, b"\0")


def _wait(child: int, seconds: float) -> int | None:
    """The exit code of a child; None if it was killed after some seconds."""
    handle = os.pidfd_open(child)
    try:
        try:
            done = bool(select.select([handle], [], [], seconds)[0])
        except KeyboardInterrupt:  # which the child has received as well
            if not select.select([handle], [], [], _GRACE)[0]:
                kill_tree(child)
                os.waitpid(child, 0)
                raise
            done = True
        if not done:
            kill_tree(child)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(handle)
    if not done:
        return None
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def _late(seconds: float, note: str) -> Exception:
    from occ.runtime.errors import RunError

    text = f"the run takes longer than {seconds:g} seconds{f'; {note}' if note else ''}"
    return RunError("OCC0508", text, "raise --timeout")
