"""Sessions on artifacts, which can call the compiler for deferred operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onnx import ModelProto

from occ.compiler.cache.cache import Cache
from occ.compiler.codegen_interp import TEXT
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.deferred import Compiled, DeferredCompiler, has_foreign_types
from occ.compiler.driver.plugins import extensions
from occ.compiler.driver.rank_cases import RankCases, undeclared
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.size_cases import SizeCases
from occ.compiler.driver.source import Source, is_text, parsed
from occ.compiler.frontend.signature import Overrides
from occ.compiler.frontend.torch_program import ExportedProgram
from occ.compiler.ir.module import Module
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.plan.plan import defer_text
from occ.compiler.plan.signature import signature
from occ.compiler.targets.registry import get_target
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.native.engine import RunDeferred
from occ.runtime.open import open_artifact
from occ.runtime.session import Session
from occ.runtime.threads import thread_count

_LARGEST_KEPT = 64 << 20  # maximum bytes of an in-memory model that a session keeps


def open_session(
    artifact: Artifact, threads: int | None = None, *, simulate: bool = False, options: Mapping[str, Any] | None = None,
    rules: Sequence[Any] = (),
) -> Session:  # fmt: skip
    """A session that runs an artifact of any engine.

    Args:
        artifact: the artifact.
        threads: for one run; OCC_NUM_THREADS or all processors if None.
        simulate: whether to run device parts on the simulator instead of a device.
        options: of a device session, such as `device_id` and `npu_mem_limit`.
        rules: of the compilation, for user operators compiled or interpreted during a run.

    Raises:
        RunError: the artifact cannot be used.
    """
    registry = extensions(rules).registry
    if simulate and artifact.manifest.engine == "ascend":
        from occ.compiler.ge_simulator.device import SimulatedDevice

        return open_artifact(artifact, threads, run_deferred=deferred_compiler([registry]), device=SimulatedDevice())
    if artifact.manifest.engine != "interp":
        return open_artifact(artifact, threads, run_deferred=deferred_compiler([registry]), options=options)
    m = _interpretable(artifact, registry)
    from occ.compiler.codegen_interp.engine import InterpEngine

    run_deferred = DeferredCompiler(lambda m: _interpret_deferred(m, registry), registry)
    engine = InterpEngine(m, lambda op, operands: run_deferred(*defer_text(op, operands)))
    return Session(artifact, engine, thread_count(threads))


def _interpretable(artifact: Artifact, registry: Registry) -> Module:
    """The module of an artifact of `interp`.

    Raises:
        RunError: OCC0502 it is missing, not a text, or does not match the manifest.
        CompileError: the text is not valid, or has operators that the registry lacks.
    """
    if TEXT not in artifact.files:
        raise RunError("OCC0502", f"`{TEXT}` is missing in the artifact", "build the artifact again")
    try:
        m = parsed(artifact.files[TEXT].decode(), registry, weights=artifact.weights)
    except UnicodeDecodeError as e:
        raise RunError("OCC0502", f"`{TEXT}` of the artifact is damaged: {e}", "build the artifact again") from None
    inputs, outputs, dims, _ = signature(m)
    stated = artifact.manifest
    if (inputs, outputs, dims) != (stated.inputs, stated.outputs, stated.dims):
        raise RunError("OCC0502", f"`{TEXT}` of the artifact does not fit its manifest", "build the artifact again")
    return m


def deferred_compiler(rules: Sequence[Any] = ()) -> RunDeferred:
    """The compiler of deferred ops for one session; `rules` as in `open_session`."""
    registry = extensions(rules).registry
    return DeferredCompiler(
        lambda m: _compile_deferred(m, registry), registry, lambda m: _interpret_deferred(m, registry)
    )


def _compile_deferred(m: Module, registry: Registry) -> Compiled:
    """A deferred op with known operands as native code; unsupported element types are interpreted."""
    here = {"halide.target": "host"}
    # Not cached: it may occur once and never again.
    compilation = Compilation(m, Settings("cpu-jit", options=here, rules=[registry], cache=False))
    if has_foreign_types(compilation.advance("canonical").main.body.body):
        return _interpreted(m)
    return _runnable(open_session(compilation.artifact(), 1, rules=[registry]))


def _interpret_deferred(m: Module, registry: Registry) -> Compiled:
    Compilation(m, Settings("interp", rules=[registry])).advance("inferred")
    return _interpreted(m)


def _interpreted(m: Module) -> Compiled:
    from occ.compiler.interp.graph import Interpreter

    interpreter = Interpreter(m)
    return lambda operands: interpreter.run(operands, {})


def _runnable(session: Session) -> Compiled:
    return lambda operands: list(session(*operands))


def compile_model(
    source: Source | ExportedProgram, settings: Settings, threads: int | None = None, *, simulate: bool = False
) -> Session:
    """Compile a model and open a session on the result; `simulate` as in `open_session`.

    Raises:
        CompileError: the model cannot be compiled; for an Ascend device, also if the CANN toolkit is missing or fails.
    """
    return open_compilation(Compilation(source, settings), threads, simulate=simulate)


@dataclass(frozen=True)
class Soon:
    """A session that is available quickly.

    Attributes:
        session: on the code of the target, or of one that generates code faster.
        missing: number of kernels not compiled yet; 0 if the session uses the target's code, or there can be none.
    """

    session: Session
    missing: int = 0


def compile_soon(source: Source | ExportedProgram, settings: Settings, threads: int | None = None) -> Soon:
    """Compile a model for a target, or for a faster-compiling one if kernels are missing.

    A target without a requested option or feature of the model is not used as a substitute.

    Raises:
        CompileError: the model cannot be compiled.
    """
    compilation = Compilation(source, settings)
    m, target = compilation.finished(), compilation.target
    try:
        missing = target.missing(compilation, m)
        is_there = not missing
    except CompileError:  # nothing here can compile the missing kernels
        missing, is_there = 0, False
    if not is_there and target.sooner and settings.options.keys() <= get_target(target.sooner).options.table.keys():
        with suppress(CompileError):
            quick = replace(settings, target=target.sooner)
            return Soon(compile_model(compilation.given, quick, threads), missing)
    return Soon(open_compilation(compilation, threads))


def open_compilation(compilation: Compilation, threads: int | None = None, *, simulate: bool = False) -> Session:
    """Compile a model to the end, and open a session on the result; `simulate` as in `open_session`.

    Raises:
        CompileError: as `compile_model`.
    """
    again, settings = compilation.given, compilation.settings
    artifact = compilation.artifact()
    if artifact.manifest.parts and not simulate:
        from occ.compiler.codegen_cann.output.toolkit import compile_parts

        artifact = compile_parts(artifact, Cache(enabled=settings.cache), settings.jobs, settings.progress)
    session = open_session(artifact, threads, simulate=simulate, rules=settings.rules)
    if _is_kept(again):

        def made(overrides: Overrides) -> Session:
            return compile_model(again, replace(settings, overrides=overrides, special=()), threads, simulate=simulate)

        ranks = {i.name: len(i.shape) for i in artifact.manifest.inputs}
        session.otherwise = SizeCases(compilation.broadcasts, compilation.places, ranks, settings.overrides, made)
        if names := undeclared(artifact.manifest):
            session.for_ranks = RankCases(names, settings.overrides, made)
    return session


def _is_kept(source: Source) -> bool:
    """Whether a session may keep its model for other plans: a path, or a small message."""
    if isinstance(source, (bytes, ModelProto)):
        return (len(source) if isinstance(source, bytes) else source.ByteSize()) <= _LARGEST_KEPT
    return not is_text(source)
