"""User kernels: a te function, Halide C++, or a function in a C library.

A kernel only defines how something is computed. What it computes is defined by the operator (its `body` or
`composite`), by the ops that a fusion groups, or by the kernel alone; then only targets that can use it accept the
operator.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.te.function import Builder, TeFunc, Tensor
from occ.compiler.ir.te.splice import splice
from occ.compiler.ir.types import TensorType, Type
from occ.runtime.dataclass import dataclass
from occ.runtime.native.foreign import ForeignLibrary

CODE = "OCC0615"
HINTS = "sizes are `x_size`, `x_rank`, `x_dim0` and `const int64_t *x_shape`, for an operand or result `x`"

_TYPES = {
    "float": "f32", "double": "f64", "int": "i32", "bool": "bool", "_Bool": "bool", "size_t": "u64", "_Float16": "f16",
    **{f"int{n}_t": f"i{n}" for n in (8, 16, 32, 64)}, **{f"uint{n}_t": f"u{n}" for n in (8, 16, 32, 64)},
}  # fmt: skip
_SAME_BYTES = {"f16": "u16", "bf16": "u16", "bool": "u8"}  # types for which C has no portable type of its own


@dataclass(frozen=True)
class Parameter:
    """A parameter of a C function: name, element type, whether it is a pointer.

    `void *` has the type `any`.
    """

    name: str
    type: str
    pointer: bool
    const: bool


@dataclass(frozen=True)
class CKernel:
    """A function in a C library.

    Attributes:
        library: path of the library.
        prototype: as in C.
        symbol: name of the function.
        parameters: in order.
        gives_code: whether it returns an int, 0 for success; otherwise nothing.
    """

    library: str
    prototype: str
    symbol: str
    parameters: tuple[Parameter, ...]
    gives_code: bool

    targets = ("cpu", "cpu-jit", "interp")
    kind = "C"

    def check(self, tensors: Sequence[str], results: Sequence[str], values: Sequence[str]) -> None:
        """Check the names of the parameters.

        Args:
            tensors: names of operands.
            results: names of results.
            values: names of attributes.

        Raises:
            Invalid: a parameter stands for nothing, a result is not written, or the library has no such function.
        """
        for p in self.parameters:
            tensor = p.name in tensors or (p.name in results and not p.const)
            if not (tensor if p.pointer else p.name in values) and _size_of(p, (*tensors, *results)) is None:
                known = ", ".join(f"`{n}`" for n in (*tensors, *results, *values))
                what = f"{'pointer' if p.pointer else 'value'} `{p.name}` of `{self.symbol}` has no meaning"
                raise Invalid(f"the {what}", code=CODE, note=f"there are {known}; {HINTS}")
        written = {p.name for p in self.parameters if p.pointer}
        for name in results:
            if name not in written:
                raise Invalid(f"`{self.symbol}` has no pointer for the result `{name}`", code=CODE, note=self.prototype)
        if not library_of(self.library).has(self.symbol):
            raise Invalid(
                f"the library `{self.library}` has no function `{self.symbol}`",
                code=CODE,
                help='C++ functions need `extern "C"`, and none may be `static`',
            )

    def arguments(
        self, names: Sequence[str], types: Sequence[Type | None], values: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """The arguments of the function, in the form of `occ.runtime.native.foreign`.

        Args:
            names: of operands and results.
            types: their types; None for absent operands.
            values: attribute values.

        Raises:
            Invalid: an element type differs from the parameter's, or a value is not a number.
        """
        present = [n for n, t in zip(names, types, strict=True) if t is not None]
        at = {n: present.index(n) if n in present else -1 for n in names}
        by_name = dict(zip(names, types, strict=True))
        return tuple(self._argument(p, at, by_name, values) for p in self.parameters)

    def _argument(
        self, p: Parameter, at: Mapping[str, int], types: Mapping[str, Type | None], values: Mapping[str, Any]
    ) -> str:
        if p.name in at:
            type_ = types[p.name]
            if isinstance(type_, TensorType) and p.type not in (
                "any",
                type_.dtype.name,
                _SAME_BYTES.get(type_.dtype.name),
            ):
                raise Invalid(
                    f"`{self.symbol}` takes `{p.name}` as {p.type}, and it is {type_.dtype.name}",
                    code=CODE,
                    note=self.prototype,
                    help="cast it, or add a `body` for other types to the operator",
                )
            return f"tensor {p.type} {at[p.name]}"
        found = _size_of(p, list(at))
        if found is not None:
            name, what, axis = found
            return " ".join(map(str, (what, p.type, at[name], *axis)))
        value = values.get(p.name)
        if not isinstance(value, (bool, int, float)) or (isinstance(value, float) and p.type[0] != "f"):
            raise Invalid(f"`{p.name}` is {value!r}, which is not a {p.type}", code=CODE, note=self.prototype)
        return f"value {p.type} {float(value) if p.type[0] == 'f' else int(value)}"


def _size_of(p: Parameter, names: Sequence[str]) -> tuple[str, str, tuple[int, ...]] | None:
    """The tensor that a parameter is named after, and the kind of size."""
    found = re.fullmatch(r"(\w+)_(size|rank|shape|dim(\d+))", p.name)
    if found is None or found[1] not in names:
        return None
    if found[2] == "shape":
        return (found[1], "shape", ()) if p.pointer and p.type == "i64" and p.const else None
    if p.pointer or p.type not in ("i32", "i64", "u64"):
        return None
    return (found[1], "dim", (int(found[3]),)) if found[3] else (found[1], found[2], ())


@dataclass(frozen=True)
class TeKernel:
    """A te function: defines the operator for every target."""

    function: TeFunc

    def body(self, t: Builder, *operands: Tensor | None, a: object) -> Tensor | tuple[Tensor, ...]:
        """The body of an operator that computes the function.

        Raises:
            Invalid: the operands do not have the types of its parameters.
        """
        given = [x for x in operands if x is not None]
        return splice(t, self.function, given)


@dataclass(frozen=True)
class HalideKernel:
    """A Halide generator's body in C++: operands and results are inputs and outputs by name, innermost axis first."""

    source: str

    targets = ("cpu",)
    kind = "Halide C++"


