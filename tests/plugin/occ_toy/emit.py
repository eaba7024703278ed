"""te functions of one stage as C: a loop nest around the expression of one element."""

from math import isinf, isnan

from occ.plugin import (
    Binary,
    Bitcast,
    Call,
    Carried,
    Cast,
    Const,
    Index,
    Load,
    Reduce,
    Scatter,
    Select,
    Size,
    Sym,
    place_before,
    rebuild,
    running,
)

C_TYPES = {
    "f32": "float", "f64": "double", "bool": "bool",
    **{f"{sign}{n}": f"{'u' if sign == 'u' else ''}int{n}_t" for sign in "iu" for n in (8, 16, 32, 64)},
}  # fmt: skip

# What te states and C does not: rounding down, saturation, NaN in extremes, what happens at zero and at the ends of a type.
PRELUDE = """
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint64_t device; void *interface; void *host; } tensor;  // how halide_buffer_t begins

#define INTEGER(T, N, LOW, HIGH) \\
    static inline T div_##N(T a, T b) { return b == 0 ? 0 : b == (T)-1 && (T)-1 < 0 ? (T)(0 - a) : (T)(a / b); } \\
    static inline T rem_##N(T a, T b) { return b == 0 || (b == (T)-1 && (T)-1 < 0) ? 0 : (T)(a % b); } \\
    static inline T mod_##N(T a, T b) { T r = rem_##N(a, b); return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r; } \\
    static inline T floordiv_##N(T a, T b) { T q = div_##N(a, b), r = rem_##N(a, b); return r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q; } \\
    static inline T min_##N(T a, T b) { return a < b ? a : b; } \\
    static inline T max_##N(T a, T b) { return a < b ? b : a; } \\
    static inline T shl_##N(T a, T b) { return b < 0 || b >= 8 * sizeof(T) ? 0 : (T)(a << b); } \\
    static inline T shr_##N(T a, T b) { return b < 0 || b >= 8 * sizeof(T) ? (a < 0 ? (T)-1 : 0) : (T)(a >> b); } \\
    static inline T pow_##N(T a, T b) { if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b % 2 ? a : 1) : 0; \\
        T r = 1; for (; b > 0; b >>= 1, a *= a) if (b & 1) r *= a; return r; } \\
    static inline T sign_##N(T a) { return (a > 0) - (a < 0); } \\
    static inline T to_##N(double x) { return isnan(x) ? 0 : x <= (double)LOW ? LOW : x >= (double)HIGH ? HIGH : (T)x; }

#define FLOAT(T, N, F) \\
    static inline T rem_##N(T a, T b) { return fmod##F(a, b); } \\
    static inline T mod_##N(T a, T b) { T r = fmod##F(a, b); r = r != 0 && (r < 0) != (b < 0) ? r + b : r; return r == 0 ? copysign##F(r, b) : r; } \\
    static inline T floordiv_##N(T a, T b) { return floor##F(a / b); } \\
    static inline T min_##N(T a, T b) { return a != a ? a : b != b ? b : a < b ? a : b; } \\
    static inline T max_##N(T a, T b) { return a != a ? a : b != b ? b : a < b ? b : a; } \\
    static inline T sign_##N(T a) { return a > 0 ? 1 : a < 0 ? -1 : a; }

INTEGER(int8_t, i8, INT8_MIN, INT8_MAX) INTEGER(int16_t, i16, INT16_MIN, INT16_MAX)
INTEGER(int32_t, i32, INT32_MIN, INT32_MAX) INTEGER(int64_t, i64, INT64_MIN, INT64_MAX)
INTEGER(uint8_t, u8, 0, UINT8_MAX) INTEGER(uint16_t, u16, 0, UINT16_MAX)
INTEGER(uint32_t, u32, 0, UINT32_MAX) INTEGER(uint64_t, u64, 0, UINT64_MAX)
FLOAT(float, f32, f) FLOAT(double, f64, )
"""
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "and": "&",
    "or": "|",
    "xor": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
}
_START = {"sum": "0", "prod": "1", "any": "false", "all": "true"}
_LIBM = {
    "sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "floor", "ceil", "trunc", "pow", "atan2",
}  # fmt: skip


