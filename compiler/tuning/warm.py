"""Compiles the kernels of many models into the build cache at once.

Kernels of many models share processes, which load libHalide once. Lowering continues here while they run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import field
from pathlib import Path
from typing import Any

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_halide.build import link, setup_for
from occ.compiler.codegen_halide.compile_kernels import compile_batch
from occ.compiler.codegen_halide.kernels import Kernel, Setup
from occ.compiler.codegen_halide.programs import emitter, runtime_object
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import Source
from occ.compiler.ir.module import nodes_of
from occ.compiler.native_entry.build import entry_code
from occ.compiler.plan.plan import cpu_manifest
from occ.compiler.targets.registry import get_target
from occ.compiler.tuning.workers import Workers
from occ.runtime.dataclass import dataclass

_KERNELS = 64  # kernels that a process compiles: libHalide is loaded once for them


@dataclass
class Warmed:
    """The result of a batch of builds.

    Attributes:
        models: number of models that reached stage `lowered`.
        compiled, cached: distinct kernels that were compiled, and that existed already.
        refused: errors of models that cannot be compiled, by label.
        failed: errors of models with a kernel that does not compile, by label.
        lowering: seconds until the last model was lowered.
        seconds: in total.
    """

    models: int = 0
    compiled: int = 0
    cached: int = 0
    refused: dict[str, CompileError] = field(default_factory=dict)
    failed: dict[str, CompileError] = field(default_factory=dict)
    lowering: float = 0.0
    seconds: float = 0.0

    def add(self, compilation: Compilation) -> None:
        """Count a model whose kernels another target compiles at once, as at `-O1`.

        Raises:
            CompileError: it cannot be compiled.
        """
        compilation.artifact()
        compiled = len(compilation.took or ())
        self.count(compiled, len(compilation.module.te) - compiled)

    def count(self, compiled: int, cached: int) -> None:
        """Count a model, and the kernels that no model before it has."""
        self.models += 1
        self.compiled += compiled
        self.cached += cached

    def text(self) -> str:
        """One line for people."""
        return (
            f"{self.models} models in {self.seconds:.0f} s (lowering {self.lowering:.0f} s): {self.compiled} kernels "
            f"compiled, {self.cached} cached, {len(self.failed)} models failed, {len(self.refused)} refused"
        )


@dataclass(frozen=True)
class _Library:
    """The parts of one library: kernels, and the object file of the native entry."""

    kernels: Sequence[Kernel]
    entry: Path | None


class _Lanes:
    """Running processes, each with a batch of kernels, started when enough of them are waiting."""

    def __init__(self, setup: Setup, cache: Cache, size: int, workers: Workers | None, jobs: int) -> None:
        self.setup, self.cache, self.size = setup, cache, size
        self.compile = compile_batch if workers is None else workers.compile_batch
        self.lanes = jobs if workers is None else sum(w.threads for w in workers.compilers)
        self.waiting: list[Kernel] = []
        self.running: list[Future[dict[str, CompileError]]] = []
        self.pool = ThreadPoolExecutor(self.lanes, "batch")

    def add(self, kernel: Kernel) -> bool:
        """Queue a kernel for compilation; False if the cache has it."""
        if self.cache.has("kernel", kernel.key, ".o"):
            return False
        self.waiting.append(kernel)
        if len(self.waiting) >= self.size:
            self.start()
        return True

    def start(self) -> None:
        if self.waiting:
            self.running.append(self.pool.submit(self.compile, self.waiting, self.setup, self.cache))
            self.waiting = []

    def finish(self, tell: Callable[[str], None]) -> dict[str, CompileError]:
        """The errors of all kernels, by name; `tell` receives the number of finished batches."""
        share = -(-len(self.waiting) // self.lanes)
        rest, self.waiting = self.waiting, []
        for k in range(0, len(rest), max(share, 1)):
            self.waiting = rest[k : k + share]
            self.start()
        failed: dict[str, CompileError] = {}
        for k, batch in enumerate(as_completed(self.running), 1):
            failed |= batch.result()
            tell(f"{k} of {len(self.running)} batches of kernels compiled")
        return failed

    def link(self, libraries: Iterable[_Library]) -> None:
        """Link libraries whose kernels are all compiled."""
        runtime_object(self.setup.tools, self.cache)
        wanted = [([k.key for k in lib.kernels], lib.entry) for lib in libraries]
        for _ in self.pool.map(lambda w: link(w[0], self.setup.tools, self.cache, w[1]), wanted):
            pass

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


def warm(
    models: Iterable[tuple[str, Source | Compilation]],
    settings: Settings | None = None,
    *,
    batch: int = _KERNELS,
    workers: Workers | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Warmed:
    """Build the kernels of models for target `cpu` into the cache.

    Args:
        models: (label, model), or a compilation, which is advanced to its end; read one by one.
        settings: shared by all; target `cpu`.
        batch: maximum number of kernels compiled together.
        workers: other machines that compile; what they cannot do is compiled here.
        progress: called with the state from time to time.

    Returns:
        A summary; it lists models that cannot be compiled, which is not an error.

    Raises:
        CompileError: OCC0401 to OCC0403, the toolchain is missing or does not work at all.
    """
    settings = settings or Settings("cpu")
    start = time.perf_counter()
    cache = Cache(enabled=settings.cache)
    setup, is_here = _setup(settings, cache)
    made, users = Warmed(), dict[str, list[str]]()
    libraries: dict[tuple[Any, ...], _Library] = {}
    lanes = _Lanes(setup, cache, batch, workers, settings.jobs)
    try:
        for k, (label, source) in enumerate(models, 1):
            try:
                compilation = source if isinstance(source, Compilation) else Compilation(source, settings)
                if compilation.target is not get_target(settings.target):
                    made.add(compilation)
                    continue
                library = _library(compilation, setup, cache)
            except CompileError as e:
                made.refused[label] = e
                continue
            libraries[(*(k.name for k in library.kernels), library.entry)] = library
            new = [kernel for kernel in library.kernels if kernel.name not in users]
            made.count(compiled := sum(map(lanes.add, new)), len(new) - compiled)
            for kernel in library.kernels:
                users.setdefault(kernel.name, []).append(label)
            progress(f"{k} models lowered, {made.compiled} kernels to compile, {time.perf_counter() - start:.0f} s")
        made.lowering = time.perf_counter() - start
        for name, problem in lanes.finish(progress).items():
            made.compiled -= 1
            made.failed.update((label, problem) for label in users[name])
            libraries = {names: lib for names, lib in libraries.items() if name not in names}
        if is_here:
            lanes.link(libraries.values())
    finally:
        lanes.close()
    made.seconds = time.perf_counter() - start
    return made


def _setup(settings: Settings, cache: Cache) -> tuple[Setup, bool]:
    """What all batches share; a broken toolchain is detected early."""
    options: Any = get_target("cpu").options.read("cpu", settings.options)
    setup, is_here = setup_for(options.halide_target, cache, options.sanitize)
    emitter(setup.tools, cache)
    return setup, is_here


def _library(compilation: Compilation, setup: Setup, cache: Cache) -> _Library:
    m = compilation.advance(compilation.last_stage)
    nodes = nodes_of(m)
    kernels = [setup.kernel(f, nodes.get(f.name, ())) for f in m.te.values()]
    entry = entry_code(cpu_manifest(m, setup.target), cache)
    return _Library(kernels, None if entry is None else entry.object)
