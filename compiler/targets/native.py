"""Options that several CPU targets share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from occ.compiler.diagnostics import error
from occ.compiler.objects.processors import PROCESSORS, default_target
from occ.compiler.targets.halide_targets import in_order
from occ.compiler.targets.machine import Machine, machine_of
from occ.compiler.targets.option import Options, option
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class _DeferredOptions(Options):
    deferred: Literal["on", "off"] = option("on", "`off` rejects nodes that would be compiled at run time")


@dataclass(frozen=True)
class InterpOptions(Options):
    """Options of `interp`."""

    qdq: Literal["integer", "float"] = option(
        "integer",
        "operators between DequantizeLinear and QuantizeLinear: on their integers, as onnxruntime does, or in f32",
    )
    resize: Literal["meant", "exact"] = option(
        "meant",
        "scales of Resize: the intended decimal number, 1.3, with PyTorch's extents, or `exact`ly the f32 "
        "number, 1.29999995, as ONNX defines it",
    )


@dataclass(frozen=True)
class JitOptions(InterpOptions, _DeferredOptions):
    """Options of targets that generate code."""

    caches: Literal["as-is", "growing"] = option(
        "as-is",
        "`growing` makes the axis along which a decoder's cache grows the first, so that a step that gets past "
        "and present in one array copies nothing",
    )
    cache: Literal["as-is", "int8"] = option(
        "as-is",
        "`int8` makes growing caches of 8-bit codes, with a scale for each head of each token: about a quarter "
        "of the memory; docs/language-models.md lists the loss of accuracy",
    )
    batch_slices: str = option(
        "auto",
        "`auto` runs the layers whose activations leave the caches on slices of a large batch, one after another; a "
        "number sets the items of a slice, for all layers that act on each item alone; `off` runs each layer on the "
        "whole batch (docs/batches.md)",
        key="batch-slices",
    )

    @property
    def slice_size(self) -> int:
        """Items of a slice of the batch; 0 if the compiler chooses."""
        return int(self.batch_slices) if re.fullmatch("[1-9][0-9]{0,8}", self.batch_slices) else 0

    def check(self) -> None:
        """Reject a size of slices that is none."""
        if self.batch_slices not in ("auto", "off") and not self.slice_size:
            text = f"option `batch-slices` cannot be `{self.batch_slices}`"
            raise error("OCC0603", text, help="`auto`, `off`, or how many items a slice has, from 1 on")


@dataclass(frozen=True)
class NativeOptions(JitOptions):
    """Options of targets that generate native code."""

    halide_target: str = option(
        "host",
        "Halide target of the machine to build for; `--target-cpu` has names for the usual ones",
        key="halide.target",
    )
    level: Literal["1", "2", "3"] = option(
        "2",
        "as `-O` of the command line: on `cpu`, `2` makes kernels for any sizes that their schedules allow, so that "
        "layers, models and builds with the same structure share them; `3` makes them for the sizes of the model; "
        "`1` is for the least time to a first result: LLVM optimises less, `cpu-jit` makes kernels for any sizes too, "
        "and compiles instead of `cpu`, "
        "if it has all options that are given and code for the machine; otherwise `1` is as `2`, without methods and "
        "schedule variants that take long to compile",
        key="optimize",
    )

    def read(self, target: str, given: Mapping[str, str]) -> Self:
        """These options with the given values; the processor is OCC_TARGET_CPU's if none is given."""
        made = super().read(target, {"halide.target": default_target(), **given})
        return replace(made, halide_target=in_order(made.halide_target))

    def check(self) -> None:
        """Reject a Halide target that is none too, such as a processor's name."""
        super().check()
        if (name := self.halide_target) in PROCESSORS:
            meant = f"`--target-cpu {name}`, which is short for `-C halide.target={PROCESSORS[name]}`"
            raise error("OCC0603", f"option `halide.target` names the processor `{name}`, no Halide target", help=meant)

    @property
    def quick(self) -> bool:
        return self.level == "1"

    @property
    def machine(self) -> Machine:
        """The CPU that `halide.target` names."""
        return machine_of(self.halide_target)
