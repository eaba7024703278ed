"""The compiler from end to end: a model in, a module at a stage or an artifact out."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError, Diagnostic, closest, error, shorten
from occ.compiler.driver.plugins import extensions
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.size_cases import assumptions, cases, shown_at
from occ.compiler.driver.source import Source, in_onnx, is_text, load_module, name_of, recipe
from occ.compiler.frontend.signature import Overrides
from occ.compiler.frontend.torch_program import ExportedProgram, is_program_file
from occ.compiler.ir.dim import evaluate, symbols
from occ.compiler.ir.func import Broadcast
from occ.compiler.ir.module import Module, nodes_of
from occ.compiler.ir.op import Op
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.stages import ORDER, STAGES
from occ.compiler.ir.types import TensorType
from occ.compiler.native_entry.read_routines import Unsuitable, routines
from occ.compiler.objects.archive import NativeCode
from occ.compiler.objects.processors import arch_of
from occ.compiler.passes.base import Context
from occ.compiler.passes.fuse.use_kernels import libraries
from occ.compiler.passes.manager import Manager, Stopped, write_reproducer
from occ.compiler.passes.pipeline import pipeline_for, size_stable
from occ.compiler.plan.undefined_sizes import undefined_sizes
from occ.compiler.targets.registry import all_targets, target_for
from occ.compiler.targets.target import Generated, missing_library
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.manifest import Manifest
from occ.runtime.mapped_arrays import mapped_files
from occ.runtime.native.call import ENTRY

_NO_ENTRY = "a package links what `occ.plugin.entry_object` returns with its kernels; docs/guide-target.md says how"


def _known(t: TensorType, dims: Mapping[str, int]) -> bool:
    return symbols(*t.dims).keys() <= dims.keys()


class Compilation:
    """One model on its way through the stages.

    Attributes:
        module: the model at the stage that it has reached.
        source: how messages name the model.
        cache: the build cache, or a temporary one for the lifetime of this object.
        native: object files, once native code has been generated.
        took: seconds for each kernel that was compiled, by name; others came from the cache.
        seconds: wall time of each phase.
        places: the input and axis that shows each symbol, by label.
    """

    def __init__(self, source: Source | ExportedProgram, settings: Settings) -> None:
        self.settings, self.given = settings, in_onnx(source)
        self.target, self.options = target_for(settings.target, settings.options)
        if settings.special and not self.target.special:
            message = f"target `{settings.target}` has one plan for all shapes"
            raise error("OCC0603", message, help="set one --shape for each input, or build for `cpu` or `cpu-jit`")
        self.cache = Cache(enabled=settings.cache)
        self.texts: dict[str, bytes] = {}
        self._special_libraries: dict[str, bytes] = {}
        self.seconds: dict[str, float] = {}
        self.native: NativeCode | None = None
        self.took: Mapping[str, float] | None = None
        self.extensions = extensions(settings.rules)
        self.pipeline = pipeline_for(self.target, self.options, self.extensions.passes)
        self.manager = Manager(
            settings.verify,
            [*settings.listeners],
            settings.limit,
            settings.stop_after,
            self._again,
            self.extensions.files,
        )
        start = time.perf_counter()
        settings.progress("reading the model")
        self.module = load_module(self.given, settings.overrides, self.extensions.registry)
        self.module.registry = self.extensions.registry
        if is_program_file(source):
            self.module.files = (Path(cast(str, source)),)
        self._source = recipe(self.given)
        self.places = shown_at(self.module)
        self._files = mapped_files(w.data for w in self.module.weights.values())
        self.seconds["import"] = time.perf_counter() - start
        self.source = name_of(cast(Source, source) if is_program_file(source) else self.given, self.module)
        self.context = Context(
            self.target, self.options.machine, source=self.source, options=self.options,
            rules=tuple(self.extensions.rules), schedule_rules=tuple(self.extensions.schedule_rules),
            tune=settings.tune, why=settings.why,
        )  # fmt: skip
        self._save_text()

    def _again(self, number: int) -> Module:
        """The module after a number of passes, recreated from the source."""
        made = self.again(self._source(), limit=number, verify=False, listeners=(), stop_after="", tune=None, why=None)
        return made.advance(made.last_stage)

    def again(self, given: Source | None = None, **changes: Any) -> Compilation:
        """Another compilation of the model, or of what is given in its place, which saves no stages.

        Args:
            given: None for the same model.
            changes: settings that differ; without `special` there are no plans for certain shapes.

        Raises:
            CompileError: the model cannot be read with these settings.
        """
        changes = {"special": (), "save_stages": False, **changes}
        return Compilation(self.given if given is None else given, replace(self.settings, **changes))

    @property
    def broadcasts(self) -> Mapping[str, Broadcast]:
        """Input sizes that were assumed equal to others where a node broadcasts, by label."""
        return {n: b for n, b in self.module.broadcasts.items() if n in self.places}

    @property
    def phases(self) -> dict[str, float]:
        """Wall times of everything but passes."""
        return {name: self.seconds[name] for name in ("import", "codegen") if name in self.seconds}

    @property
    def slowest(self) -> list[tuple[float, str, list[str]]]:
        """Seconds, name and ONNX nodes of the slowest kernels to compile, at most eight."""
        nodes = nodes_of(self.module)
        took = sorted((self.took or {}).items(), key=lambda item: -item[1])[:8]
        return [(seconds, name, nodes.get(name, [])) for name, seconds in took]

    @property
    def last_stage(self) -> str:
        """The stage at which compilation for the target ends."""
        return max(self.pipeline, key=lambda s: ORDER[s])

    @property
    def stages(self) -> list[str]:
        """All stages of the target, and the forms of its text."""
        known = [s.name for s in STAGES if s.name == "imported" or s.name in self.pipeline]
        return [*known, *self.target.texts]

    def advance(self, stage: str) -> Module:
        """Bring the module to a stage, or to where the settings stop.

        Raises:
            CompileError: the model cannot be compiled; or OCC0602 the stage is unknown or already passed.
        """
        if stage != self.module.stage and stage not in {"imported", *self.pipeline}:
            raise self._no_stage(stage)
        if ORDER[stage] < ORDER[self.module.stage]:
            raise error("OCC0602", f"the text is at stage `{self.module.stage}`, which comes after `{stage}`")
        for s in STAGES[ORDER[self.module.stage] + 1 : ORDER[stage] + 1]:
            self.settings.progress(f"passes to {s.name}")
            start = time.perf_counter()
            if ORDER[s.name] > ORDER["canonical"]:
                self._check_target()
            if s.name == self.last_stage:
                self._check_operators()
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

    def finished(self) -> Module:
        """The module after all passes, from which code is generated.

        Raises:
            CompileError: as `advance`; or OCC0603 the settings stop before the end.
        """
        m = self.advance(self.last_stage)
        if m.stage != self.last_stage:
            raise error(
                "OCC0603", "code is generated after all passes, but they were stopped early", help="let all of them run"
            )
        return m

    def _release(self) -> None:
        """Release the pages of weights: they are read from their files again if needed."""
        self._files |= mapped_files(w.data for w in self.module.weights.values())
        for file in self._files:
            file.madvise(mmap.MADV_DONTNEED)

    def _no_stage(self, stage: str) -> CompileError:
        """The error of a stage that the target does not have, with the targets that do."""
        others = ", ".join(
            f"`{t.name}`" for t in all_targets() if stage in {*t.texts, *pipeline_for(t, t.options.read(t.name, {}))}
        )
        notes = [f"targets that have it: {others}"] if others else []
        if self.settings.target != self.target.name:
            notes.append(f"`-O1` of target `{self.settings.target}` is code of `{self.target.name}`; `-O2` is its own")
        remedy = closest(stage, self.stages) or f"stages: {', '.join(self.stages)}"
        return error("OCC0602", f"target `{self.target.name}` has no stage `{stage}`", notes=notes, help=remedy)

    def _check_target(self) -> None:
        """A text from `fused` on was made for one target."""
        if self.module.target not in ("", self.target.name):
            raise error(
                "OCC0602",
                f"the text was made for target `{self.module.target}`, not `{self.target.name}`",
                help=f"build it with `-t {self.module.target}`",
            )
        self.module.target = self.target.name

    def _check_operators(self) -> None:
        """Reject operators of a device unless the target is one."""
        if stray := [op for op in self.module.walk() if "device" in op.spec.tags and not self.target.takes(op.name)]:
            raise CompileError(_only_on_devices(op, self.target.name, self.module.name) for op in stray)

    def _save_text(self) -> None:
        if self.settings.save_stages:
            text = module_text(self.module, "../weights.bin")
            self.texts[f"ir/{self.module.stage}.occ"] = text.encode()

    def check(self) -> list[Diagnostic]:
        """Find everything that the target does not support, without generating code.

        Returns:
            Warnings: OCC0301 for each op that an Ascend device leaves to the CPU.

        Raises:
            CompileError: the model cannot be built.
        """
        return self.target.check(self, self.advance(self.last_stage))

    def artifact(self, *, linked: bool = True) -> Artifact:
        """Compile to the end.

        Args:
            linked: whether the native code must be a library that this machine can load.

        Raises:
            CompileError: the model cannot be compiled, or the toolchain is missing or fails; or OCC0603 with `linked`,
                the options name another machine.
        """
        self.target.prepare(self.cache)
        m = self.finished()
        start = time.perf_counter()
        self.settings.progress("generating code")
        generated = self._generate(m)
        made, self.native, self.took = generated.artifact, generated.native, generated.took
        if names := undefined_sizes(made.manifest):
            raise self._undefined_sizes_error(names, m)
        self.seconds["codegen"] = time.perf_counter() - start
        if linked and self.native is not None and not made.code:
            raise unlinked(made.manifest.machine)
        if linked and made.manifest.engine == "native" and f"{ENTRY}\0".encode() not in made.code:
            raise self._no_entry_error(made.manifest)
        made.manifest = replace(made.manifest, assumed=assumptions(self.broadcasts, self.places))
        made.files = {**made.files, **libraries(m), **self._special_libraries, **self.texts}
        return made

    @property
    def jobs(self) -> int:
        """Concurrent toolchain processes."""
        return self.settings.jobs

    @property
    def progress(self) -> Callable[[str], None]:
        """Called with the current activity."""
        return self.settings.progress

    def at(self, dims: Mapping[str, int], alike: bool = False) -> Module:
        """The model at the last stage, compiled again with values for its symbols.

        Args:
            dims: the values.
            alike: symbols on which nothing may be specialised, so that the ops are the same for all values.

        Raises:
            CompileError: it does not compile; or OCC0603 it was given as a module, which cannot be read again.
        """
        self._check_readable("gears need")
        # By input rather than by name: several names of the model may have become one symbol.
        shapes = {
            arg.name: [evaluate(d, dims) for d in arg.tensor.dims]
            for arg in self.module.main.args
            if isinstance(arg.type, TensorType) and arg.type.shape is not None and _known(arg.type, dims)
        }
        given = self.settings.overrides
        overrides = replace(given, shapes={**given.shapes, **shapes})
        other = self.again(overrides=overrides)
        if alike:
            other.pipeline = size_stable(other.pipeline)
        return other.advance(other.last_stage)

    def specialised_modules(self) -> list[Module]:
        """The model specialised to each of the shapes that have a plan of their own, at the last stage.

        Raises:
            CompileError: it does not compile; or OCC0603 it was given as a module, which cannot be read again.
        """
        made: list[Module] = []
        for k, overrides in enumerate(self.settings.special, 1):
            self._check_readable("plans for several shapes need", is_text(self.given))
            self.progress(f"shapes {k} of {len(self.settings.special)}")
            made.append(self._special(overrides))
        if self.settings.cases and not is_text(self.given):
            for overrides in cases(self.broadcasts, self.settings.overrides):
                self.progress("sizes of 1 that broadcast")
                with suppress(CompileError):  # the plan for all sizes rejects what does not fit
                    made.append(self._special(overrides))
        return made

    def _special(self, overrides: Overrides) -> Module:
        other = self.again(overrides=overrides, cases=False)
        m = other.advance(other.last_stage)
        self._special_libraries |= libraries(m)
        return m

    def _check_readable(self, who: str, changed: bool | None = None) -> None:
        """Refuse to recompile a module that was modified since it was given, or anything else that is `changed`."""
        if isinstance(self.given, Module) if changed is None else changed:
            message = f"{who} the model itself, not a text of a later stage"
            raise error("OCC0603", message, help="build the .onnx file")

    def artifact_with(self, options: Mapping[str, str]) -> Artifact:
        """The artifact of the same model with some options of the target replaced.

        Raises:
            CompileError: it does not compile; or OCC0603 it was given as a module, which cannot be read again.
        """
        self._check_readable("several machines need")
        changed = {**self.settings.options, **options}
        return self.again(options=changed, special=self.settings.special, tune=None).artifact()

    def artifact_for(self, target: str, m: Module) -> Artifact:
        """The artifact of a module for another target, with that target's default options.

        Raises:
            CompileError: it does not compile.
        """
        return self.again(m, target=target, overrides=Overrides(), options={}, tune=None).artifact()

    def _no_entry_error(self, m: Manifest) -> CompileError:
        """The error for native code without a native entry: the plan is the reason, or the package that linked it."""
        try:
            routines(m)
        except Unsuitable as e:
            message = f"the code generator of `{self.target.name}` cannot run this plan: {e}"
            return error("OCC0403", message, where=self.source, help="report this with the model; `-t interp` runs it")
        return error("OCC0403", f"the code of target `{self.target.name}` has no native entry", help=_NO_ENTRY)

    def _undefined_sizes_error(self, names: Sequence[str], m: Module) -> CompileError:
        """The error for a plan with sizes that a run could not determine."""
        shown = ", ".join(f"`{shorten(m.symbols[n].label if n in m.symbols else n)}`" for n in names[:4])
        text = f"no input of a run determines the size {shown}"
        return error("OCC0310", text, where=self.source, help="set the extents of inputs with --shape or --dim")

    def _generate(self, m: Module) -> Generated:
        """Generate code; a bug in the generator leaves a reproducer."""
        try:
            return self.target.generate(self, m)
        except (CompileError, RunError, OSError, MemoryError):
            raise
        except ModuleNotFoundError as e:
            raise missing_library(self.target.name, e) from e
        except Exception as e:
            path = write_reproducer(m, ["build", "-t", self.target.name])
            notes = [f"{type(e).__name__}: {e}"[:400], f"reproducer: {path}"]
            message = f"the code generator of `{self.target.name}` failed"
            raise error("OCC0901", message, notes=notes, help="report this with the reproducer") from e


def _only_on_devices(op: Op, target: str, model: str) -> Diagnostic:
    what = f"`{shorten(str(op.attrs['type']))}` is an operator of Ascend devices, which `{target}` does not have"
    return Diagnostic(
        "OCC0301", what, f"{model}: {op.loc}", helps=("build with `-t ascend310p`, or the target of your chip",)
    )


def unlinked(machine: str) -> CompileError:
    """The error that code for another machine cannot be linked here."""
    arch = arch_of(machine)
    help_ = "`--emit object` and `--emit static` write files for that machine's linker"
    if arch is not None and arch.system == "wasi":
        message = "WebAssembly programs load no libraries, so it has no artifacts"
        return error(
            "OCC0603", message, help="`--emit shared` makes a module that runs the model (docs/webassembly.md)"
        )
    if arch is not None:
        help_ = f"`apt install g++-{arch.gnu}`, or name a C++ compiler in {arch.variable}; {help_}"
    return error("OCC0603", f"code for `{machine}` cannot be linked on this machine", help=help_)
