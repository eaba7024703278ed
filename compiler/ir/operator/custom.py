"""User-defined operators: schema, shape function and kernel in one class."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from occ.compiler.diagnostics import CompileError, Invalid, error
from occ.compiler.ir.kernel import CKernel, HalideKernel, Kernel, TeKernel, parse_prototype
from occ.compiler.ir.operator.spec import FormalSignature, Operand, OpSpec, formals, op
from occ.compiler.ir.types import TensorType


def operator(name: str) -> Callable[[type], OpSpec]:
    """Class decorator: defines an operator that ONNX does not have.

    The class has `operands`, their names in order (`"b?"` is optional, `"xs*"` repeats); `results`, likewise, `("y",)`
    by default; `attributes`, their defaults by name; and the meaning: `body(t, *operands, a)`, `composite(b, *operands,
    a)`, or a `kernel` and, unless that is a te function, `infer(*operands, a)`, which returns the types of the results.
    An operator with a meaning may have a kernel too, which is preferred on targets that can use it.

    Args:
        name: with its domain, `com.example.Scale`.

    Raises:
        ValueError: the name has no domain, or the class no meaning.
        CompileError: OCC0615 the kernel does not fit the operator.
    """

    def make(cls: type) -> OpSpec:
        if "." not in name or not name.rpartition(".")[2][:1].isupper():
            raise ValueError(f"`{name}` is not a name such as `com.example.Scale`")
        kernel: Kernel | TeKernel | None = getattr(cls, "kernel", None)
        stated = sum(hasattr(cls, kind) for kind in ("body", "composite"))
        if stated + (kernel is not None and not stated) != 1:
            raise ValueError(f"`{name}` needs a `body`, a `composite` or a `kernel`")
        operands, results = (
            formals(" ".join(getattr(cls, kind, of))) for kind, of in (("operands", ()), ("results", "y"))
        )
        attributes: Mapping[str, Any] = getattr(cls, "attributes", {})
        try:
            more = _with_kernel(cls, kernel, operands, results, attributes, alone=not stated)
        except Invalid as e:
            notes = [e.note] if e.note else []
            raise error(e.code, f"operator `{name}`: {e}", where=_origin(cls), notes=notes, help=e.help) from None
        own = {k: f for k in ("body", "composite", "infer") if (f := more.get(k, vars(cls).get(k))) is not None}
        more |= {kind: _guarded(name, cls, fn) for kind, fn in own.items()}
        return op(name, signature=FormalSignature(operands, results, attributes), **more)(cls)

    return make


def _guarded(name: str, cls: type, fn: Callable[..., Any]) -> Callable[..., Any]:
    """An operator's function, with its exceptions reported as errors of its author: OCC0616, with the line."""

    @wraps(fn)
    def made(*given: Any, **how: Any) -> Any:
        try:
            return fn(*given, **how)
        except (CompileError, Invalid):
            raise
        except Exception as e:
            file = _origin(cls)
            frames = traceback.extract_tb(e.__traceback__)
            own = [f for f in frames if f.filename == file] or frames[-1:]
            notes = [f"{type(e).__name__}: {e}"[:300], *(f"{f.filename}:{f.lineno} in {f.name}" for f in own[-1:])]
            message = f"the `{fn.__name__}` of the operator `{name}` failed"
            raise error("OCC0616", message, where=file, notes=notes) from e

    return made


def _origin(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def _with_kernel(
    cls: type, kernel: Kernel | TeKernel | None, operands: tuple[Operand, ...], results: tuple[Operand, ...],
    attributes: Mapping[str, Any], *, alone: bool,
) -> dict[str, Any]:  # fmt: skip
    """The operator's fields that a kernel provides.

    Raises:
        Invalid: it does not fit.
    """
    if kernel is None:
        return {}
    if isinstance(kernel, TeKernel):
        if not alone:
            raise Invalid(
                "a te function defines the operator completely; remove the `body` or `composite`", code="OCC0615"
            )
        return {"body": kernel.body, "kernel": None}
    if any(o.variadic for o in (*operands, *results)):
        raise Invalid(f"a {kernel.kind} kernel has a fixed number of operands and results", code="OCC0615")
    if isinstance(kernel, CKernel):
        kernel.check([o.name for o in operands], [r.name for r in results], list(attributes))
    if not alone:
        return {}
    infer: Callable[..., Any] | None = getattr(cls, "infer", None)
    if infer is None:
        message = f"a {kernel.kind} kernel does not define the types of its results"
        raise Invalid(message, code="OCC0615", help="write `def infer(x, *, a): return x.type`, or a `body`")
    return {"infer": _checked(infer, kernel, [o.name for o in (*operands, *results)], len(operands))}


def _checked(infer: Callable[..., Any], kernel: Kernel, names: list[str], count: int) -> Callable[..., Any]:
    """The shape function, which also checks the element types that the C function accepts."""

    def checked(*given: Any, a: Any) -> tuple[TensorType, ...]:
        made = infer(*given, a=a)
        types = made if isinstance(made, tuple) else (made,)
        if isinstance(kernel, CKernel):
            operands = [None if x is None else x.type for x in given]
            operands += [None] * (count - len(operands))
            kernel.arguments(names, [*operands, *types], vars(a))
        return types

    return checked


def c_kernel(library: str | os.PathLike[str], prototype: str) -> CKernel:
    """A function in a C library as the kernel of an operator or a fusion.

    Args:
        library: path of the shared library; a relative path starts at the folder of the rule file.
        prototype: as in C: `int scale(const float *x, int64_t x_size, float factor, float *y)`. Pointers are named
            after operands and results, values after attributes or sizes: `x_size`, `x_rank`, `x_dim0`,
            `const int64_t *x_shape`. A function that returns an int returns 0 for success.

    Raises:
        CompileError: OCC0615 the prototype cannot be parsed, or there is no such library.
    """
    caller: str = sys._getframe(1).f_globals.get("__file__") or ""
    path = (Path(caller).parent / library).resolve()
    try:
        if not path.is_file():
            raise Invalid(f"there is no library `{path}`", code="OCC0615", help="build it first: cc -shared -fPIC -O3")
        return parse_prototype(str(path), prototype)
    except Invalid as e:
        raise _error(e, caller) from None


def halide_kernel(source: str) -> HalideKernel:
    """The body of a Halide generator as the kernel of an operator or a fusion, for `-t cpu`.

    Args:
        source: C++: operands are inputs and results outputs of their names, whose dimensions count from the innermost
            axis. It holds algorithm and schedule.
    """
    if not isinstance(source, str):
        raise _error(Invalid(f"the source of a kernel is a text, not {type(source).__name__}", code="OCC0615"), "")
    return HalideKernel(source.strip("\n"))


def _error(e: Invalid, where: str) -> CompileError:
    return error(e.code, str(e), where=where, notes=[e.note] if e.note else [], help=e.help)
