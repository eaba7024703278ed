"""Checks rewrite rules on random operands: pattern and replacement are both interpreted, and compared.

A fusion's C function is compared with its region.
"""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from occ.compiler.compare import first_difference
from occ.compiler.debugging.rule_samples import Instance, random_operand
from occ.compiler.diagnostics import Invalid, error
from occ.compiler.interp.graph import Env, Interpreter
from occ.compiler.ir.dim import evaluate
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.kernel import CKernel, library_of
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.fuse.fuse_patterns import fit, obstacle, to_foreign
from occ.compiler.passes.rules.matcher import Matcher
from occ.compiler.passes.rules.replace import replace
from occ.compiler.passes.rules.rule import Fusion, Rewrite, Rule
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError
from occ.runtime.native.foreign import run_foreign

INSTANCES = 40  # element types on which a rule is checked
_ATTEMPTS = 25  # seeds tried for each
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 1e-1}  # relative to the largest value


@dataclass
class Difference:
    """Operands for which the two sides of a rewrite differ.

    Attributes:
        module: computes both sides, with its inputs as constants.
        text: what differs, for people.
    """

    module: Module
    text: str


@dataclass
class Report:
    """The result of checking one rule.

    Attributes:
        rule: the rule.
        instances: number of checked instances, by element type.
        difference: a counterexample, or None.
        reason: why there were no instances.
    """

    rule: Rule
    instances: Counter[str] = field(default_factory=Counter)
    difference: Difference | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.difference is None and bool(self.instances)