def source(functions):
    """The C file of some te functions."""
    return PRELUDE + "\n".join(map(function, functions))


def function(f):
    """A te function: `int NAME(void **args)`, which takes tensors that it reads, sizes, and tensors that it writes."""
    (stage,), (result,) = f.stages, f.results
    names = [*(p.name for p in f.params), *f.dims, result.name]
    at = {name: k for k, name in enumerate(names)}
    head = [f"\nint {f.name}(void **args) {{"]
    head += [f"    const {_type(p)} *{p.name} = ((tensor *)args[{at[p.name]}])->host;" for p in f.params]
    head += [f"    const int64_t {d} = *(int32_t *)args[{at[d]}];" for d in f.dims]
    head += [f"    {_type(result)} *{result.name} = ((tensor *)args[{at[result.name]}])->host;"]
    writer = _Writer(f)
    return "\n".join(
        [*head, *(scatter(stage, writer) if isinstance(stage, Scatter) else plain(stage, writer)), "    return 0;\n}"]
    )


def plain(s, writer):
    """The loops of a stage."""
    here = [Index(a.name) for a in s.axes]
    return loops(s.axes, f"{writer.element(s.name, here)} = {writer.text(s.expr)};")


def scatter(s, writer):
    """Two loop nests: the start, and then what is written where."""
    here = [Index(a.name) for a in s.axes]
    kind, place, value = s.init.dtype.name, writer.element(s.name, s.target), writer.text(s.value)
    combined = {"set": value, "add": f"{place} + {value}", "mul": f"{place} * {value}"}
    new = combined.get(s.combine) or f"{s.combine}_{kind}({place}, {value})"
    if how := running(s):  # with the element that was written one step before
        more = f"{writer.element(s.name, place_before(s))} {'+' if how == 'add' else '*'} {value}"
        new = f"{s.over[0].name} > 0 ? {more} : {value}"
    return [
        *loops(s.axes, f"{writer.element(s.name, here)} = {writer.text(s.init)};"),
        *loops(s.over, f"{place} = {new};"),
    ]


def loops(axes, body):
    """Nested loops, the first axis outermost."""
    heads = [f"    for (int64_t {a.name} = 0; {a.name} < {size(a.extent)}; {a.name}++)" for a in axes]
    return [*heads, f"        {body}"]


class _Size:
    """A dim under construction as C."""

    def __init__(self, text):
        self.text = text

    def __add__(self, other):
        return _Size(f"({self.text} + {_plain(other)})")

    def __mul__(self, other):
        return _Size(f"{_plain(other)} * {self.text}")

    __radd__, __rmul__ = __add__, __mul__


def _plain(value):
    return value.text if isinstance(value, _Size) else f"INT64_C({value})"


def size(d):
    """A dim as C."""
    if not isinstance(d, Sym):
        return f"INT64_C({d})"
    return rebuild(d, lambda s: _Size(s.name), lambda fn, args: _Size(f"{fn}_i64({', '.join(map(_plain, args))})")).text


def _type(p):
    return C_TYPES[p.type.dtype.name]


