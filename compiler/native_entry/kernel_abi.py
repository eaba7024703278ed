"""Calling conventions of the kernels that a native entry runs."""

from enum import Enum, auto


class KernelAbi(Enum):
    """How an entry calls a kernel.

    All return 0, or an error code, and take `void **args`: see `occ.runtime.native.library`.
    """

    PLAIN = auto()
    """`int f(void **args)`, called directly: kernels of packages."""
    HALIDE = auto()
    """The same, through the runtime linked to Halide kernels: its thread pool, scratch memory and messages."""
    RANGE = auto()
    """`int f(void **args, int begin, int end)`: the caller runs the parallel loop."""
