"""The C++ compiler and Halide: where they are, and how they are called."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Lock, Thread, current_thread, main_thread
from time import monotonic

from occ.compiler.diagnostics import CompileError, error
from occ.compiler.objects.processors import Arch, arch_of
from occ.runtime.dataclass import dataclass

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_GRACE = 2.0  # seconds that a thread has to remove its files
CANDIDATES = ("g++", "c++", "clang++")
_INSTEAD = ", or build with `-O1` or `-t cpu-jit`, which need none"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that runs it, and the first line of what `--version` prints."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class Toolchain:
    """A Halide, and a C++ compiler if there is one.

    Without a compiler, a build takes kernels from the build cache, and links them itself.

    Attributes:
        compiler: the C++ compiler, if there is one.
        halide: folder of the Halide package, with `include` and the libraries.
        halide_version: its version.
        sanitize: the sanitizer for code compiled into libraries; not part of `identity`, because tools have none.
    """

    compiler: Compiler | None
    halide: Path
    halide_version: str
    sanitize: str = "off"

    @property
    def cxx(self) -> Compiler:
        """The C++ compiler.

        Raises:
            CompileError: OCC0401 there is none.
        """
        return compiler(_INSTEAD) if self.compiler is None else self.compiler

    @property
    def sanitizer_flags(self) -> tuple[str, ...]:
        """Sanitizer flags for the C++ of a library.

        It is linked without, as usual for libraries: the process that loads it provides the sanitizer, so that without
        one loading fails instead of ending the process.
        """
        if self.sanitize == "off":
            return ()
        return (
            f"-fsanitize={self.sanitize}",
            "-fno-omit-frame-pointer",
            "-g",
            f"-DOCC_{self.sanitize.upper()}_SANITIZER",
        )

    @property
    def include(self) -> Path:
        return self.halide / "include"

    @property
    def library(self) -> Path:
        """libHalide.so."""
        return next(
            p for p in (self.halide / "lib64" / "libHalide.so", self.halide / "lib" / "libHalide.so") if p.is_file()
        )

    @property
    def identity(self) -> str:
        """The toolchain's identity, for cache keys."""
        return f"Halide {self.halide_version}, {self.library.stat().st_size} bytes"


