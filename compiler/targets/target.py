"""What a target is: options, pipeline and code generator in one object.

Those of occ and those of installed packages are made and found in the same way (`registry.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import Diagnostic
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op
from occ.compiler.objects.archive import NativeCode
from occ.compiler.targets.option import Options
from occ.runtime.artifact import Artifact

# Element types that kernels compute with, as te functions write them.
KERNEL_TYPES = frozenset(["f64", "f32", "f16", "bf16", "bool", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"])


class Build(Protocol):
    """A compilation, as its target sees it.

    Attributes:
        options: of the target, those that it declares.
        source: how messages name the model.
        jobs: processes of the toolchain at once.
        cache: the build cache.
        progress: called with what is being done.
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

        `alike` for the same ops at all of them.

        Raises:
            CompileError: it does not compile so; or OCC0603 it was given as a module, which cannot be read again.
        """
        ...

    def specialised_modules(self) -> list[Module]:
        """The model at the last stage with each of the extents for which there is a plan of its own.

        Raises:
            CompileError: it does not compile so; or OCC0603 it was given as a module, which cannot be read again.
        """
        ...

    def artifact_for(self, target: str, m: Module) -> Artifact:
        """The artifact of a module for another target, with the default options of that.

        Raises:
            CompileError: it does not compile.
        """
        ...

    def artifact_with(self, options: Mapping[str, str]) -> Artifact:
        """The artifact of the same model with other options of the target instead of some of these.

        Raises:
            CompileError: it does not compile so; or OCC0603 it was given as a module, which cannot be read again.
        """
        ...


@dataclass(frozen=True)
class Generated:
    """The code that a target generates from a module.

    Attributes:
        artifact: what runs.
        native: its code before linking, for those who link it themselves.
        took: seconds for each kernel that was compiled in this build, by name; None for targets that compile none.
    """

    artifact: Artifact
    native: NativeCode | None = None
    took: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Piece:
    """A file of a dump that has one for each part of a model.

    Attributes:
        name: of the part.
        content: text, or bytes that a terminal should not see.
        beside: files that it refers to, by name.
    """

    name: str
    content: str | bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """A dump after the last stage that is the target's own.

    Attributes:
        show: from a compilation and its module at the last stage, the dump in one of the formats: a text, or a file for each part.
        formats: of `--format`.
    """

    show: Callable[[Build, Module, str], str | Sequence[Piece]]
    formats: tuple[str, ...] = ("text",)


def _finds_nothing(_c: Build, _m: Module) -> list[Diagnostic]:
    return []


def _has_nothing_to_prepare(_: Cache) -> None:
    pass


def _misses_nothing(_c: Build, _m: Module) -> int:
    return 0


@dataclass(frozen=True)
class Target:
    """A target.

    Attributes:
        name: as in `-t NAME`.
        doc: one line.
        pipeline: the passes that lead to each stage, for some options.
        generate: makes the artifact of a module at the last of these stages.
        options: `-C` options, with their defaults.
        texts: dumps after the last stage, by the name of `--stage`.
        dtypes: element types that its kernels compute with; empty for all.
        operators: those that it takes by name, so that they are not expanded, with what `occ ops` calls their kind; None for
            a target that computes all by what they mean.
        check: what of a module at the last stage the target will not run itself, as warnings; it raises CompileError where
            `generate` would.
        prepare: begins what every build needs, while the compiler works on the model.
        whole: whether it takes a composite operator that it has with the attributes and operands of an op, for some options; None for always.
        missing: how many kernels of a module at the last stage are not in the build cache; it raises CompileError where they cannot be
            compiled.
        sooner: the target that makes code of the same model sooner, to run until that of this one is there; empty for none.
        special: artifacts may have plans for certain extents in addition to the general plan, those of `Build.specialised_modules`.
    """

    name: str
    doc: str
    pipeline: Callable[[Any], Mapping[str, tuple[Any, ...]]]
    generate: Callable[[Build, Module], Generated]
    options: Options = Options()  # noqa: RUF009 - it is frozen
    texts: Mapping[str, Text] = field(default_factory=dict)
    dtypes: frozenset[str] = frozenset()
    operators: Callable[[], Mapping[str, str]] | None = None
    check: Callable[[Build, Module], list[Diagnostic]] = _finds_nothing
    prepare: Callable[[Cache], None] = _has_nothing_to_prepare
    missing: Callable[[Build, Module], int] = _misses_nothing
    sooner: str = ""
    special: bool = False
    whole: Callable[[Op, Any], bool] | None = None

    def takes(self, operator: str) -> bool:
        """Whether it takes an operator by its name."""
        return self.operators is not None and operator in self.operators()

    def takes_whole(self, op: Op, options: Options) -> bool:
        """Whether it takes a composite operator as it is, rather than what it is made of."""
        return self.takes(op.name) and (self.whole is None or self.whole(op, options))
