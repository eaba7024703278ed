"""The call of a native entry: `struct occ_call` and what its numbers mean (docs/native.md)."""

from __future__ import annotations

import ctypes

from occ.runtime.manifest import Manifest

ABI = 4
ENTRY = "occ_model_run"  # runs the model
CALL = "occ_model_call"  # runs a function of the model
MOST_AXES = 16  # for an output whose rank sizes decide; OCC_MAX_RANK of occ.h
RANK_OF_VALUE = -1  # for an output that the host keeps
UNKNOWN = -(1 << 63)  # an unknown size

# Return codes of a call.
DONE, MEMORY, INPUTS, KERNEL, CHECK, MISFIT, VERSION, HOST, NO_MEMORY = range(9)
IMPOSSIBLE = 1  # `detail` of MISFIT in a step: `got` is no extent, or more than `wanted`

# Requests to the host: run a step; run it, report the sizes that it produces, and keep its results; write the kept
# results; allocate an output; note that a kernel begins, and that it has ended.
RUN, FIND, STORE, OUTPUT, BEGIN, END = range(6)


class EntryCall(ctypes.Structure):
    """struct occ_call, see docs/native.md."""

    _fields_ = (
        ("abi", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("extents", ctypes.c_void_p),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("results", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("needed", ctypes.c_int64),
        ("plan", ctypes.c_int32),
        ("step", ctypes.c_int32),
        ("detail", ctypes.c_int32),
        ("tasks", ctypes.c_int32),
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("parallel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("host", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("found", ctypes.c_void_p),
        ("symbols", ctypes.c_void_p),
        ("request", ctypes.c_int32),
        ("observed", ctypes.c_int32),
        ("got", ctypes.c_int64),
        ("wanted", ctypes.c_int64),
        ("room", ctypes.c_void_p),
    )


def symbol_names(m: Manifest) -> list[str]:
    """All symbols of a model, in the order in which a call lists their values."""
    return sorted({d.name for dims in (m.dims, *(s.dims for s in m.special)) for d in dims})
