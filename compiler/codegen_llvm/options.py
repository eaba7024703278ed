"""The options of the target `cpu-jit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from occ.compiler.targets.machine import Machine
from occ.compiler.targets.native import NativeOptions
from occ.compiler.targets.option import option
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class LlvmOptions(NativeOptions):
    """Options of `cpu-jit`."""

    optimize: Literal["auto", "always"] = option(
        "auto",
        "`always` runs all of LLVM's optimisations on small kernels too: each takes up to four times as long to "
        "compile, and runs about half a microsecond faster",
        key="llvm.optimize",
    )

    @property
    def machine(self) -> Machine:
        """The CPU that `halide.target` names, without what this target has no code for."""
        return replace(super().machine, tiles=False)
