"""What an operator is: its signature from `onnx.defs`, its body and its shape function.

The latter are `infer` and one *meaning*: a te `body`, a `composite` of other operators, a `host` routine, its regions,
or a user's `kernel`. `@op` turns a class that holds them as plain functions into an `OpSpec`; packages export theirs in
`ALL`. A type checker takes the first parameter of such a function for an instance of the class, so modules of operators
disable the checks that object to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx.defs import OpSchema

from occ.compiler.diagnostics import error
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.kernel import Kernel
from occ.compiler.ir.layout import Layout
from occ.compiler.ir.operator.attributes import Attributes
from occ.compiler.ir.operator.matrix_product import MatrixProduct
from occ.compiler.ir.operator.onnx_release import check_release
from occ.compiler.ir.operator.onnx_values import attr_kind, attr_value
from occ.compiler.ir.operator.random_shapes import Sample
from occ.compiler.ir.operator.ranks import Rank
from occ.runtime.dataclass import dataclass

OLDEST = 7  # of the operator sets whose operand types are used
MEANINGS = ("body", "composite", "host", "region", "kernel")


@dataclass(frozen=True)
class Operand:
    """A formal operand or result: its name, whether it may be absent, whether it repeats, its type variable."""

    name: str
    optional: bool
    variadic: bool
    type_var: str
    types: frozenset[str]


@dataclass(frozen=True)
class AttrSpec:
    """A formal attribute; `default` is None if ONNX has none."""

    name: str
    kind: str
    required: bool
    default: Any


@dataclass(frozen=True)
class FormalSignature:
    """Operands, results and attribute defaults of an operator that `onnx.defs` lacks, such as `com.microsoft`'s."""

    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, operands: str, results: str = "Y", **attributes: Any) -> FormalSignature:
        """From names, with `?` after optional and `*` after variadic ones; attributes with their defaults.

        Numbers are f32, as in ONNX: 1.702 is 1.7020000219 to an operator on f64 too.
        """
        stored = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in attributes.items()}
        return cls(formals(operands), formals(results), stored)


def formals(text: str) -> tuple[Operand, ...]:
    """Operands from their names, with `?` after optional and `*` after variadic ones."""
    return tuple(Operand(n.rstrip("?*"), n.endswith("?"), n.endswith("*"), "", frozenset()) for n in text.split())


@dataclass(frozen=True)
class Access:
    """The memory accesses of an operator's body, as `access` computes them.

    Attributes:
        elementwise: an element of the result needs the elements of the operands at its own position, broadcast.
        permutation: the axes of the only operand in the order of the result's, as in Transpose; None if it is none.
    """

    elementwise: bool = False
    permutation: tuple[int, ...] | None = None