def check_rule(rule: Rule, instances: int = INSTANCES, seed: int = 0, registry: Registry | None = None) -> Report:
    """Check one rule on random instances of growing size.

    Args:
        rule: the rule.
        instances: their number.
        seed: of the random numbers.
        registry: the operators that it may use; the built-in ones if None.

    Raises:
        CompileError: OCC0612 the code of the rule failed.
    """
    report = Report(rule)
    base = zlib.crc32(rule.name.encode()) + seed
    for k in range(instances):
        size = 1 + min(k // 8, 4)
        made = _instance(rule, base + k, size, report, registry or Registry())
        if made is None:
            continue
        module, inputs, rng = made
        report.instances[str(inputs[0].tensor.dtype) if inputs else "constants"] += 1
        if isinstance(rule, Rewrite) or _has_function(rule):
            report.difference = _compare(rule, module, inputs, rng)
        if report.difference is not None:
            break
    return report


def _instance(
    rule: Rule, seed: int, size: int, report: Report, registry: Registry
) -> tuple[Module, list[Value], Generator] | None:
    """A module with both sides, before and after, and its inputs; None if none was found."""
    for attempt in range(_ATTEMPTS):
        rng = default_rng([seed, attempt])
        try:
            made = Instance(rule, rng, size, registry)
        except (Invalid, AssertionError, AttributeError, IndexError, ValueError, TypeError) as e:
            report.reason = report.reason or f"no operands were found: {e}"
            continue
        reason = _apply(rule, made)
        if not reason:
            return made.module, list(made.region.args), rng
        report.reason = reason
    return None


def _apply(rule: Rule, made: Instance) -> str:
    """Apply a rule to the instance, next to an unchanged copy of the ops.

    Returns why that was not possible.
    """
    region = made.region
    outputs = region.yields
    root = outputs[0].defining_op
    if root is None:
        return "the pattern has no op"
    before = _copy(region.body, outputs)
    matcher = Matcher(explain=True)
    reason = ""
    for found in rule.matches(root, matcher):
        if found.outputs != outputs:
            continue
        if not isinstance(rule, Rewrite):
            reason = obstacle(found)
            if not reason and isinstance(rule, Fusion) and isinstance(rule.kernel, CKernel):
                attrs, reason = fit(rule, rule.kernel, found)
                if attrs is not None:
                    to_foreign(rule, found, attrs, Rewriter(made.module))
                    _give_both(made, before)
            if not reason:
                return ""
            continue
        done = replace(rule, found, Rewriter(made.module))
        if isinstance(done, list):
            _give_both(made, before)
            return ""
        reason = done
    return reason or matcher.reason or "it does not match its own pattern"


def _has_function(rule: Rule) -> bool:
    """Whether a fusion has a C function, which is then compared with the region."""
    return isinstance(rule, Fusion) and isinstance(rule.kernel, CKernel)


def _give_both(made: Instance, before: Sequence[Value]) -> None:
    """Make the instance return its copy's results, followed by its own."""
    after = made.region.yields
    Rewriter(made.module).replace_operands(made.region.terminator, [*before, *after])
    numbered = [f"{w}_{k}" for w in ("before", "after") for k in range(len(after))]
    made.module.main.result_names = ["before", "after"] if len(after) == 1 else numbered


class _WithKernels(Interpreter):
    """An interpreter that calls the C functions of regions instead of interpreting them."""

    def op(self, op: Op, env: Env, dims: Mapping[str, int]) -> list[Any]:
        """The results of one op."""
        if op.name != "foreign" or op.attrs["kernel"] != "c":
            return super().op(op, env, dims)
        reads = [np.ascontiguousarray(v.data if isinstance(v, Weight) else env[v]) for v in op.inputs]
        made = [np.empty([evaluate(d, dims) for d in r.tensor.dims], r.tensor.dtype.numpy) for r in op.results]
        a, library = op.attrs, library_of(op.attrs["library"])
        run_foreign(library, a["symbol"], a["arguments"], [*reads, *made], op.loc.nodes, gives_code=a["gives_code"])
        return made


def _copy(ops: Sequence[Op], outputs: Sequence[Value]) -> list[Value]:
    """Insert copies of ops before them; returns the copies of `outputs`."""
    copies: dict[Value, Value] = {}
    first = ops[0]
    for op in ops:
        operands = [v if v is None else copies.get(v, v) for v in op.operands]
        types, names = [r.type for r in op.results], [f"{r.name}" for r in op.results]
        made = Op(op.operator, operands, op.attrs, types, result_names=names)
        assert first.parent is not None
        first.parent.insert(made, first)
        copies |= dict(zip(op.results, made.results, strict=True))
    return [copies[v] for v in outputs]


def _compare(rule: Rule, module: Module, inputs: list[Value], rng: Generator) -> Difference | None:
    interpreter = _WithKernels(module)
    for special in (False, False, True, True):
        if special and isinstance(rule, Rewrite) and rule.finite:
            break
        given = [_values(rng, v, special=special) for v in inputs]
        found = _differs(interpreter, module, given)
        if found:
            given = _simpler(interpreter, module, given)
            text = _differs(interpreter, module, given)
            return Difference(_closed(module, given), text)
    return None


def _values(rng: Generator, value: Value, *, special: bool) -> np.ndarray:
    data = random_operand(rng, value.tensor)
    if special and value.tensor.dtype.is_float and data.size:
        some = rng.random(data.shape) < 0.4
        data[some] = rng.choice(SPECIAL, int(some.sum())).astype(data.dtype)
    return data


def _differs(interpreter: Interpreter, module: Module, given: Sequence[np.ndarray]) -> str:
    """Where the two halves of the results differ; empty if they do not, or if both sides reject the operands."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = interpreter.run(list(given), {})
    except RunError:
        return ""
    half = len(results) // 2
    for k, (a, b) in enumerate(zip(results[:half], results[half:], strict=True)):
        text = difference(a, b, module.main.results[k].tensor.dtype)
        if text:
            return text
    return ""


def difference(a: np.ndarray, b: np.ndarray, dtype: DType) -> str:
    """The first element in which two arrays differ by more than rounding; empty if there is none."""
    if a.shape != b.shape:
        return f"the shape is {list(a.shape)} before and {list(b.shape)} after"
    at = first_difference(b, a, TOLERANCE.get(str(dtype), 0.25) if dtype.is_float else 0.0, 1.0)
    return "" if at is None else f"element {list(at)} is {a[at]!s} before and {b[at]!s} after"


def _simpler(interpreter: Interpreter, module: Module, given: list[np.ndarray]) -> list[np.ndarray]:
    """Operands with simpler values for which the sides still differ."""
    for k, data in enumerate(given):
        plain = (0, 1, -1, np.nan, np.inf) if data.dtype.kind == "f" else (0, 1, -1)
        for number in plain if data.dtype.kind in "if" else ():
            tried = [*given[:k], np.full_like(data, number), *given[k + 1 :]]
            if _differs(interpreter, module, tried):
                given = tried
                break
    return given


def _closed(module: Module, given: Sequence[np.ndarray]) -> Module:
    """The module with its inputs as constants."""
    body = module.main.body
    for arg, data in zip(list(body.args), given, strict=True):
        arg.replace_uses(module.add_weight(arg.name, data))
    body.args.clear()
    module.drop_unused_weights()
    return module


def rerun(module: Module) -> str:
    """The remaining differences of a counterexample; empty if both sides agree.

    Raises:
        CompileError: it is not a counterexample.
    """
    names = module.main.result_names
    if len(names) < 2 or not names[0].startswith("before"):
        help_ = "`occ check-rules` writes counterexamples"
        raise error("OCC0601", "the text is not a counterexample: it does not return `before` and `after`", help=help_)
    return _differs(_WithKernels(module), module, [])
