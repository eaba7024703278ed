"""Types of values: tensors, sequences, optionals and maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from occ.compiler.ir.dim import Dim, product, substitute
from occ.compiler.ir.dtype import DType
from occ.compiler.ir.layout import ROW, Layout
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor: element type, shape and layout.

    Attributes:
        dtype: element type.
        shape: logical extents, or None while the rank is unknown.
        layout: the memory layout; ROW until the `layout` stage.
    """

    dtype: DType
    shape: tuple[Dim, ...] | None
    layout: Layout = ROW

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The extents; the rank must be known."""
        assert self.shape is not None, "the rank of this tensor is unknown"
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> Dim:
        """Number of elements."""
        return product(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether all extents are constants."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def static(self) -> tuple[int, ...]:
        """The extents of a tensor whose extents are all constants."""
        fixed = tuple(d for d in self.dims if isinstance(d, int))
        assert len(fixed) == len(self.dims), f"{self} has symbolic extents"
        return fixed

    @property
    def physical(self) -> tuple[Dim, ...]:
        """Extents in memory order."""
        return self.layout.physical_shape(self.dims)

    @property
    def strides(self) -> tuple[Dim, ...]:
        """Strides of the axes in elements, in memory order."""
        around = self.layout.memory_shape(self.dims)
        return tuple(product(around[k + 1 :]) for k in range(len(around)))

    @property
    def nbytes(self) -> Dim:
        """Bytes in a runtime buffer that holds nothing else."""
        return product(self.physical) * self.dtype.itemsize

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        return replace(self, shape=shape)

    def substituted(self, values: Mapping[str, Dim]) -> TensorType:
        """The type with symbols replaced by other dims, by name."""
        return self.with_dims(lambda d: substitute(d, values)) if values else self

    def with_dims(self, put: Callable[[Dim], Dim]) -> TensorType:
        """The type with other dims, also as extents of a tensor that it is a part of."""
        if self.shape is None:
            return self
        shape, layout = tuple(map(put, self.shape)), self.layout
        if layout.within:
            layout = replace(layout, within=tuple((axis, put(n)) for axis, n in layout.within))
        return TensorType(self.dtype, shape, layout)

    def with_layout(self, layout: Layout) -> TensorType:
        return replace(self, layout=layout)

    def __str__(self) -> str:
        shape = "[*]" if self.shape is None else f"[{','.join(map(str, self.shape))}]"
        return f"{self.dtype}{shape}" + ("" if self.layout == ROW else f"@{self.layout}")


@dataclass(frozen=True)
class SequenceType:
    """A sequence of values of one type."""

    elem: Type

    def __str__(self) -> str:
        return f"seq<{self.elem}>"


@dataclass(frozen=True)
class EmptySequenceType(SequenceType):
    """A certainly empty sequence: it adopts the type of the first value inserted."""

    __str__ = SequenceType.__str__


@dataclass(frozen=True)
class OptionalType:
    """An optional value of a type."""

    elem: Type

    def __str__(self) -> str:
        return f"opt<{self.elem}>"


@dataclass(frozen=True)
class MapType:
    """A map from numbers or strings to values of one type (ai.onnx.ml).

    Tensor values are scalars.
    """

    key: DType
    value: TensorType

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


Type = TensorType | SequenceType | OptionalType | MapType
