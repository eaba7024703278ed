"""The C++ front end of generators: te.cpp and the headers that they include."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from occ.compiler.codegen_halide.expressions import Printer
from occ.compiler.ir.dtype import F32
from occ.compiler.ir.te.approx import acos, asin, atan, cos, erf, log1p, sin, tanh
from occ.compiler.ir.te.expr import Expr, Load
from occ.compiler.ir.te.walks import children, walk

# f32 functions defined by te, because Halide's own are library calls or less accurate. The `exp` of te is not among
# them: it relies on rounding that Halide's fast arithmetic would optimise away.
_HELPERS = {
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "asin": asin,
    "acos": acos,
    "atan": atan,
}
_ROUNDED = ("sin", "cos")  # they separate integer and fractional parts, which fast arithmetic would recombine


def front_end() -> dict[str, str]:
    """The files that generators are compiled with; arithmetic.h includes the approximations that te defines."""
    native = files("occ.compiler.codegen_halide").joinpath("native")
    names = (
        "te.h",
        "wraps.h",
        "arithmetic.h",
        "border_loads.h",
        "fetch_ahead.h",
        "fetch_beyond.h",
        "byte_pairs.h",
        "dense_rows.h",
        "lane_sums.h",
        "mends.h",
        "packed_codes.h",
        "repeats.h",
        "settle.h",
        "tap_pairs.h",
        "tiles.h",
        "unroll_late.h",
        "used_lanes.h",
        "whole_loops.h",
        "whole_vectors.h",
        "large_pages.h",
        "memory.h",
        "reader.h",
        "te.cpp",
    )
    texts = {name: native.joinpath(name).read_text("utf-8") for name in names}
    functions = "\n\n".join(_helper(name) for name in _HELPERS)
    texts["arithmetic.h"] = texts["arithmetic.h"].replace("@FUNCTIONS@", functions)
    return texts


@cache
def _helper(name: str) -> str:
    """A C++ function from the te arithmetic of an approximation."""
    printer = Printer({"x": ()}, {}, {})
    printer.relaxed = name not in _ROUNDED
    made = _HELPERS[name](Load("x", (), F32))
    shared = _shared(made)
    lines = ""
    for k, n in enumerate(shared):
        lines += f"    Expr part{k} = {printer.data(n)};\n"
        printer.names[id(n)] = f"part{k}"
    body = printer.data(made)
    return (
        f"Expr te_{name}(const Expr &value) {{\n"
        f'    if (value.type() == Float(64)) return te_libm("{name}", {{value}});\n'
        f"    Expr wide = cast<float>(value);\n"
        f"    auto x = [&] {{ return wide; }};\n{lines}"
        f"    return cast(value.type(), {body});\n}}"
    )


def _shared(e: Expr) -> list[Expr]:
    """Shared subexpressions, each after its operands."""
    seen: dict[int, Expr] = {}
    several: dict[int, Expr] = {}

    def visit(n: Expr) -> None:
        if id(n) in seen:
            several[id(n)] = n
            return
        seen[id(n)] = n
        for c in children(n):
            visit(c)

    visit(e)
    return [n for n in walk(e) if id(n) in several and children(n)]
