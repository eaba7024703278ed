"""Sums of products of narrow integers, several to a lane: which reductions are such, and the instructions for them."""

# The arithmetic of llvmlite's builder is made by decorators that hide its parameters.
# pyright: reportCallIssue=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from occ.compiler.codegen_llvm.lane_steps import flat_offset, lane_step
from occ.compiler.codegen_llvm.machine import CodeMachine
from occ.compiler.codegen_llvm.values import Ops, undefined
from occ.compiler.ir.dim import Dim
from occ.compiler.ir.dtype import I8, I16, I32, U8
from occ.compiler.ir.te.expr import Axis, Binary, Cast, Load, Reduce
from occ.compiler.ir.te.function import product_in_pairs
from occ.compiler.ir.te.index import to_dim
from occ.compiler.native_entry.types import I32 as WORD

_LEAST = 4  # lanes of the narrowest vector


@dataclass(frozen=True)
class Dot:
    """A sum in i32 of products of 4 bytes, or of 2 integers of 16 bits, in each lane.

    Attributes:
        codes: adjacent integers, the same for all lanes.
        weights: bytes, those of a lane adjacent and lanes one after the other.
        axis: of the products of a lane.
        some: its extent.
        narrow: products of bytes whose pairs sum within i16.
        width: number of lanes.
    """

    codes: Load
    weights: Load
    axis: Axis
    some: int
    narrow: bool
    width: int


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
    flat = [_offset(s, symbols, shapes) for s in sides]
    for a in r.axes:
        for k, (codes, weights) in enumerate((sides, reversed(sides))):
            x, w = flat[k], flat[1 - k]
            if x is None or w is None or not _is_dot(codes, weights, a):
                continue
            if lane_step(x, vector, 1) != 0 or any(lane_step(d, a.name, 1) != 1 for d in (x, w)):
                continue
            lanes = width
            while lanes >= _LEAST:
                if lane_step(w, vector, lanes) == a.extent:
                    return Dot(codes, weights, a, int(str(a.extent)), pair is not None, lanes)
                lanes //= 2
    return None


def _is_dot(codes: Load, weights: Load, a: Axis) -> bool:
    kinds = (U8, I8) if a.extent == 4 else (I16,) if a.extent == 2 else ()
    return codes.dtype in kinds and weights.dtype == I8


def _offset(e: Load, symbols: Mapping[str, Dim], shapes: Mapping[str, tuple[Dim, ...]]) -> Dim | None:
    index = [d for i in e.index if (d := to_dim(i, symbols)) is not None]
    return flat_offset(index, shapes[e.source]) if len(index) == len(e.index) else None


def add_dot(o: Ops, d: Dot, acc: Any, codes: Any, weights: Any, machine: CodeMachine) -> Any:
    """`acc` plus the products of a vector.

    Args:
        o: arithmetic.
        d: what is multiplied.
        acc: i32 lanes.
        codes: the codes of a lane as an i32, for all lanes.
        weights: bytes, `d.some` for each lane.
        machine: whose instructions are used.
    """
    bits, has = 32 * d.width, machine.has
    words = ir.VectorType(WORD, d.width)
    fours = (has("avx512vnni") and (bits == 512 or has("avx512vl"))) or (has("avxvnni") and bits < 512)
    if fours and d.some == 4 and d.codes.dtype == U8 and not d.narrow:
        return o.call(f"llvm.x86.avx512.vpdpbusd.{bits}", words, [acc, codes, o.b.bitcast(weights, words)])
    if d.some == 4 and d.codes.dtype == I8 and bits == 128 and has("dotprod"):
        given = [o.b.bitcast(v, weights.type) for v in (codes, weights)]
        return o.call("llvm.aarch64.neon.sdot.v4i32.v16i8", words, [acc, *given])
    pairs = ir.VectorType(ir.IntType(16), 2 * d.width)
    if machine.multiplies_pairs(bits) and d.some == 2:
        given = [o.b.bitcast(codes, pairs), o.b.sext(weights, pairs)]
        return o.b.add(acc, o.call(_PAIRS[bits], words, given))
    if (
        machine.multiplies_pairs(bits)
        and d.narrow
        and d.codes.dtype == U8
        and (bits > 128 or has("ssse3") or has("sse4.1"))
    ):
        sums = o.call(_BYTES[bits], pairs, [o.b.bitcast(codes, weights.type), weights])
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
    kind = ir.VectorType(ir.IntType(d.codes.dtype.bits), d.some * d.width)
    codes = o.b.bitcast(codes, kind)
    for q in range(d.some):
        places = ir.Constant(ir.VectorType(WORD, d.width), [WORD(q + d.some * k) for k in range(d.width)])
        x, w = (o.b.shuffle_vector(v, undefined(v.type), places) for v in (codes, weights))
        wide = [o.cast(x, d.codes.dtype, I32), o.cast(w, I8, I32)]
        acc = o.b.add(acc, o.b.mul(*wide))
    return acc
