"""Random instances of patterns: a module with the ops of a pattern on suitable operands.

Operands that are ops are built first; free ones then get suitable types. Requirements that operators do not state
(`sample`) are tried and, if inference rejects them, tried again with another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from occ.compiler.debugging.random_tensors import random_array
from occ.compiler.diagnostics import Invalid
from occ.compiler.ir.builder import GraphBuilder
from occ.compiler.ir.dtype import BOOL, BY_NAME, F32, I64, DType
from occ.compiler.ir.func import Func
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Region, Value, Weight
from occ.compiler.ir.operator.onnx_values import onnx_type_name
from occ.compiler.ir.operator.random_shapes import Shape
from occ.compiler.ir.operator.registry import Registry
from occ.compiler.ir.operator.spec import AttrSpec, OpSpec
from occ.compiler.ir.types import TensorType
from occ.compiler.passes.rules.pattern import (
    Alternatives,
    Attribute,
    Constant,
    Many,
    Named,
    OpPattern,
    Optional,
    Pattern,
    Result,
    Shared,
    Variable,
)
from occ.compiler.passes.rules.rule import Rule

DTYPES = tuple(BY_NAME[n] for n in ("f32", "f32", "f32", "f64", "f16", "i32", "i64", "bool"))


class Instance:
    """A pattern made of ops.

    Attributes:
        module: its main function yields the values of the rule's patterns.
        fixed: arrays from a sampler of the rule, by name.
    """

    def __init__(self, rule: Rule, rng: Generator, size: int, registry: Registry) -> None:
        self.rng, self.size = rng, size
        self.module = Module(rule.name, stage="canonical", registry=registry)
        self.region = Region()
        self.module.funcs["main"] = Func("main", self.region)
        self.b = GraphBuilder(self.region, module=self.module)
        self.dtype: DType = DTYPES[rng.integers(len(DTYPES))]
        self.values: dict[Any, Value | None] = {}
        self.made: dict[OpPattern, Op] = {}
        self.attrs: dict[str, Any] = {}
        self.fixed: dict[str, np.ndarray] = {}
        if rule.sampler is not None:
            self.fixed = {n: np.asarray(a) for n, a in rule.sampler(rng).items()}
        outputs = [self.value(p, None) for p in rule.patterns]
        self.region.close(outputs)

    def value(self, pattern: Pattern, like: TensorType | None) -> Value:
        """A value for a pattern; free ones choose a type."""
        found = self.maybe(pattern, lambda: like)
        if found is None:
            raise Invalid("an operand is absent")
        return found

    def maybe(self, pattern: Pattern, like: Callable[[], TensorType | None]) -> Value | None:
        """A value for a pattern, or None if the operand is optional and absent."""
        key = pattern.name if isinstance(pattern, (Variable, Constant)) and pattern.name else pattern
        if key not in self.values:
            self.values[key] = self._make(pattern, like)
        return self.values[key]

    def _make(self, pattern: Pattern, like: Callable[[], TensorType | None]) -> Value | None:
        match pattern:
            case Variable():
                return None if pattern.optional and self.rng.random() < 0.5 else self._free(pattern.name, like)
            case Optional():
                return None if self.rng.random() < 0.5 else self.maybe(pattern.inner, like)
            case Constant():
                return self._constant(pattern, like)
            case Alternatives():
                return self.maybe(pattern.choices[self.rng.integers(len(pattern.choices))], like)
            case Named() | Shared():
                return self.maybe(pattern.inner, like)
            case Result():
                return self._op(pattern.op).results[pattern.index]
            case _:
                raise AssertionError(pattern)

    def _free(self, name: str, like: Callable[[], TensorType | None]) -> Value:
        given = self.fixed.get(name)
        type_ = TensorType(Weight("", given).tensor.dtype, given.shape) if given is not None else like()
        return self.region.add_arg(type_ or TensorType(self.dtype, self.shape()), name or "any")

    def _constant(self, pattern: Constant, like: Callable[[], TensorType | None]) -> Value:
        if pattern.name in self.fixed:
            return self.module.add_weight(pattern.name, self.fixed[pattern.name])
        type_ = like() or TensorType(self.dtype, self.shape())
        if pattern.value is not None:
            wanted = np.asarray(pattern.value)
            shape = wanted.shape if wanted.ndim else type_.static
            return self.module.add_weight("k", np.broadcast_to(wanted, shape).astype(type_.dtype.numpy).copy())
        for _ in range(64):
            data = random_operand(self.rng, type_)
            if pattern.test is None or _accepted(pattern.test, data):
                return self.module.add_weight(pattern.name or "k", data)
            type_ = TensorType(type_.dtype, self.shape() if self.rng.random() < 0.7 else (1,) * len(type_.dims))
        raise Invalid(f"no constant satisfies the condition on `{pattern.name}`")

    def shape(self, rank: int | None = None, least: int = 1) -> Shape:
        """A random shape with small extents, sometimes an empty one."""
        rank = int(self.rng.integers(0, 4)) if rank is None else rank
        extents = self.rng.integers(least, least + self.size, rank)
        if rank and least == 1 and self.size > 2 and self.rng.random() < 0.05:
            extents[self.rng.integers(rank)] = 0
        return tuple(map(int, extents))

    def _op(self, pattern: OpPattern) -> Op:
        if pattern in self.made:
            return self.made[pattern]
        name = pattern.operators[self.rng.integers(len(pattern.operators))]
        spec = self.module.registry[name]
        parts = list(pattern.operands)
        at = next((k for k, p in enumerate(parts) if isinstance(p, Many)), None)
        if at is not None:
            parts[at : at + 1] = self._several(parts[at])  # pyright: ignore[reportArgumentType]
        known: list[Value | None] = [None] * len(parts)
        for k in sorted(range(len(parts)), key=lambda k: (not _is_op(parts[k]), k)):
            known[k] = self.maybe(parts[k], lambda k=k: operand_type(self, spec, k, known))
        for n, m in [(p.name, p) for p in pattern.operands if isinstance(p, Many) and p.name]:
            self.values[n] = None if m is None else known[-1]
        attrs = {k: self._attribute(spec, k, a, known) for k, a in pattern.attrs.items()}
        for key, formal in spec.attrs.items():
            if key not in attrs and (formal.required or self.rng.random() < 0.3):
                value = random_attribute(self, spec, formal, known)
                if value is not None:
                    attrs[key] = value
        op = self._append(name, known, {k: v for k, v in attrs.items() if v is not None}, pattern.n_results)
        self.made[pattern] = op
        return op

    def _several(self, pattern: Many) -> list[Pattern]:
        each = pattern.each
        count = int(self.rng.integers(1, 4))
        return [Variable(f"{pattern.name or 'many'}_{k}") if each is None else each for k in range(count)]

    def _append(self, name: str, operands: Sequence[Value | None], attrs: dict[str, Any], n_results: int) -> Op:
        for k, v in enumerate(operands):
            formal = self.module.registry[name].operands
            allowed = formal[min(k, len(formal) - 1)].types if formal else frozenset[str]()
            if v is not None and allowed and onnx_type_name(v.tensor.dtype) not in allowed:
                raise Invalid(f"`{name}` does not take {v.tensor.dtype}")
        made = self.b.op(name, *operands, n_results=n_results, **attrs)
        op = (made if n_results == 1 else made[0]).defining_op
        assert op is not None
        return op

    def _attribute(self, spec: OpSpec, key: str, wanted: Attribute, known: Sequence[Value | None]) -> Any:
        if wanted.value is not None:
            value = wanted.value
            return BY_NAME[value] if isinstance(value, str) and value in BY_NAME and key == "to" else value
        if wanted.name in self.attrs:
            return self.attrs[wanted.name]
        formal = spec.attrs.get(key) or AttrSpec(key, "INT", False, None)
        for _ in range(64):
            value = (
                random_attribute(self, spec, formal, known)
                if formal.required or self.rng.random() < 0.8
                else formal.default
            )
            if wanted.test is None or _accepted(wanted.test, value):
                self.attrs[wanted.name] = value
                return value
        raise Invalid(f"no value of `{key}` satisfies the condition")


def _accepted(test: Callable[[Any], Any], value: Any) -> bool:
    try:
        return bool(test(value))
    except Exception:
        return False  # the condition does not expect such a value


def _is_op(pattern: Pattern) -> bool:
    return any(isinstance(p, Result) for p in pattern.walk())


def random_operand(rng: Generator, type_: TensorType) -> np.ndarray:
    """Ordinary values of a type, negative ones too."""
    least = 0 if type_.dtype.kind == "u" else -4
    return random_array(rng, type_.dtype.numpy, type_.static, integers=(least, 5))


def operand_type(made: Instance, spec: OpSpec, k: int, known: Sequence[Value | None]) -> TensorType | None:
    """A type for the k-th operand of an op, compatible with those already known."""
    formal = spec.operands[min(k, len(spec.operands) - 1)] if spec.operands else None
    same = [v.tensor.dtype for v in known if v is not None]
    dtype = next((t for t in (*same, made.dtype) if formal is None or onnx_type_name(t) in formal.types), None)
    if dtype is None:
        assert formal is not None
        dtype = next((t for t in (I64, BOOL, F32) if onnx_type_name(t) in formal.types), made.dtype)
    shapes = [v.tensor.static if v is not None else None for v in known]
    shape = spec.sample(made, k, shapes) if spec.sample is not None else None
    return TensorType(dtype, shape if shape is not None else _broadcastable(made, shapes))


def _broadcastable(made: Instance, shapes: Sequence[Shape | None]) -> Shape:
    present = [s for s in shapes if s is not None]
    if not present:
        return made.shape()
    longest = max(present, key=len)
    kept = tuple(n if made.rng.random() < 0.7 else 1 for n in longest)
    return kept[int(made.rng.integers(0, len(kept) + 1)) if made.rng.random() < 0.4 else 0 :]


def random_attribute(made: Instance, spec: OpSpec, formal: AttrSpec, known: Sequence[Value | None]) -> Any:
    """A plausible value of an attribute; None to leave it out."""
    rng = made.rng
    first = next((v.tensor.static for v in known if v is not None), ())
    rank, spatial = len(first), max(len(first) - 2, 1)
    match formal.name:
        case "perm":
            return tuple(map(int, rng.permutation(rank)))
        case "axis":
            return int(rng.integers(-rank, rank)) if rank else None
        case "axes":
            return (int(rng.integers(-rank, rank)),) if rank else None
        case "to":
            return DTYPES[rng.integers(len(DTYPES))]
        case "pads":
            return tuple(map(int, rng.integers(0, 2, 2 * spatial)))
        case "strides" | "dilations" | "kernel_shape":
            w = known[1].tensor.static[2:] if formal.name == "kernel_shape" and len(known) > 1 and known[1] else None
            return w or tuple(map(int, rng.integers(1, 3, spatial)))
        case "group" | "auto_pad" | "storage_order" | "output_shape" | "output_padding" | "training_mode":
            return None
        case "approximate":
            return ("none", "tanh")[rng.integers(2)]
        case _:
            return _by_kind(rng, formal.kind)


def _by_kind(rng: Generator, kind: str) -> Any:
    match kind:
        case "FLOAT":
            return float(np.float32(rng.choice([0.1, 0.25, 0.5, 1.0, 2.0])))
        case "INT":
            return int(rng.integers(0, 2))
        case _:
            return None