class OpSpec:
    """An operator: its meaning, and facts that passes use. What follows from the body is not repeated here.

    Attributes:
        name: as in `Op.name`: the ONNX name, after its domain if that is not ai.onnx.
        infer: `infer(*operands, a=attributes)` returns the result type or types; None to derive them from the body.
        body: `body(t, *operands, a=attributes)` builds te stages with a `Builder` and returns the result tensor(s).
        composite: `composite(b, *operands, a=attributes)` builds named ops and returns the result value(s).
        host: name of a routine in the package `runtime/hostops`.
        region: the meaning is in the regions of the op (If, Loop, ...).
        kernel: how a user computes it; also its meaning if there is no other.
        static: operands whose value, not only type, the definition uses, if it is known at compile time.
        pure: whether equal operands always produce equal results; False for random numbers.
        commutes: whether the order of the operands does not matter; patterns try each.
        moves: whether the result's elements are elements of the first operand, moved or selected.
        dtype: the element type of the result if neither operands nor attributes state one.
        rank: `rank(*operands, a=attributes)` returns the rank of results with data-dependent shapes, or None.
        reads: the order of axes in memory in which it reads fastest. `any` (the default): all are equal; `channels`:
            the first operand has axis 1 last; `last`: the last axis of each operand is innermost; `rows`: the first
            operand is row-major; `planes`: `rows` if the first operand is row-major already, otherwise `channels`. Or a
            function of `(*operands, a=attributes)` that returns one of these.
        writes: the order in which it writes, likewise. `any` (the default if the body is elementwise): that of its
            operands, or what its reader wants; `channels`: axis 1 last; `first`: that of its first operand, whatever
            its reader wants; `last`: rows, or what its reader wants with the last axis innermost; `planes`: as in
            `reads`; `rows` (the default otherwise).
        weight: `weight(*operands, a=attributes, lanes=elements of a vector)` returns the desired layout of the second
            operand if it is a constant, or None.
        matrix_product: `matrix_product(attributes)`, of one that multiplies by a matrix; see `Op.matrix_product`.
        joins: whether the result concatenates the operands along `axis`, so that they may be computed inside it.
        sample: shapes of random operands that are valid, see `samples`; None if any that broadcast are.
        limits: what it requires, for the reference.
        operands, signature: operands of operators that `onnx.defs` does not have.
        later: attributes missing from the schemas of older onnx releases, from 1.17 on, with their defaults.
        own_attributes: attributes of the compiler's own operators, in the form of `attributes.py`; the verifier checks
            them.
        tags: `contraction`: sums of products, worth a kernel of their own; `view`: the elements of the first operand in
            row-major order, with another shape; `gather`: slices of the first operand along `axis`; `shape`: only the
            operands' shapes are used; `declared`: the creator of the op states its result types; `control`: it runs
            functions of the module.
    """

    later: Mapping[str, Any] = MappingProxyType({})
    infer: Callable[..., Any] | None = None
    body: Callable[..., Any] | None = None
    composite: Callable[..., Any] | None = None
    host: str | None = None
    region: bool = False
    kernel: Kernel | None = None
    pure: bool = True
    commutes: bool = False
    moves: bool = False
    dtype: DType | None = None
    rank: Rank | None = None
    reads: str | Callable[..., str] = ""
    writes: str | Callable[..., str] = ""
    weight: Callable[..., Layout | None] | None = None
    matrix_product: Callable[[Any], MatrixProduct] | None = None
    joins: bool = False
    sample: Sample | None = None
    limits: str = ""
    signature: FormalSignature | None = None

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        assert fields.keys() <= FIELDS, f"`{name}` has unknown fields: {', '.join(fields.keys() - FIELDS)}"
        self.name = name
        self.domain, _, self.operator = name.rpartition(".")
        self.static = frozenset(fields.get("static", ()))
        self.tags = frozenset(fields.get("tags", ()))
        self.doc: str = fields.get("__doc__") or ""
        self.registry: Mapping[str, OpSpec] | None = None  # of the compilation that has added the operator
        self.accesses: dict[Hashable, Access] = {}  # result of `access`
        self._operand_names: tuple[str, ...] = fields.get("operands", ())
        self.own_attributes = Attributes.of(fields["own_attributes"]) if "own_attributes" in fields else None
        for key in _PLAIN & fields.keys():
            setattr(self, key, fields[key])

    @property
    def is_internal(self) -> bool:
        """Whether the op is one of the compiler's own, without an ONNX schema."""
        return self.domain == "legacy" or self.operator[:1].islower()

    @property
    def meaning(self) -> str:
        """Which of `MEANINGS` the operator has."""
        return next(m for m in MEANINGS if getattr(self, m))

    @cached_property
    def schema(self) -> OpSchema:
        """The latest ONNX schema of the operator.

        Raises:
            CompileError: OCC0104 the installed onnx release is older than the operator; OCC0409 it is refused.
        """
        check_release()
        if not self.is_known:
            message = f"onnx {onnx.__version__} does not know `{self.name}`, which is newer"
            raise error("OCC0104", message, help="`pip install -U onnx`")
        return onnx.defs.get_schema(self.operator, self.domain)

    @property
    def is_known(self) -> bool:
        """Whether the installed onnx release has a schema of the operator, or it needs none."""
        return self.signature is not None or self.is_internal or onnx.defs.has(self.operator, domain=self.domain)

    @property
    def since(self) -> int:
        """The version of that schema; 1 for operators without a schema in `onnx`."""
        return 1 if self.signature is not None else self.schema.since_version

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Formal operands, in order."""
        if self.signature is not None:
            return self.signature.operands
        if self.is_internal:
            return tuple(Operand(name, False, False, "", frozenset()) for name in self._operand_names)
        return tuple(
            replace(o, types=o.types | self._once_taken(k)) for k, o in enumerate(map(_operand, self.schema.inputs))
        )

    def _once_taken(self, k: int) -> frozenset[str]:
        """Types of an operand in earlier operator sets: later ones may allow fewer, as ReduceLogSum from 28 on."""
        found, version = frozenset[str](), self.since - 1
        while version >= OLDEST and onnx.defs.has(self.operator, version, self.domain):
            schema = onnx.defs.get_schema(self.operator, version, self.domain)
            if k < len(schema.inputs) and schema.inputs[k].name == self.schema.inputs[k].name:
                found |= frozenset(schema.inputs[k].types)
            version = schema.since_version - 1
        return found

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        """Formal results, in order."""
        if self.signature is not None:
            return self.signature.results
        return () if self.is_internal else tuple(map(_operand, self.schema.outputs))

    @cached_property
    def attrs(self) -> dict[str, AttrSpec]:
        """Formal attributes by name."""
        if self.signature is not None:
            return {name: AttrSpec(name, "", False, value) for name, value in self.signature.attributes.items()}
        if self.is_internal:
            return {}
        later = {name: AttrSpec(name, "", False, value) for name, value in self.later.items()}
        return later | {name: _attr_spec(attr) for name, attr in self.schema.attributes.items()}

    @cached_property
    def float_attrs(self) -> frozenset[str]:
        """Names of the attributes that ONNX stores as 32-bit floats."""
        return frozenset(name for name, spec in self.attrs.items() if spec.kind in ("FLOAT", "FLOATS"))

    def rounded(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes from a text, with the shortest digits of a 32-bit float expanded, as ONNX stores them."""
        return {k: _single(v) if k in self.float_attrs else v for k, v in given.items()}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        return {name: spec.default for name, spec in self.attrs.items()}

    def attributes(self, given: Mapping[str, Any]) -> SimpleNamespace:
        """Attributes by name, including defaults; None if there is neither value nor default."""
        return SimpleNamespace(**{**self._defaults, **given})

    def operand_name(self, k: int) -> str:
        """Name of the k-th actual operand."""
        if not self.operands:
            return f"operand {k}"
        formal = self.operands[min(k, len(self.operands) - 1)]
        return f"{formal.name}[{k - len(self.operands) + 1}]" if formal.variadic else formal.name

    def __repr__(self) -> str:
        return f"<operator {self.name}: {self.meaning}>"


