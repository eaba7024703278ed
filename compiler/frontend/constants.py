"""The value of an ONNX `Constant` node."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, NodeProto

from occ.compiler.diagnostics import error, shorten
from occ.compiler.frontend.external import ModelFolder, dense_array, tensor_array
from occ.compiler.ir.operator.onnx_values import attr_value

# Other attributes than `value` and `sparse_value`: their type, and the element type.
_PLAIN = {
    "value_float": (AttributeProto.FLOAT, np.float32),
    "value_floats": (AttributeProto.FLOATS, np.float32),
    "value_int": (AttributeProto.INT, np.int64),
    "value_ints": (AttributeProto.INTS, np.int64),
    "value_string": (AttributeProto.STRING, object),
    "value_strings": (AttributeProto.STRINGS, object),
}


def constant_array(proto: NodeProto, folder: ModelFolder | None) -> np.ndarray:
    """The array of a `Constant`.

    Args:
        proto: the node, without references to attributes of functions.
        folder: of the model, for external data.

    Raises:
        CompileError: OCC0107 it does not have exactly one value of a known kind; OCC0106, OCC0108 its tensor cannot be
            read.
    """
    where = shorten(proto.name)
    if len(proto.attribute) != 1:
        raise error("OCC0107", f"`Constant` has {len(proto.attribute)} values", where=where)
    (attr,) = proto.attribute
    if attr.type == AttributeProto.UNDEFINED:
        raise error("OCC0107", f"attribute `{shorten(attr.name)}` has no type", where=where)
    if attr.name == "value":
        return tensor_array(attr.t, folder)
    if attr.name == "sparse_value":
        return dense_array(attr.sparse_tensor, folder)
    if attr.name not in _PLAIN:
        raise error("OCC0107", f"`Constant` has no attribute `{shorten(attr.name)}`", where=where)
    kind, dtype = _PLAIN[attr.name]
    try:
        if attr.type != kind:
            raise TypeError
        return np.asarray(attr_value(attr), dtype)
    except (TypeError, ValueError, OverflowError):
        what = f"attribute `{attr.name}` of `Constant` has no such value"
        raise error("OCC0107", what, where=where) from None
