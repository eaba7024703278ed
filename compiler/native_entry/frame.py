"""The frame of a routine: buffer descriptors and argument blocks, completed during the run.

A template holds everything known at build time, and a run copies it to its memory. The run then adds the frame's
address to internal pointers, and fills in sizes and tensor addresses, at places listed in tables.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import field

from occ.compiler.native_entry.layout import Layout
from occ.compiler.native_entry.plan import Routine
from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DimExpr
from occ.runtime.manifest import Buffer, Step
from occ.runtime.native.library import Dimension, type_of
from occ.runtime.signature import numpy_dtype

_PARTS = 64  # the arena after a frame is aligned


@dataclass
class Frame:
    """A template and the places to fill in.

    Attributes:
        template: the bytes, a multiple of 64 of them.
        inside: offsets of pointers into the frame; they hold offsets until the run adds the frame's address.
        sizes: offsets of i32 values, with their expressions.
        hosts: offsets of pointers to tensors, with their buffers.
        blocks: offset of the argument block of each kernel step.
        cuts: how many of `sizes` and `hosts` are known before each step that defines sizes, and at the end.
    """

    layout: Layout
    template: bytearray = field(default_factory=bytearray)
    inside: list[int] = field(default_factory=list)
    sizes: list[tuple[int, DimExpr]] = field(default_factory=list)
    hosts: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, int] = field(default_factory=dict)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    _buffers: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, r: Routine, layout: Layout) -> Frame:
        """The frame of a routine."""
        f = cls(layout)
        for k, step in enumerate(r.plan.steps):
            if step.kind == "kernel":
                f._kernel(k, step, r.plan.buffers)
            if step.binds:
                f.cuts.append((len(f.sizes), len(f.hosts)))
        f.cuts.append((len(f.sizes), len(f.hosts)))
        f._pad(_PARTS)
        return f

    def _kernel(self, k: int, step: Step, buffers: Sequence[Buffer]) -> None:
        listed = [self._buffer(b, buffers[b]) for b in step.reads]
        listed += [self._number(e) for e in step.dims]
        listed += [self._buffer(b, buffers[b]) for b in step.writes]
        self._pad(self.layout.pointer)
        self.blocks[k] = len(self.template)
        for target in listed:
            self._pointer(len(self.template), target)

    def _pointer(self, at: int, target: int) -> None:
        self.inside.append(at)
        size = self.layout.pointer
        self.template[at : at + size] = target.to_bytes(size, "little")

    def _number(self, e: DimExpr) -> int:
        """An i32 argument."""
        at = len(self.template)
        self.template += bytes(4)
        self._size(at, e)
        return at

    def _size(self, at: int, e: DimExpr) -> None:
        if isinstance(e, int):
            self.template[at : at + 4] = (e & 0xFFFFFFFF).to_bytes(4, "little")
        else:
            self.sizes.append((at, e))

    def _buffer(self, index: int, b: Buffer) -> int:
        """A `halide_buffer_t`, followed by its dimensions, innermost first."""
        if index in self._buffers:
            return self._buffers[index]
        self._pad(8)
        at = self._buffers[index] = len(self.template)
        field, made = self.layout.buffer, bytearray(self.layout.buffer_size)
        kind = type_of(b.dtype, numpy_dtype(b.dtype).itemsize)
        struct.pack_into("<BBHi", made, field["type_code"], *kind, 1, len(b.shape))
        self.template += made
        dims = len(self.template)
        self._pointer(at + field["dim"], dims)
        self.hosts.append((at + field["host"], index))
        self.template += bytes(ctypes.sizeof(Dimension) * len(b.shape))
        stride: DimExpr = 1
        for k, n in enumerate(reversed(b.shape)):
            row = dims + ctypes.sizeof(Dimension) * k
            self._size(row + Dimension.extent.offset, n)
            self._size(row + Dimension.stride.offset, b.strides[-1 - k] if b.strides else stride)
            stride = _times(stride, n)
        return at

    def _pad(self, to: int) -> None:
        self.template += bytes(-len(self.template) % to)


def _times(a: DimExpr, b: DimExpr) -> DimExpr:
    return a * b if isinstance(a, int) and isinstance(b, int) else ["*", a, b]