Kernel = CKernel | HalideKernel


def parse_prototype(library: str, text: str) -> CKernel:
    """A kernel from the prototype of its C function.

    Raises:
        Invalid: the prototype cannot be parsed.
    """
    found = re.fullmatch(r"\s*(?:extern\s+)?(int|void)\s+(\w+)\s*\(([^()]*)\)\s*;?\s*", text)
    if found is None:
        raise Invalid(
            f"the prototype `{text.strip()}` is not recognised",
            code=CODE,
            help="such as `int scale(const float *x, int64_t x_size, float factor, float *y)`; it returns int or void",
        )
    parameters = tuple(_parameter(p) for p in found[3].split(",")) if found[3].strip() not in ("", "void") else ()
    return CKernel(library, " ".join(text.split()), found[2], parameters, found[1] == "int")


def _parameter(text: str) -> Parameter:
    found = re.fullmatch(r"\s*(const\s+)?(\w+)\s*(const\s*)?(\*?)\s*(?:restrict\s+|__restrict\s+)?(\w+)\s*", text)
    kind = None if found is None else "any" if (found[2], found[4]) == ("void", "*") else _TYPES.get(found[2])
    if found is None or kind is None:
        known = ", ".join(t for t in _TYPES if t != "_Bool")
        raise Invalid(f"the parameter `{text.strip()}` is not recognised", code=CODE, help=f"types: {known}, `void *`")
    if kind == "f16" and not found[4]:
        raise Invalid(f"the parameter `{text.strip()}` cannot be passed by value", code=CODE)
    return Parameter(found[5], kind, bool(found[4]), bool(found[1] or found[3]))


@cache
def _loaded(path: str, _changed: int) -> tuple[ForeignLibrary, bytes]:
    data = Path(path).read_bytes()
    return ForeignLibrary(data, Path(path).name), data


def library_of(path: str) -> ForeignLibrary:
    """A user's library, loaded.

    Raises:
        Invalid: it does not exist or does not load.
    """
    return _library(path)[0]


def library_bytes(path: str) -> bytes:
    """The file of a user's library.

    Raises:
        Invalid: it does not exist or does not load.
    """
    return _library(path)[1]


def _library(path: str) -> tuple[ForeignLibrary, bytes]:
    from occ.runtime.errors import RunError

    try:
        return _loaded(path, Path(path).stat().st_mtime_ns)
    except (OSError, RunError) as e:
        raise Invalid(f"the library `{path}` cannot be used: {_why(e)}", code=CODE) from None


def _why(e: Exception) -> str:
    return e.strerror or str(e) if isinstance(e, OSError) else str(e).splitlines()[0]


def digest(data: bytes) -> str:
    """The digest of a library's contents."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
