"""The options of the target `cpu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from occ.compiler.cache.installed_store import stored_targets
from occ.compiler.codegen_halide.toolchain import find_cxx
from occ.compiler.diagnostics import error
from occ.compiler.objects.processors import PROCESSORS, arch_of
from occ.compiler.targets.machine import Machine
from occ.compiler.targets.native import NativeOptions
from occ.compiler.targets.option import option
from occ.runtime.dataclass import dataclass
from occ.runtime.machine import best_of


@dataclass(frozen=True)
class CpuOptions(NativeOptions):
    """Options of `cpu`."""

    also: str = option(
        "",
        "more machines to build for: names of processors or Halide targets, separated by commas. The artifact has "
        "code for all, and each machine runs the best that it supports",
    )
    schedule: Literal["rules", "fallback"] = option(
        "rules", "`fallback` uses plain loops for all kernels: the baseline of measurements"
    )
    precision: Literal["f32", "bf16", "int8"] = option(
        "f32",
        "precision of products with constant f32 weights: `bf16` is up to twice as fast with an error of 0.2 %; "
        "`int8` is up to three times as fast with an error of 1 %",
    )
    winograd: Literal["auto", "off"] = option(
        "auto", "3x3 convolutions by Winograd's method: up to 3 times as fast, weights 4 times as large"
    )
    strassen: Literal["off", "auto", "on"] = option(
        "off",
        "products with constant matrices by Strassen's method: `auto` where it was measured to be faster (up to "
        "10 % of a whole network on Zen 5), `on` wherever it applies (96 rows and matrices of 384 x 384 or more); "
        "each kernel takes 0.3 s longer to compile",
    )
    sanitize: Literal["off", "address", "undefined", "thread"] = option(
        "off",
        "compile with a sanitizer, to find faults: kernels and the thread pool with `address` and `thread`, only "
        "the pool with `undefined`; the process that runs the artifact needs the sanitizer's library",
    )

    def read(self, target: str, given: Mapping[str, str]) -> Self:
        """These options with the given values; without a C++ compiler, defaults are those of the installed kernels."""
        made = super().read(target, given)
        if made.halide_target != "host" or "halide.target" in given or not (stored := stored_targets()):
            return made
        best = best_of(stored)
        if best < 0 or find_cxx() is not None:
            return made
        return replace(made, halide_target=stored[best])

    @property
    def machine(self) -> Machine:
        """The CPU that `halide.target` names; with vector widths and instructions that the sanitizer supports."""
        found = super().machine
        if self.sanitize != "off":
            found = replace(found, tiles=False)  # LLVM's sanitizers do not see what tiles load and store
        # LLVM's thread sanitizer ignores accesses of more than 16 bytes (getMemoryAccessFuncIndex).
        return replace(found, vector_bits=min(found.vector_bits, 128)) if self.sanitize == "thread" else found

    @property
    def others(self) -> tuple[str, ...]:
        """The Halide targets that `also` names."""
        return tuple(PROCESSORS.get(n, n) for n in map(str.strip, self.also.split(",")) if n)

    def check(self) -> None:
        """Reject unknown further machines, and a sanitizer that a machine does not have."""
        super().check()
        for name in self.others:
            if arch_of(name) is None:
                known = ", ".join(sorted(PROCESSORS))
                raise error("OCC0603", f"option `also` names `{name}`, no known machine", help=f"processors: {known}")
        for name in (self.halide_target, *self.others):
            arch = arch_of(name)
            if self.sanitize == "thread" and arch is not None and arch.bits < 64:
                what = (
                    f"option `sanitize` cannot be `thread` for `{name}`: the thread sanitizer needs addresses of "
                    "64 bits"
                )
                raise error("OCC0603", what, help="leave it out, or look for faults on another machine")