class _Writer:
    """Expressions of one function as C."""

    def __init__(self, f):
        self.shapes = f.shapes

    def element(self, name, index):
        """One element of a tensor, rows first."""
        at = "0"
        for i, n in zip(index, self.shapes[name], strict=True):
            at = f"({at} * {size(n)} + {self.text(i)})" if at != "0" else self.text(i)
        return f"{name}[{at}]"

    def text(self, e):
        """An expression."""
        kind = e.dtype.name
        match e:
            case Const():
                return constant(e.value, kind)
            case Index():
                return e.name
            case Size():
                return size(e.dim)
            case Load():
                return self.element(e.source, e.index)
            case Binary():
                return self._binary(e.op, self.text(e.lhs), self.text(e.rhs), e.lhs.dtype, kind)
            case Call():
                return self._call(e.fn, [self.text(a) for a in e.args], e.args[0].dtype)
            case Select():
                return f"({self.text(e.cond)} ? {self.text(e.then)} : {self.text(e.other)})"
            case Cast():
                return self._cast(self.text(e.arg), e.arg.dtype, e.dtype)
            case Bitcast():
                of, to = C_TYPES[e.arg.dtype.name], C_TYPES[kind]
                return f"({{ {of} from = {self.text(e.arg)}; {to} bits; memcpy(&bits, &from, sizeof bits); bits; }})"
            case Reduce():
                return self._reduce(e)
            case Carried():
                return "carried"

    def _binary(self, op, a, b, dtype, kind):
        if op in _SIGNS:
            made = f"({a} {_SIGNS[op]} {b})"
            return made if kind in ("bool", "f32", "f64", "i64", "u64") else f"({C_TYPES[kind]}){made}"
        if op == "div" and dtype.is_float:
            return f"({a} / {b})"
        if dtype.name == "bool":
            return f"({a} {'&' if op == 'min' else '|'} {b})"
        return f"{op}_{dtype.name}({a}, {b})"

    def _call(self, fn, args, dtype):
        (x, *_), kind = args, dtype.name
        match fn:
            case "neg":
                return f"({C_TYPES[kind]})(-{x})"
            case "not":
                return f"(!{x})" if kind == "bool" else f"({C_TYPES[kind]})(~{x})"
            case "sign":
                return f"{fn}_{kind}({x})"
            case "popcount":
                return f"({C_TYPES[kind]})__builtin_popcountll((uint{dtype.bits}_t){x})"
            case "isnan" | "isinf":
                return f"({fn}({x}) != 0)" if dtype.is_float else "false"
            case "abs" | "round_even" if dtype.is_float:
                return f"{'fabs' if fn == 'abs' else 'nearbyint'}{'f' if kind == 'f32' else ''}({x})"
            case "abs":
                return f"({{ {C_TYPES[kind]} v = {x}; ({C_TYPES[kind]})(v < 0 ? -v : v); }})"
            case "pow" if not dtype.is_float:
                return f"pow_{kind}({', '.join(args)})"
            case "floor" | "ceil" | "trunc" | "round_even" if not dtype.is_float:
                return x
            case _:
                fn = "exp" if fn == "decay" else fn  # `decay` is `exp` of what is never above 0
                assert fn in _LIBM, fn
                made = f"{fn}{'f' if kind == 'f32' else ''}({', '.join(args)})"
                return made if dtype.is_float else f"to_{kind}({made})"

    def _cast(self, x, old, new):
        if new.name == "bool":
            return f"({x} != 0)"
        if old.is_float and new.is_int:
            return f"to_{new.name}({x})"
        return f"({C_TYPES[new.name]})({x})"

    def _reduce(self, e):
        kind, inner = e.body.dtype.name, self.text(e.body)
        if e.kind in ("argmax", "argmin"):
            sign, (axis,) = ">" if e.kind == "argmax" else "<", e.axes
            better = f"at < 0 || v {sign} best || (v != v && best == best)"
            step = f"{{ {C_TYPES[kind]} v = {inner}; if ({better}) {{ best = v; at = {axis.name}; }} }}"
            return f"({{ {C_TYPES[kind]} best = 0; int64_t at = -1; {_line(loops(e.axes, step))} at < 0 ? 0 : at; }})"
        if e.kind in ("fold", "settle"):  # a fold that has settled may end, and need not
            step = f"carried = {inner};"
            return f"({{ {C_TYPES[kind]} carried = 0; {_line(loops(e.axes, step))} carried; }})"
        start = _START.get(e.kind) or constant(e.body.dtype.lowest if e.kind == "max" else e.body.dtype.highest, kind)
        op = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(e.kind, e.kind)
        step = f"acc = {self._binary(op, 'acc', inner, e.body.dtype, kind)};"
        return f"({{ {C_TYPES[kind]} acc = {start}; {_line(loops(e.axes, step))} acc; }})"


def _line(parts):
    return " ".join(p.strip() for p in parts)


def constant(value, kind):
    """A literal."""
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("f32", "f64"):
        if isnan(value) or isinf(value):
            return "NAN" if isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
        return f"({float(value).hex()}{'f' if kind == 'f32' else ''})"
    if value == -(2**63):
        return "INT64_MIN"
    return f"UINT{kind[1:]}_C({value})" if kind[0] == "u" else f"INT{kind[1:]}_C({value})"
