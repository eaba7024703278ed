"""The compiler from end to end: a model in, a module at a stage or an artifact out."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from onnx import ModelProto

from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError, Diagnostic, error
from occ.compiler.driver.plugins import extensions
from occ.compiler.frontend.onnx import import_model
from occ.compiler.frontend.signature import Overrides
from occ.compiler.ir.lowered import plan_problems
from occ.compiler.ir.module import Module
from occ.compiler.ir.ops import Registry
from occ.compiler.ir.printer import module_text, weight_offsets
from occ.compiler.ir.stages import BY_NAME, ORDER, STAGES
from occ.compiler.ir.verify import problems
from occ.compiler.objects.archive import NativeCode, header
from occ.compiler.passes.base import Context
from occ.compiler.passes.fuse.use_kernels import libraries
from occ.compiler.passes.manager import Listener, Manager, Stopped, write_reproducer
from occ.compiler.passes.pipeline import pipeline_for
from occ.compiler.plan.plan import cpu_manifest, manifest, signature, stored_weights
from occ.compiler.target.target import Target, get_target
from occ.runtime.artifact import Artifact, weight_infos
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest, Plan
from occ.runtime.mapped import mapped_files
from occ.runtime.members import LIBRARY
from occ.runtime.version import occ_version

Source = str | os.PathLike[str] | bytes | ModelProto | Module
Progress = Callable[[str], None]


@dataclass
class Settings:
    """What a build is told beside the model.

    Attributes:
        target: name of the target.
        overrides: extents fixed by the user.
        options: `-C` options as text.
        cache: use the build cache.
        jobs: processes of the toolchain at once.
        save_stages: put the text of every stage into the artifact.
        verify: check the module after each pass.
        validate: interpret the model before and after each pass, on small inputs.
        limit: passes to run; None for all.
        stop_after: name of the pass to stop after.
        listeners: told before and after each pass.
        rules: rules, passes and operators of the user: objects, modules, or paths of rule files.
        progress: told what is being done.
    """

    target: str = "cpu"
    overrides: Overrides = field(default_factory=Overrides)
    options: Mapping[str, str] = field(default_factory=dict)
    cache: bool = True
    jobs: int = 2
    save_stages: bool = False
    verify: bool = False
    validate: bool = False
    limit: int | None = None
    stop_after: str = ""
    listeners: Sequence[Listener] = ()
    rules: Sequence[Any] = ()
    progress: Progress = lambda _: None


def load_module(source: Source, overrides: Overrides | None = None, registry: Registry | None = None) -> Module:
    """The module of a model: an `.onnx` or `.occ` file, bytes or text of either, or a message.

    Args:
        source: the model; a module is returned as it is.
        overrides: extents fixed by the user.
        registry: the operators that it may use; the built-in ones if None.

    Raises:
        CompileError: it cannot be read, with every problem found.
    """
    if isinstance(source, Module):
        return source
    if isinstance(source, ModelProto):
        return import_model(source, overrides, registry)
    if isinstance(source, bytes):
        return import_model(source, overrides, registry)
    if isinstance(source, str) and (source.lstrip().startswith(("module", "#")) or "\n" in source):
        return parsed(source, registry)
    path = Path(os.fspath(source))
    if path.suffix == ".occ":
        return _read_text(path, registry)
    return import_model(path, overrides, registry)


def _read_text(path: Path, registry: Registry | None) -> Module:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise error("OCC0101", f"`{path}` cannot be read: {e.strerror}") from None
    if data[:2] == b"PK":
        raise error(
            "OCC0601", f"`{path}` is an artifact, not a model", help="`occ run` and `occ inspect` take artifacts"
        )
    try:
        return parsed(data.decode("utf-8"), registry, path=path)
    except UnicodeDecodeError:
        raise error("OCC0601", f"`{path}` is not text", help="only .onnx files and .occ texts are models") from None


def parsed(text: str, registry: Registry | None = None, **how: Any) -> Module:
    """The module of a text, as `frontend.text.parse`."""
    from occ.compiler.frontend.text import parse  # models come as ONNX: the parser is loaded where there is text

    m = parse(text, registry, **how)
    stage = BY_NAME.get(m.stage)
    if stage is None:
        raise error("OCC0602", f"`{m.stage}` is no stage", help=f"stages: {', '.join(BY_NAME)}")
    # Not all that holds at a stage: what comes out in the middle of the passes to the next one is read again as well.
    wrong = chain(problems(m, types=stage.typed), plan_problems(m) if m.stage == "lowered" else ())
    if found := list(islice(wrong, 8)):
        raise error(
            "OCC0601", f"the text is no module of stage `{m.stage}`", where=str(how.get("path") or "<text>"), notes=found,
            help="what a stage has computed follows the edit: edit an earlier stage, or mend what the notes say",
        )  # fmt: skip
    return m


class Compilation:
    """One model on its way through the stages.

    Attributes:
        module: the model at the stage it has come to.
        native: object files, once native code has been made.
        seconds: wall time of each phase.
    """

    def __init__(self, source: Source, settings: Settings) -> None:
        self.settings, self.given = settings, source
        self.target: Target = get_target(settings.target)
        self.options: Any = self.target.options.read(settings.target, settings.options)
        self.texts: dict[str, bytes] = {}
        self.seconds: dict[str, float] = {}
        self.extensions = extensions(settings.rules)
        self.pipeline = pipeline_for(self.target, self.options, self.extensions.passes)
        self.manager = Manager(settings.verify, [*settings.listeners], settings.limit, settings.stop_after)
        self.manager.restore, self.manager.files = self._again, self.extensions.files
        self.native: NativeCode | None = None
        start = time.perf_counter()
        settings.progress("reading the model")
        self.module = load_module(source, settings.overrides, self.extensions.registry)
        self.module.registry = self.extensions.registry
        self._source = _recipe(source)
        self._files = mapped_files(w.data for w in self.module.weights.values())
        self.seconds["import"] = time.perf_counter() - start
        name = source if isinstance(source, (str, os.PathLike)) and "\n" not in str(source) else self.module.name
        self.context = Context(self.target, self.options.machine, source=str(name), rules=tuple(self.extensions.rules))
        if self.target.family == "ascend":
            from occ.compiler.codegen_cann.mapping.table import takes

            self.context.takes = takes
        self._validate = None
        if settings.validate:
            from occ.compiler.tools.validate import Validate

            self._validate = Validate(settings.overrides.dims)
            self.manager.listeners.append(self._validate)
        self._save_text()

    def _again(self, number: int) -> Module:
        """The module as it was after a number of passes, made from the source again."""
        quiet = replace(self.settings, limit=number, verify=False, validate=False, listeners=(), stop_after="")
        made = Compilation(self._source(), quiet)
        return made.advance(made.last_stage)

    @property
    def validated(self) -> str | None:
        """What --validate did, for people; None without it."""
        return self._validate.summary if self._validate is not None else None

    @property
    def phases(self) -> dict[str, float]:
        """Wall times of what is not passes."""
        return {name: self.seconds[name] for name in ("import", "codegen") if name in self.seconds}

    @property
    def last_stage(self) -> str:
        """The stage at which compilation for the target ends."""
        return max(self.pipeline, key=lambda s: ORDER[s])

    def advance(self, stage: str) -> Module:
        """Bring the module to a stage, or to where the settings say to stop.

        Raises:
            CompileError: the model cannot be compiled; or OCC0602 the stage is unknown or behind the module's.
        """
        if stage not in BY_NAME:
            raise error("OCC0602", f"unknown stage `{stage}`", help=f"stages: {', '.join(s.name for s in STAGES)}")
        if ORDER[stage] < ORDER[self.module.stage]:
            raise error("OCC0602", f"the text is at stage `{self.module.stage}`, which is behind `{stage}`")
        for s in STAGES[ORDER[self.module.stage] + 1 : ORDER[stage] + 1]:
            if s.name not in self.pipeline:
                raise error(
                    "OCC0602",
                    f"target `{self.target.name}` has no stage `{s.name}`",
                    help=f"its last is `{self.last_stage}`",
                )
            self.settings.progress(f"passes to {s.name}")
            start = time.perf_counter()
            if ORDER[s.name] > ORDER["canonical"]:
                self._check_target()
            try:
                self.manager.run(self.module, self.pipeline[s.name], self.context, stage=s.name)
            except Stopped:
                return self.module
            self.module.stage = s.name
            self._release()
            self.seconds[s.name] = time.perf_counter() - start
            if self.settings.verify and (found := [p for _, p in zip(range(8), s.check(self.module), strict=False)]):
                raise error("OCC0902", f"the module is not at stage `{s.name}`", notes=found)
            self._save_text()
        return self.module

    def _release(self) -> None:
        """Give back the pages of weights: they come again from the files in which they lie if they are needed."""
        self._files |= mapped_files(w.data for w in self.module.weights.values())
        for file in self._files:
            file.madvise(mmap.MADV_DONTNEED)

    def _check_target(self) -> None:
        """A text from `fused` on was made for one target."""
        if self.module.target not in ("", self.target.name):
            raise error(
                "OCC0602",
                f"the text was made for target `{self.module.target}`, not `{self.target.name}`",
                help=f"build it with `-t {self.module.target}`",
            )
        self.module.target = self.target.name

    def _save_text(self) -> None:
        if self.settings.save_stages:
            text = module_text(self.module, "../weights.bin")
            self.texts[f"ir/{self.module.stage}.occ"] = text.encode()

    def check(self) -> list[Diagnostic]:
        """Find everything that the target cannot take, without generating code.

        Returns:
            Warnings: OCC0301 for each op that an Ascend device leaves to the CPU.

        Raises:
            CompileError: the model cannot be built.
        """
        m = self.advance(self.last_stage)
        if self.target.family != "ascend":
            return []
        from occ.compiler.driver import ascend

        return ascend.check(self, m)

    def artifact(self, *, linked: bool = True) -> Artifact:
        """Compile to the end.

        Args:
            linked: the native code must be a library that this machine can load.

        Raises:
            CompileError: the model cannot be compiled, or the toolchain is missing or fails; or OCC0603 `linked` code is
                asked for, and the options name another machine.
        """
        if self.target.name == "cpu":
            from occ.compiler.codegen_halide.programs import prepare

            prepare(self.cache)
        m = self.advance(self.last_stage)
        if m.stage != self.last_stage:
            raise error("OCC0603", "the passes were stopped before the end", help="`occ dump` and `occ opt` can stop")
        start = time.perf_counter()
        self.settings.progress("generating code")
        made = self._generate(m)
        self.seconds["codegen"] = time.perf_counter() - start
        if linked and self.native is not None and not made.code:
            raise error(
                "OCC0603",
                f"code for `{made.manifest.machine}` cannot be linked on this machine",
                help="`--emit object` and `--emit static` give what its own linker takes",
            )
        made.files = {**made.files, **libraries(m), **self.texts}
        return made

    @cached_property
    def cache(self) -> Cache:
        """The build cache, or one that goes away with this object."""
        return Cache(enabled=self.settings.cache)

    def _ascend(self, m: Module) -> Artifact:
        from occ.compiler.driver import ascend

        return ascend.build(self, m)

    def _interp(self, m: Module) -> Artifact:
        m.target = self.target.name
        names = list(weight_offsets(m))
        infos = weight_infos(names, [m.weights[n].data.nbytes for n in names])
        inputs, outputs, dims, constraints = signature(m)
        plan = Plan([], [], [], [], [])
        made = Manifest(
            m.name, "interp", f"occ {occ_version()}", dims, inputs, outputs, constraints, infos, plan, engine="interp"
        )
        text = module_text(m, "../weights.bin").encode()
        return Artifact(made, [m.weights[n].data for n in names], b"", {"ir/canonical.occ": text})

    def _generate(self, m: Module) -> Artifact:
        """Generate code; a fault of the generator leaves a reproducer."""
        try:
            own = {"interp": self._interp, "native": self._native, "ascend": self._ascend}.get(self.target.family)
            return own(m) if own is not None else self.target.generate(m, self.options)
        except (CompileError, RunError, OSError, MemoryError):
            raise
        except Exception as e:
            path = write_reproducer(m, ["build", "-t", self.target.name])
            notes = [f"{type(e).__name__}: {e}"[:400], f"reproducer: {path}"]
            message = f"the code generator of `{self.target.name}` failed"
            raise error("OCC0901", message, notes=notes, help="report this with the reproducer") from e

    def _native(self, m: Module) -> Artifact:
        weights = [w.data for w in stored_weights(m)]
        if self.target.name == "cpu-jit":
            from occ.compiler.codegen_llvm import build as llvm

            made = manifest(m, library=LIBRARY, machine=llvm.machine_name(), tasks=llvm.tasks_of)
            compiled, code = llvm.build(m.te.values(), made)
            self.native = NativeCode({"kernels.o": compiled}, header(m.te.values(), ranged=True))
            return Artifact(made, weights, code)
        from occ.compiler.codegen_halide import build as halide
        from occ.compiler.codegen_llvm.entry.build import entry_code

        cache, target = self.cache, self.options.halide_target
        made = cpu_manifest(m, halide.machine(target, cache))
        entry, functions, jobs = entry_code(made, cache), list(m.te.values()), self.settings.jobs
        built = halide.build(functions, nodes_of(m), cache, target=target, jobs=jobs, entry=entry)
        self.compiled, self.cached = built.compiled, built.cached
        objects = {n: p.read_bytes() for n, p in built.objects.items()}
        self.native = NativeCode(objects, header(m.te.values(), ranged=False))
        return Artifact(made, weights, built.code, {f"src/{n}": data for n, data in built.sources.items()})


def _recipe(source: Source) -> Callable[[], Source]:
    """Gives the source again and again, although compiling changes modules."""
    if not isinstance(source, Module):
        return lambda: source
    text, data = module_text(source), [source.weights[n].data for n in weight_offsets(source)]
    return lambda: parsed(text, source.registry, weights=data)


def nodes_of(m: Module) -> dict[str, list[str]]:
    """The ONNX nodes that each te function computes."""
    nodes: dict[str, list[str]] = {}
    for op in m.walk():
        if "te" in op.attrs:
            nodes.setdefault(op.attrs["te"], []).append(str(op.loc))
    return nodes
