"""Decorators that declare rules: @fusion and @rewrite, with the pattern traced from a function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from occ.compiler.diagnostics import CompileError, Invalid, error
from occ.compiler.ir.kernel import CODE, CKernel, HalideKernel
from occ.compiler.ir.te.schedule import Hint
from occ.compiler.passes.rules.pattern import (
    Constant,
    Many,
    Named,
    OpPattern,
    Pattern,
    Patterns,
    Result,
    Variable,
    as_pattern,
)
from occ.compiler.passes.rules.rule import STAGES, Fusion, Rewrite, root_operators


def fusion(
    fn: Callable[..., Any] | None = None,
    *,
    targets: str = "*",
    benefit: int = 0,
    name: str = "",
    schedule: str = "",
    kernel: Any = None,
) -> Any:
    """Decorator: a rule that fuses the ops matched by the pattern into one kernel.

    Args:
        fn: `fn(p, x, ...)` returns the pattern; `p` makes patterns, the other parameters are values.
        targets: pattern of target names.
        benefit: rules of greater benefit come first.
        name: of the regions; that of the function by default.
        schedule: hints for the kernel's schedule: `vectorize=8, tile=4, parallel=off, compute_root`.
        kernel: of `c_kernel` or `halide_kernel`, whose operands are the parameters and whose result is `y` (`y0`,
            `y1`...).

    Raises:
        CompileError: OCC0610 the rule is not well formed; OCC0615 the kernel does not fit.
    """

    def make(fn: Callable[..., Any]) -> Fusion:
        rule = Fusion(**traced(fn, name), targets=targets, benefit=benefit, schedule=schedule, kernel=kernel)
        try:
            Hint.parse(schedule)
            if isinstance(kernel, CKernel):
                kernel.check(rule.params, rule.results, rule.bound)
            elif kernel is not None and not isinstance(kernel, HalideKernel):
                raise Invalid(
                    "the kernel of a fusion is C or Halide C++", code=CODE, help="write a rewrite to an operator"
                )
        except Invalid as e:
            notes = [e.note] if e.note else []
            raise error(e.code, f"rule `{rule.name}`: {e}", where=rule.origin, notes=notes, help=e.help) from None
        return rule

    return make if fn is None else make(fn)


def rewrite(
    fn: Callable[..., Any] | None = None,
    *,
    targets: str = "*",
    stage: str = "canonical",
    benefit: int = 0,
    name: str = "",
    finite: bool = False,
) -> Any:
    """Decorator: a rule that replaces the matched ops by what its `into` function builds.

    Args:
        fn: as for `fusion`.
        targets: pattern of target names.
        stage: the stage in which it is applied: `inferred`, `canonical` or `fused`.
        benefit: rules of greater benefit come first.
        name: that of the function by default.
        finite: the rule is valid for finite numbers only; `occ check-rules` leaves infinities and NaN out.

    Raises:
        CompileError: OCC0610 the rule is not well formed.
    """
    if stage not in STAGES:
        raise error("OCC0610", f"rewrites cannot be at stage `{stage}`", help=f"stages: {', '.join(STAGES)}")

    def make(fn: Callable[..., Any]) -> Rewrite:
        return Rewrite(**traced(fn, name), targets=targets, stage=stage, benefit=benefit, finite=finite)

    return make if fn is None else make(fn)


def traced(fn: Callable[..., Any], name: str = "") -> dict[str, Any]:
    """The fields of a rule that its function describes.

    Raises:
        CompileError: OCC0610 the rule is not well formed.
    """
    if not callable(fn):
        raise error(
            "OCC0610", f"a rule is made of a function, not of {type(fn).__name__}", help="set its name with `name=`"
        )
    origin, name = inspect.getsourcefile(fn) or "", name or getattr(fn, "__name__", "rule")
    params = list(inspect.signature(fn).parameters.values())[1:]
    variables = [Variable(p.name, optional=p.default is None) for p in params]
    try:
        if not re.fullmatch(r"[A-Za-z_]\w{0,79}", name):
            raise Invalid("a name is a word of letters, digits and `_`")
        made = fn(Patterns(), *variables)
        patterns = tuple(map(as_pattern, made if isinstance(made, tuple) else (made,)))
        if not patterns or not list(root_operators(patterns[0])):
            raise Invalid("the function returns no pattern")
        _check_bound(patterns, [v.name for v in variables])
    except Invalid as e:
        raise error("OCC0610", f"rule `{name}`: {e}", where=origin, help=e.help) from None
    except CompileError:  # a timeout of the build, which ends here
        raise
    except Exception as e:
        notes = [f"{type(e).__name__}: {e}"[:300]]
        raise error("OCC0610", f"the pattern of rule `{name}` cannot be made", where=origin, notes=notes) from e
    doc = (inspect.getdoc(fn) or "").partition("\n")[0]
    return {
        "name": name,
        "patterns": patterns,
        "params": tuple(v.name for v in variables),
        "doc": doc,
        "origin": origin,
    }


def _check_bound(patterns: Sequence[Pattern], names: Sequence[str]) -> None:
    """Every parameter occurs in the pattern, and `many` occurs once among operands."""
    every = [p for pattern in patterns for p in pattern.walk()]
    found = {p.name for p in every if isinstance(p, (Variable, Constant, Named, Many))}
    for name in names:
        if name not in found:
            raise Invalid(f"the pattern does not use `{name}`", help="remove the parameter, or use it")
    ops: list[OpPattern] = [p.op for p in every if isinstance(p, Result)]
    if any(sum(isinstance(o, Many) for o in op.operands) > 1 for op in ops):
        raise Invalid("an op can have one `p.many` only")
