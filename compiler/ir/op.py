"""Values, ops and regions, which refer to each other.

One class serves all operators: the differences are in the `OpSpec` that `spec` returns.
Use lists are kept by `Op`; nothing else writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from occ.compiler.ir.dtype import from_numpy
from occ.compiler.ir.location import UNKNOWN, Location
from occ.compiler.ir.types import TensorType, Type

if TYPE_CHECKING:
    from occ.compiler.ir.operator.matrix_product import MatrixProduct
    from occ.compiler.ir.operator.spec import OpSpec

# Plain Python: int, float, str, bool, DType, dims, tuples of these, an ndarray for tensors, or None.
Attr = Any


class FuncRef(str):
    """The name of a function of the module, as an attribute; prints `@name`."""

    __slots__ = ()


class Value:
    """An SSA value: a result of an op, or an argument of a region.

    Attributes:
        type: None until inference has determined it.
        name: a hint for printing; made unique on print.
        owner: the op or the region that defines it.
        uses: the (op, operand index) pairs that read it, in order of creation.
    """

    __slots__ = ("name", "owner", "type", "uses")

    def __init__(self, type: Type | None, name: str, owner: Op | Region | None = None) -> None:  # noqa: A002
        self.type, self.name, self.owner = type, name, owner
        self.uses: dict[tuple[Op, int], None] = {}

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor type."""
        assert isinstance(self.type, TensorType), f"%{self.name} is {self.type or 'untyped'}, not a tensor"
        return self.type

    @property
    def users(self) -> list[Op]:
        """The ops that read the value, each once."""
        return list(dict.fromkeys(op for op, _ in self.uses))

    def replace_uses(self, new: Value, outside: Iterable[Op] = ()) -> None:
        """Redirect the readers of this value to another one; names and locations stay, see `Rewriter.replace_value`.

        Args:
            new: the value to read instead.
            outside: ops that keep reading this value.
        """
        staying = set(outside)
        for user, k in list(self.uses):
            if user not in staying:
                user.set_operand(k, new)

    @property
    def defining_op(self) -> Op | None:
        """The op that computes the value; None for region arguments and weights."""
        return self.owner if isinstance(self.owner, Op) else None

    def __repr__(self) -> str:
        return f"<%{self.name}: {self.type}>"


class Weight(Value):
    """A constant of the module.

    `data` is an array, or a view of a mapped file; it is never copied into text.
    """

    __slots__ = ("data",)

    def __init__(self, name: str, data: np.ndarray, type: TensorType | None = None) -> None:  # noqa: A002
        super().__init__(type or TensorType(from_numpy(data.dtype), data.shape), name)
        self.data = data

    def __repr__(self) -> str:
        return f"<@{self.name}: {self.type}>"


