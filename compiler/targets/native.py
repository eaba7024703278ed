"""The options of the targets that run on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from occ.compiler.diagnostics import error
from occ.compiler.objects.processors import PROCESSORS, arch_of, default_target
from occ.compiler.targets.machine import Machine, machine_of
from occ.compiler.targets.option import Options, option


@dataclass(frozen=True)
class _DeferredOptions(Options):
    deferred: Literal["on", "off"] = option("on", "`off` refuses nodes that would have to be compiled at run time")


@dataclass(frozen=True)
class InterpOptions(Options):
    """Options of `interp`."""

    qdq: Literal["integer", "float"] = option(
        "integer",
        "operators between DequantizeLinear and QuantizeLinear: on their integers, as onnxruntime does, or in f32",
    )
    resize: Literal["meant", "exact"] = option(
        "meant",
        "scales of Resize: the number that a file means, 1.3, with the extents of PyTorch, or `exact`ly the f32, "
        "1.29999995, as ONNX's definition has it",
    )


@dataclass(frozen=True)
class JitOptions(InterpOptions, _DeferredOptions):
    """Options of the targets that generate code."""

    caches: Literal["as-is", "growing"] = option(
        "as-is",
        "`growing` puts the axis along which the cache of a decoder grows first, so that a step that is given the room of past "
        "and present as one array copies nothing",
    )


@dataclass(frozen=True)
class _NativeOptions(JitOptions):
    halide_target: str = option(
        "host",
        "Halide target of the machine to build for; `--target-cpu` has names for the usual ones",
        key="halide.target",
    )

    def read(self, target: str, given: Mapping[str, str]) -> Self:
        """As `Options.read`; what does not name its machine is for the processor in OCC_TARGET_CPU."""
        return super().read(target, {"halide.target": default_target(), **given})

    @property
    def machine(self) -> Machine:
        """The CPU that `halide.target` names."""
        return machine_of(self.halide_target)


@dataclass(frozen=True)
class LlvmOptions(_NativeOptions):
    """Options of `cpu-jit`."""

    optimize: Literal["auto", "always"] = option(
        "auto",
        "`always` puts small kernels through all of LLVM's optimisations too: such a kernel takes up to four times as long to "
        "compile, and about half a microsecond less to run",
        key="llvm.optimize",
    )


@dataclass(frozen=True)
class CpuOptions(_NativeOptions):
    """Options of `cpu`."""

    also: str = option(
        "",
        "further machines to build for, by names of processors or Halide targets, with commas between: the artifact has code for "
        "all, and the best that a machine can run is chosen there",
    )
    schedule: Literal["rules", "fallback"] = option(
        "rules", "`fallback` gives all kernels plain loops: the baseline of measurements"
    )
    precision: Literal["f32", "bf16", "int8"] = option(
        "f32",
        "of the operands of products with constant f32 weights: `bf16` is up to twice as fast, and off by 0.2 %; `int8` is up to "
        "three times as fast, and off by 1 %",
    )
    winograd: Literal["auto", "off"] = option(
        "auto", "3x3 convolutions by Winograd's method: up to 3 times as fast, weights 4 times as large"
    )
    strassen: Literal["off", "auto", "on"] = option(
        "off",
        "products with constant matrices by Strassen's method: `auto` where it was seen to gain, up to 10 % of a whole network on "
        "Zen 5, `on` wherever it fits, with 96 rows and matrices of 384 x 384 or more; each kernel takes 0.3 s longer to compile",
    )
    sanitize: Literal["off", "address", "undefined", "thread"] = option(
        "off",
        "compile with a sanitizer, to look for faults: kernels and the thread pool with `address` and `thread`, the pool alone with "
        "`undefined`; the process that runs the artifact needs the library of the sanitizer",
    )

    @property
    def machine(self) -> Machine:
        """The CPU that `halide.target` names; with vectors that the sanitizer sees."""
        found = super().machine
        # LLVM's thread sanitizer leaves out reads and writes of more than 16 bytes (getMemoryAccessFuncIndex).
        return replace(found, vector_bits=min(found.vector_bits, 128)) if self.sanitize == "thread" else found

    @property
    def others(self) -> tuple[str, ...]:
        """The Halide targets that `also` names."""
        return tuple(PROCESSORS.get(n, n) for n in map(str.strip, self.also.split(",")) if n)

    def check(self) -> None:
        """Refuse further machines that are none, and a sanitizer that a machine has not."""
        for name in self.others:
            if arch_of(name) is None:
                known = ", ".join(sorted(PROCESSORS))
                raise error("OCC0603", f"option `also` names `{name}`, no known machine", help=f"processors: {known}")
        for name in (self.halide_target, *self.others):
            arch = arch_of(name)
            if self.sanitize == "thread" and arch is not None and arch.bits < 64:
                what = f"option `sanitize` cannot be `thread` for `{name}`: the thread sanitizer needs addresses of 64 bits"
                raise error("OCC0603", what, help="leave it out, or look for faults on another machine")
