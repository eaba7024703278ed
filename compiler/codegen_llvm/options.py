"""The options of the target `cpu-jit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from occ.compiler.targets.native import NativeOptions
from occ.compiler.targets.option import option


@dataclass(frozen=True)
class LlvmOptions(NativeOptions):
    """Options of `cpu-jit`."""

    optimize: Literal["auto", "always"] = option(
        "auto",
        "`always` puts small kernels through all of LLVM's optimisations too: such a kernel takes up to four times "
        "as long to compile, and about half a microsecond less to run",
        key="llvm.optimize",
    )
