"""What a target is: options, pipeline and code generator in one object.

Built-in ones and those of installed packages are defined and found in the same way (`registry.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError, Diagnostic, error
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.objects.archive import NativeCode
from occ.compiler.targets.option import Options
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass

# Element types that kernels compute with, as te functions write them.
KERNEL_TYPES = frozenset(["f64", "f32", "f16", "bf16", "bool", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"])


class Build(Protocol):
    """A compilation, as its target sees it.

    Attributes:
        options: the target's own options.
        source: how messages name the model.
        jobs: concurrent toolchain processes.
        cache: the build cache.
        progress: called with the current activity.
    """

    @property
    def options(self) -> Any: ...

    @property
    def source(self) -> str: ...

    @property
    def jobs(self) -> int: ...

    @property
    def cache(self) -> Cache: ...

    @property
    def progress(self) -> Callable[[str], None]: ...

    def at(self, dims: Mapping[str, int], alike: bool = False) -> Module:
        """The model at the last stage, compiled again with values for its symbols.

        `alike` keeps the ops the same for all of them.

        Raises:
            CompileError: it does not compile; or OCC0603 it was given as a module, which cannot be read again.
        """
        ...

    def specialised_modules(self) -> list[Module]:
        """The model specialised to each of the shapes that have a plan of their own, at the last stage.

        Raises:
            CompileError: it does not compile; or OCC0603 it was given as a module, which cannot be read again.
        """
        ...

    def artifact_for(self, target: str, m: Module) -> Artifact:
        """The artifact of a module for another target, with that target's default options.

        Raises:
            CompileError: it does not compile.
        """
        ...

    def artifact_with(self, options: Mapping[str, str]) -> Artifact:
        """The artifact of the same model with some options of the target replaced.

        Raises:
            CompileError: it does not compile; or OCC0603 it was given as a module, which cannot be read again.
        """
        ...


@dataclass(frozen=True)
class Generated:
    """The code that a target generates from a module.

    Attributes:
        artifact: the runnable artifact.
        native: its code before linking, for custom linking.
        took: seconds for each kernel compiled in this build, by name; None for targets without kernels.
    """

    artifact: Artifact
    native: NativeCode | None = None
    took: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Piece:
    """A file of a dump, for dumps with one file per part of a model.

    Attributes:
        name: of the part.
        content: text, or bytes that a terminal should not print.
        beside: files that it refers to, by name.
    """

    name: str
    content: str | bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """A target-specific dump after the last stage.

    Attributes:
        show: from a compilation and its module at the last stage, the dump in one of the formats: a text, or a file per
            part.
        formats: values of `--format`.
    """

    show: Callable[[Build, Module, str], str | Sequence[Piece]]
    formats: tuple[str, ...] = ("text",)


def _finds_nothing(_c: Build, _m: Module) -> list[Diagnostic]:
    return []


def _has_nothing_to_prepare(_: Cache) -> None:
    pass


def _emits_nothing(_: str) -> None:
    pass


def _misses_nothing(_c: Build, _m: Module) -> int:
    return 0


def _supports_all(_: Options) -> bool:
    return True


@dataclass(frozen=True)
class Target:
    """A code generator with its pipeline, options and supported types: what `-t NAME` selects.

    Attributes:
        name: as in `-t NAME`.
        doc: one line.
        pipeline: the passes to each stage, for given options.
        generate: makes the artifact of a module at the last stage.
        options: `-C` options, with their defaults.
        texts: dumps after the last stage, by the name of `--stage`.
        dtypes: element types that its kernels support; empty for all.
        operators: operators kept by name instead of being expanded, with their kind for `occ ops`; None for a target
            that computes all from their definitions.
        emitter: the function that emits an operator kept by name, for `occ ops --where`; None for others.
        check: what the target will not run itself, of a module at the last stage, as warnings; it raises CompileError
            where `generate` would.
        prepare: starts what every build needs, while the compiler works on the model.
        whole: whether it supports a composite operator with an op's attributes and operands, for given options; None
            for always.
        missing: how many kernels of a module at the last stage are not in the build cache; it raises CompileError if
            they cannot be compiled.
        sooner: the target that generates code for the same model faster, to run until this one's is ready, or for
            `Options.quick`; empty for none.
        supports: whether it generates code for the machine that given options name.
        special: whether artifacts may have plans for certain extents in addition to the general plan, see
            `Build.specialised_modules`.
    """

    name: str
    doc: str
    pipeline: Callable[[Any], Mapping[str, tuple[Any, ...]]]
    generate: Callable[[Build, Module], Generated]
    options: Options = Options()
    texts: Mapping[str, Text] = field(default_factory=dict)
    dtypes: frozenset[str] = frozenset()
    operators: Callable[[], Mapping[str, str]] | None = None
    emitter: Callable[[str], Callable[..., Any] | None] = _emits_nothing
    check: Callable[[Build, Module], list[Diagnostic]] = _finds_nothing
    prepare: Callable[[Cache], None] = _has_nothing_to_prepare
    missing: Callable[[Build, Module], int] = _misses_nothing
    sooner: str = ""
    supports: Callable[[Any], bool] = _supports_all
    special: bool = False
    whole: Callable[[Op, Any], bool] | None = None

    def takes(self, operator: str) -> bool:
        """Whether it supports an operator by name."""
        return self.operators is not None and operator in self.operators()

    def takes_whole(self, op: Op, options: Options) -> bool:
        """Whether it supports a composite operator directly, rather than its parts."""
        return self.takes(op.name) and (self.whole is None or self.whole(op, options))


def missing_library(target: str, e: ModuleNotFoundError) -> CompileError:
    """The error OCC0409 of a code generator that cannot import a library."""
    what = f"the code generator of `{target}` needs the library `{e.name}`, which is not installed"
    return error("OCC0409", what, help=f"`pip install {e.name}`; `-t interp` needs none")