def find_cxx() -> str | None:
    """The C++ compiler: OCC_CXX, otherwise the first of `CANDIDATES`."""
    named = os.environ.get("OCC_CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, CANDIDATES)), None)


def find_halide() -> Path | None:
    """The folder of the Halide package, without importing it."""
    spec = find_spec("halide")
    root = Path(spec.origin).parent if spec is not None and spec.origin else None
    return root if root is not None and (root / "include" / "Halide.h").is_file() else None


def compiler(instead: str = "") -> Compiler:
    """The C++ compiler of this machine.

    Args:
        instead: what to do without one, for the error message.

    Raises:
        CompileError: OCC0401 there is none.
    """
    found = find_cxx()
    if found is None:
        named = os.environ.get("OCC_CXX")
        what = f"the C++ compiler `{named}` of OCC_CXX was not found" if named else "no C++ compiler was found"
        raise error("OCC0401", what, help=f"install one (`apt install g++`), name one in OCC_CXX{instead}")
    return _described((found,))


def _described(command: tuple[str, ...]) -> Compiler:
    lines = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return Compiler(command, lines[0] if lines else "unknown")


def cross_compiler(arch: Arch) -> Compiler | None:
    """A C++ compiler for a kind of machine: this machine's, or a cross compiler.

    Cross compilers are tried in order: OCC_CXX_<ARCH>, Debian's, and the package ziglang.

    Raises:
        CompileError: OCC0401 the named one does not exist, or this machine has none.
    """
    if arch == arch_of():
        return compiler()
    if named := shlex.split(os.environ.get(arch.variable, "")):
        if shutil.which(named[0]):
            return _described(tuple(named))
        what = f"the C++ compiler `{named[0]}` of {arch.variable} was not found"
        raise error("OCC0401", what, help="name one that is there")
    if arch.system == "linux":
        found = shutil.which(f"{arch.gnu}-g++")
        if found:
            return _described((found,))
    elif (found := shutil.which("clang++")) and Path(f"/usr/include/{arch.gnu}/c++").is_dir():
        return _described((found, f"--target={arch.gnu}"))
    if find_spec("ziglang") is not None:
        return _described((sys.executable, "-m", "ziglang", "c++", "-target", arch.zig))
    return None


@cache
def toolchain() -> Toolchain:
    """The toolchain of this machine.

    Raises:
        CompileError: OCC0401 the C++ compiler in OCC_CXX does not exist; OCC0402 no Halide.
    """
    halide = find_halide()
    if halide is None:
        raise error(
            "OCC0402",
            "Halide is not installed",
            help="build with `-t cpu-jit`, the default without it, or `pip install halide` on x86-64 with Python up "
            "to 3.13",
        )
    cxx = compiler(_INSTEAD) if os.environ.get("OCC_CXX") or find_cxx() is not None else None
    try:
        found = version("halide")
    except PackageNotFoundError:
        found = "unknown"
    return Toolchain(cxx, halide, found)


_running: dict[subprocess.Popen[str], Thread] = {}  # commands, and the threads that wait for them
_ending = Event()  # the process
_starting = Lock()  # held until a command that was started is among those that run


def _started(command: Sequence[str], where: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    # In a group: a compiler has processes of its own, which would go on without it.
    with _starting:
        process = subprocess.Popen(
            command,
            cwd=where,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
        )
        _running[process] = current_thread()
    if _ending.is_set():
        _kill(process)
    return process


@contextmanager
def _interrupts_afterwards() -> Generator[None]:
    """Let signals interrupt the main thread only at the end: a command that is being started is not known yet."""
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    ours = [n for n in _INTERRUPTS if signal.getsignal(n) is not None]  # set from Python
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in dict.fromkeys(came):
        signal.raise_signal(number)


def _kill(process: subprocess.Popen[str]) -> None:
    """End a command with its children."""
    if _running.pop(process, None) is not None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@atexit.register
def _end_all() -> None:
    """End what background threads run, and let them remove their files; who interrupts once more has to wait for it."""
    _ending.set()
    if _starting.acquire(timeout=_GRACE):  # what a thread is starting is among the running ones now
        _starting.release()
    running = list(_running.items())
    if not running:
        return
    if current_thread() is main_thread():
        for number in _INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)
    for process, _ in running:
        _kill(process)
    last = monotonic() + _GRACE
    for _, thread in running:
        thread.join(max(last - monotonic(), 0))


def run_all(
    commands: Sequence[Sequence[str]], where: Path, *, lines: int = 12, env: Mapping[str, str] | None = None
) -> None:
    """Run commands in parallel and wait for all; an error includes the given number of output lines.

    `env` is what their environment has more than this process's.

    Raises:
        CompileError: OCC0403 one fails; its command line and output are in the notes.
    """
    running: list[tuple[Sequence[str], subprocess.Popen[str]]] = []
    failed: CompileError | None = None
    try:
        with _interrupts_afterwards():
            for command in commands:
                running.append((command, _started(command, where, {**os.environ, **(env or {})})))
        for command, process in running:
            output, _ = process.communicate()
            _running.pop(process, None)
            if process.returncode and failed is None:
                failed = _failure(command, process.returncode, output, lines)
    except BaseException:
        for _, process in running:
            _kill(process)
        for _, process in running:
            process.wait()
        raise
    if failed is not None:
        raise failed


def _failure(command: Sequence[str], code: int, output: str, lines: int) -> CompileError:
    shown = " ".join(command)
    notes = [f"command: {shown[:300]}", *output.strip().splitlines()[:lines]]
    return error(
        "OCC0403",
        f"`{Path(command[0]).name}` failed with exit code {code}",
        notes=notes,
        help="`occ doctor` checks the toolchain",
    )
