"""Sums of products of narrow integers, several to a lane: which reductions are such, and the instructions for them."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.lane_steps import NEAR, flat_offset, lane_step
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.values import Ops, undefined
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I8, I16, I32, U8
from occ.compiler.ir.te.expr import Axis, Binary, Cast, Index, Load, Reduce
from occ.compiler.ir.te.function import product_in_pairs
from occ.compiler.ir.te.index import to_dim
from occ.compiler.native_entry.types import I32 as WORD
from occ.runtime.dataclass import dataclass

_LEAST = 4  # lanes of the narrowest vector


@dataclass(frozen=True)
class Dot:
    """A sum in i32 of products of 4 bytes, or of 2 integers of 16 bits, in each lane.

    Attributes:
        codes: adjacent integers, u8, i8 or i16.
        weights: adjacent integers, i8 or i16.
        moving: the one of both that differs between lanes; the other one is the same for all.
        axis: of the products of a lane, the last one of `moving`.
        some: its extent.
        narrow: products of bytes whose pairs sum within i16.
        width: number of lanes.
    """

    codes: Load
    weights: Load
    moving: Load
    axis: Axis
    some: int
    narrow: bool
    width: int

    @property
    def still(self) -> Load:
        """The operand that is the same for all lanes."""
        return self.codes if self.moving is self.weights else self.weights


def dot_of(
    r: Reduce, vector: str, width: int, symbols: Mapping[str, Dim], shapes: Mapping[str, tuple[Dim, ...]]
) -> Dot | None:
    """A reduction as a `Dot` with lanes along the axis `vector`, at most `width`; None if it is none."""
    pair = product_in_pairs(r)
    body = pair or r.body
    if r.kind != "sum" or r.dtype != I32 or not isinstance(body, Binary) or body.op != "mul":
        return None
    sides = [e.arg for e in (body.lhs, body.rhs) if isinstance(e, Cast) and isinstance(e.arg, Load)]
    if len(sides) != 2:
        return None
    for a in r.axes:
        for still, moving in (sides, sides[::-1]):
            x, w = _offset(still, symbols, shapes), _offset(moving, symbols, shapes)
            if x is None or w is None or not moving.index or moving.index[-1] != Index(a.name):
                continue
            if shapes[moving.source][-1] != a.extent or lane_step(x, vector, 1) != 0 or lane_step(x, a.name, 1) != 1:
                continue
            codes, weights = (still, moving) if moving.dtype == I8 else (moving, still)
            lanes = width if _is_dot(codes, weights, moving, a) else 0
            while lanes >= _LEAST:
                if lane_step(w, vector, lanes) in (a.extent, *(n * a.extent for n in range(2, NEAR + 1))):
                    return Dot(codes, weights, moving, a, int(str(a.extent)), pair is not None, lanes)
                lanes //= 2
    return None


def _is_dot(codes: Load, weights: Load, moving: Load, a: Axis) -> bool:
    if a.extent == 2:
        return codes.dtype == I16 and weights.dtype == (I8 if moving is weights else I16)
    return a.extent == 4 and codes.dtype in (U8, I8) and weights.dtype == I8


def _offset(e: Load, symbols: Mapping[str, Dim], shapes: Mapping[str, tuple[Dim, ...]]) -> Dim | None:
    index = [d for i in e.index if (d := to_dim(i, symbols)) is not None]
    return flat_offset(index, shapes[e.source]) if len(index) == len(e.index) else None


def add_dot(o: Ops, d: Dot, acc: Any, codes: Any, weights: Any, machine: CodeMachine) -> Any:
    """`acc` plus the products of a vector.

    Args:
        o: arithmetic.
        d: what is multiplied.
        acc: i32 lanes.
        codes, weights: elements, `d.some` for each lane.
        machine: whose instructions are used.
    """
    bits, has = 32 * d.width, machine.has
    words, pairs = ir.VectorType(WORD, d.width), ir.VectorType(ir.IntType(16), 2 * d.width)
    fours = (has("avx512vnni") and (bits == 512 or has("avx512vl"))) or (has("avxvnni") and bits < 512)
    if fours and d.some == 4 and d.codes.dtype == U8 and not d.narrow:
        return o.call(
            f"llvm.x86.avx512.vpdpbusd.{bits}", words, [acc, *(o.b.bitcast(v, words) for v in (codes, weights))]
        )
    if d.some == 4 and d.codes.dtype == I8 and bits == 128 and has("dotprod"):
        return o.call("llvm.aarch64.neon.sdot.v4i32.v16i8", words, [acc, codes, weights])
    if not machine.multiplies_pairs(bits):
        return _one_by_one(o, d, acc, codes, weights)
    if d.some == 2:
        return o.b.add(
            acc, o.call(_PAIRS[bits], words, [v if v.type == pairs else o.b.sext(v, pairs) for v in (codes, weights)])
        )
    if d.narrow and d.codes.dtype == U8 and (bits > 128 or has("ssse3") or has("sse4.1")):
        sums = o.call(_BYTES[bits], pairs, [codes, weights])
        return o.b.add(acc, o.call(_PAIRS[bits], words, [sums, ir.Constant(pairs, [1] * 2 * d.width)]))
    return _one_by_one(o, d, acc, codes, weights)


_PAIRS = {512: "llvm.x86.avx512.pmaddw.d.512", 256: "llvm.x86.avx2.pmadd.wd", 128: "llvm.x86.sse2.pmadd.wd"}
_BYTES = {
    512: "llvm.x86.avx512.pmaddubs.w.512",
    256: "llvm.x86.avx2.pmadd.ub.sw",
    128: "llvm.x86.ssse3.pmadd.ub.sw.128",
}


def _one_by_one(o: Ops, d: Dot, acc: Any, codes: Any, weights: Any) -> Any:
    """The products in i32, for processors without an instruction for them."""
    for q in range(d.some):
        places = ir.Constant(ir.VectorType(WORD, d.width), [WORD(q + d.some * k) for k in range(d.width)])
        x, w = (o.b.shuffle_vector(v, undefined(v.type), places) for v in (codes, weights))
        wide = [o.cast(x, d.codes.dtype, I32), o.cast(w, d.weights.dtype, I32)]
        acc = o.b.add(acc, o.b.mul(*wide))
    return acc
