"""An op whose shape depends on values of a run, as rules of `data_dependent_shapes.py` see it."""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.ir.deferred import MOST_AXES
from occ.compiler.ir.dim import Dim, Sym, substitute
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Op, Value, Weight
from occ.compiler.ir.ops.own.data_dependent_sizes import DECIDED
from occ.compiler.ir.rewriter import Rewriter
from occ.compiler.passes.infer.known_elements import Known


class Decision:
    """An op that waits for values.

    Attributes:
        b: puts ops before it.
    """

    def __init__(self, m: Module, known: Known, op: Op, rw: Rewriter) -> None:
        self.m, self.known, self.op, self.b = m, known, op, rw.builder(op)
        self._renamed = rw.renamed  # sizes that are now known have other names than the inference uses

    def operand(self, k: int) -> Value | None:
        return self.op.operands[k] if k < len(self.op.operands) else None

    def given(self, k: int) -> Value:
        value = self.operand(k)
        assert value is not None, f"operand {k} of {self.op.name} is not optional"
        return value

    def elements(self, k: int) -> Sequence[Dim | float | None] | None:
        """The known elements of a vector, None for each unknown one.

        None if not even their number is known.
        """
        value = self.given(k)
        n = value.tensor.shape[0] if value.tensor.shape and value.tensor.rank == 1 else None
        found = (self.known.elements(value) or (None,) * n) if isinstance(n, int) and n <= MOST_AXES else None
        return found and [substitute(x, self._renamed) if isinstance(x, Sym) else x for x in found]

    def ints(self, k: int, otherwise: Sequence[int]) -> Sequence[int] | None:
        """The elements of a constant operand; `otherwise` if it is left out."""
        value = self.operand(k)
        found = otherwise if value is None else self.known.elements(value)
        ints = [x for x in found or () if isinstance(x, int)]
        return ints if found is not None and len(ints) == len(found) else None

    def is_of_constants(self, k: int) -> bool:
        """Whether an operand is computed of constants alone, so that folding makes it one."""
        todo, seen = [self.given(k)], set[Value]()
        while todo:
            v = todo.pop()
            if isinstance(v, Weight) or v in seen:
                continue
            if v.defining_op is None:
                return False
            seen.add(v)
            todo += v.defining_op.inputs
        return True

    def symbol(self) -> Dim:
        return self.m.data_symbol()

    def sizes(self, vector: Value, finds: Sequence[Dim]) -> Value:
        """Bind symbols to the elements of a vector; the returned value has them as sizes."""
        self.b.op(DECIDED, vector, defines=tuple(finds), operator=self.op.name)
        return self.dims(finds)

    def dims(self, found: Sequence[Dim]) -> Value:
        return self.b.op("dims", values=tuple(found), shape=(len(found),))