_PLAIN = frozenset(OpSpec.__annotations__)
FIELDS = _PLAIN | {"static", "tags", "operands", "own_attributes", "__doc__"}


def op(name: str, **fields: Any) -> Callable[[type], OpSpec]:
    """Class decorator: the functions and fields of the class become the `OpSpec` of that operator."""
    return lambda cls: OpSpec(name, {**{k: v for k, v in vars(cls).items() if k in FIELDS}, **fields})


def _single(value: Any) -> Any:
    if isinstance(value, tuple):
        numbers = bool(value) and set(map(type, value)) == {float}
        return tuple(np.asarray(value, np.float32).tolist()) if numbers else tuple(map(_single, value))
    return float(np.float32(value)) if isinstance(value, float) else value


def _operand(formal: OpSchema.FormalParameter) -> Operand:
    option = formal.option
    return Operand(
        formal.name,
        option == OpSchema.FormalParameterOption.Optional,
        option == OpSchema.FormalParameterOption.Variadic,
        formal.type_str if not formal.type_str.endswith(")") else "",
        frozenset(formal.types),
    )


def _attr_spec(attr: OpSchema.Attribute) -> AttrSpec:
    value: Any = None
    if attr.default_value.type:
        value = attr_value(attr.default_value)
    return AttrSpec(attr.name, attr_kind(attr), attr.required, value)
