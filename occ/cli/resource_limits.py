"""Time and memory limits of a build.

Both end with a message and leave nothing behind.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from occ.cli.console import show_error

_GRACE = 5.0  # seconds that a build has to clean up; signals do not reach native code that compiles


@contextmanager
def bounded(timeout: float | None, memory: float | None) -> Generator[None]:
    """Run a build within limits.

    Args:
        timeout: seconds of wall-clock time.
        memory: bytes of memory that this process, and each compiler that it starts, may allocate; mapped files do not
            count.

    Raises:
        CompileError: OCC0606 it takes longer; OCC0607 it needs more, or the limit is below what occ itself needs.
    """
    with ExitStack() as stack:
        if memory is not None:
            stack.enter_context(_memory_bounded(int(memory)))
        if timeout is not None:
            stack.enter_context(_time_bounded(timeout))
        yield


def _late(seconds: float) -> Exception:
    from occ.compiler.diagnostics import error

    return error("OCC0606", f"the build takes longer than {seconds:g} seconds", help="raise --timeout")


_AGAIN = 0.05  # seconds from a signal that was dropped to the next


@contextmanager
def _time_bounded(seconds: float) -> Generator[None]:
    raised: list[BaseException] = []

    def over(*_: object) -> None:
        raised.append(_late(seconds))
        raise raised[-1]

    def dropped(
        what: sys.UnraisableHookArgs,
    ) -> None:  # Python drops what is raised in a finalizer or a weakref's callback
        if what.exc_value in raised:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            shown(what)

    def end() -> None:
        show_error(str(_late(seconds)))
        _kill(_children(os.getpid()))
        sys.stderr.flush()
        os._exit(1)

    last = threading.Timer(seconds + _GRACE, end)
    last.daemon = True
    last.start()
    before, shown = signal.signal(signal.SIGALRM, over), sys.unraisablehook
    sys.unraisablehook = dropped
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = shown
        last.cancel()


def kill_tree(process: int) -> None:
    """Kill a process and its children."""
    _kill([process, *_children(process)])


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _children(process: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, thread.read_text().split())
    return [*found, *(c for f in found for c in _children(f))]


@contextmanager
def _memory_bounded(limit: int) -> Generator[None]:
    from occ.compiler.diagnostics import error

    more = "raise --memory-limit"
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if limit < _used():
        raise error("OCC0607", f"{limit} bytes are less than occ itself takes", help=more)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    except (MemoryError, OSError, ImportError) as e:  # libraries that fail to load report it as text
        resource.setrlimit(resource.RLIMIT_DATA, before)
        if isinstance(e, OSError) and e.errno != errno.ENOMEM:
            raise
        raise error("OCC0607", f"the build takes more than {limit} bytes of memory", help=more) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _used() -> int:
    """Bytes of data of the process, as the system counts them for its limit.

    0 if the system does not report it.
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmData")).split()[1]) << 10
    return 0
