"""The statuses of ONNXIFI by short names, and a small model with its tensors."""

from __future__ import annotations

import numpy as np
from building import model_of

OK, FALLBACK = 0, 1
(ID, SIZE, POINTER, PROTOBUF, MODEL, BACKEND, GRAPH, BAD_EVENT, STATE, NAME, SHAPE, DATATYPE, MEMORY_TYPE, LOCATION, FENCE_TYPE,
 PROPERTY) = range(0x101, 0x111)  # fmt: skip
(U_TAG, U_VERSION, U_OPERATOR, U_ATTRIBUTE, U_SHAPE, U_DATATYPE, U_MEMORY_TYPE, U_FENCE_TYPE, U_PROPERTY) = range(
    0x201, 0x20A
)
UNIDENTIFIED_NAME, MISMATCHING_SHAPE, MISMATCHING_DATATYPE = range(0x301, 0x304)
RELU = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }").SerializeToString()
X, Y = np.arange(-4, 4, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)
JUNK = 0x7FFF1234