class Op:
    """An operation: a use of an operator, with operands, results and attributes.

    It is created from its operator's definition in the module's registry, or from the name of a built-in one.

    Attributes:
        name: the ONNX operator, with its domain if that is not ai.onnx (`Conv`, `com.microsoft.Gelu`), or an op of
            the compiler's own in lower case (`fuse`, `call`).
        operands: values read; None where an optional operand is absent.
        attrs: attributes by name, defaults left out.
        results: values computed.
        regions: nested bodies (`fuse`, `deferred`).
        loc: the ONNX nodes that the op stands for.
        parent: the region that holds the op.
    """

    __slots__ = ("_operands", "_spec", "attrs", "loc", "name", "next", "parent", "prev", "regions", "results")

    def __init__(
        self,
        operator: str | OpSpec,
        operands: Iterable[Value | None] = (),
        attrs: Mapping[str, Attr] | None = None,
        result_types: Sequence[Type | None] = (None,),
        *,
        result_names: Sequence[str] = (),
        regions: Sequence[Region] = (),
        loc: Location = UNKNOWN,
    ) -> None:
        self._spec = None if isinstance(operator, str) else operator
        self.name, self.loc = operator if isinstance(operator, str) else operator.name, loc
        self.attrs: dict[str, Attr] = dict(attrs or {})
        self.regions = tuple(regions)
        for region in self.regions:
            region.owner = self
        names = [*result_names, *(f"v{k}" for k in range(len(result_names), len(result_types)))]
        self.results = tuple(Value(t, n, self) for t, n in zip(result_types, names, strict=True))
        self.parent: Region | None = None
        self.prev: Op | None = None
        self.next: Op | None = None
        self._operands: tuple[Value | None, ...] = ()
        self.set_operands(operands)

    @property
    def operands(self) -> tuple[Value | None, ...]:
        return self._operands

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The operands that are present."""
        return tuple(v for v in self._operands if v is not None)

    def set_operands(self, operands: Iterable[Value | None]) -> None:
        """Replace all operands.

        Only the rewriter and op constructors call this (tests/unit/test_mutation.py).
        """
        for k, value in enumerate(self._operands):
            if value is not None:
                value.uses.pop((self, k), None)
        self._operands = tuple(operands)
        for k, value in enumerate(self._operands):
            if value is not None:
                value.uses[self, k] = None

    def set_operand(self, k: int, value: Value | None) -> None:
        """Replace one operand."""
        old = self._operands[k]
        if old is not None:
            old.uses.pop((self, k), None)
        self._operands = (*self._operands[:k], value, *self._operands[k + 1 :])
        if value is not None:
            value.uses[self, k] = None

    @property
    def result(self) -> Value:
        """The only result."""
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    @property
    def spec(self) -> OpSpec:
        """The definition of the operator.

        Raises:
            KeyError: no such operator.
        """
        if self._spec is None:
            from occ.compiler.ir.operator.registry import builtin

            self._spec = builtin()[self.name]
        return self._spec

    @property
    def operator(self) -> OpSpec | str:
        """The operator definition for a copy of the op, or its name if it is not resolved yet."""
        return self._spec or self.name

    @property
    def a(self) -> SimpleNamespace:
        """Attributes by name, including the operator's defaults."""
        return self.spec.attributes(self.attrs)

    @property
    def is_terminator(self) -> bool:
        """Whether it ends a region and yields its values."""
        return self.name == "yield"

    @property
    def is_dims(self) -> bool:
        """Whether it is a tensor of sizes that are known in terms of the inputs' dims."""
        return self.name == "dims"

    @property
    def matrix_product(self) -> MatrixProduct | None:
        """How the op multiplies by a matrix; None if it does not."""
        form = self.spec.matrix_product
        return None if form is None else form(self.a)

    def walk(self) -> Iterator[Op]:
        """This op and all ops in its regions, outer before inner."""
        yield self
        for region in self.regions:
            yield from region.walk()

    def __repr__(self) -> str:
        return f"<{self.name} {', '.join('%' + r.name for r in self.results)}>"


class Region:
    """A body: arguments, ops in order, and the values that it yields (through a closing `yield` op)."""

    __slots__ = ("args", "first", "last", "owner")

    def __init__(self, arg_types: Sequence[Type | None] = (), arg_names: Sequence[str] = ()) -> None:
        names = [*arg_names, *(f"a{k}" for k in range(len(arg_names), len(arg_types)))]
        self.args = [Value(t, n, self) for t, n in zip(arg_types, names, strict=True)]
        self.owner: Op | None = None
        self.first: Op | None = None
        self.last: Op | None = None

    def __iter__(self) -> Iterator[Op]:
        """The ops in order, including the closing `yield`; ops may be erased or inserted meanwhile."""
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    def __reversed__(self) -> Iterator[Op]:
        op = self.last
        while op is not None:
            preceding = op.prev
            yield op
            op = preceding

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def body(self) -> list[Op]:
        """The ops without the closing `yield`."""
        return [op for op in self if not op.is_terminator]

    @property
    def terminator(self) -> Op:
        """The closing `yield` op."""
        last = self.last
        assert last is not None, "the region is empty"
        assert last.is_terminator, "the region has no yield"
        return last

    @property
    def yields(self) -> tuple[Value, ...]:
        """The values that the region yields."""
        return self.terminator.inputs

    def close(self, values: Iterable[Value | None]) -> Op:
        """Append the `yield` op, which ends the region and yields `values`."""
        return self.insert(Op("yield", values, {}, ()))

    def add_arg(self, type: Type | None, name: str) -> Value:  # noqa: A002
        """Add an argument."""
        self.args.append(Value(type, name, self))
        return self.args[-1]

    def insert(self, op: Op, before: Op | None = None) -> Op:
        """Insert `op` before another one, or at the end."""
        assert op.parent is None, "the op is already in a region"
        prev = self.last if before is None else before.prev
        op.parent, op.prev, op.next = self, prev, before
        if prev is None:
            self.first = op
        else:
            prev.next = op
        if before is None:
            self.last = op
        else:
            before.prev = op
        return op

    def remove(self, op: Op) -> None:
        """Remove `op`; its operands stay."""
        assert op.parent is self
        if op.prev is None:
            self.first = op.next
        else:
            op.prev.next = op.next
        if op.next is None:
            self.last = op.prev
        else:
            op.next.prev = op.prev
        op.parent = op.prev = op.next = None

    def walk(self) -> Iterator[Op]:
        """All ops, nested ones included, outer before inner."""
        for op in self:
            yield from op.walk()
