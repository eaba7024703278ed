"""Binary tensors of KServe's V2 protocol, as Triton's clients send them.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mlserver.codecs import numpy as codec  # pyright: ignore[reportMissingImports]
from mlserver.errors import InferenceError  # pyright: ignore[reportMissingImports]
from mlserver.types import (  # pyright: ignore[reportMissingImports]
    InferenceRequest,
    InferenceResponse,
    RequestInput,
    TensorData,
)
from pydantic import ValidationError

HEADER = "Inference-Header-Content-Length"  # bytes of the JSON, where data follow


class ArrayRequest(InferenceRequest):  # pyright: ignore[reportUntypedBaseClass]
    """A request whose sender accepts outputs as arrays: MLServer's own servers need lists of Python numbers."""


def request_of(body: bytes, header: int | None) -> ArrayRequest:
    """A request from an HTTP body, of which the first `header` bytes are JSON.

    All of it if None.

    Raises:
        InferenceError: 400, it is invalid.
    """
    if header is not None and not 0 < header <= len(body):
        raise InferenceError(f"{HEADER} is {header}, the body has {len(body)} bytes")
    try:
        found = json.loads(body[:header])
        inputs = found.pop("inputs")
        request = ArrayRequest.model_validate(found | {"inputs": []})
        request.inputs = _inputs(inputs, memoryview(body)[len(body) if header is None else header :])
    except ValidationError as e:
        raise InferenceError("; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in e.errors())) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise InferenceError(f"the body is not an inference request: {type(e).__name__}: {e}") from None
    return request


def _inputs(inputs: Sequence[Any], data: memoryview) -> list[RequestInput]:
    """Inputs of a request, some of them with `binary_data_size` bytes of `data` each, in order."""
    made = list[RequestInput]()
    for given in inputs:
        size = (given.get("parameters") or {}).get("binary_data_size")
        if size is None:
            made.append(RequestInput.model_validate(given))
            continue
        if "data" in given or type(size) is not int or not 0 <= size <= len(data):
            raise ValueError(f"`binary_data_size` of the input `{given.get('name')}` does not fit the body")
        made.append(RequestInput.model_validate(given | {"data": []}))
        made[-1].data = TensorData.model_construct(root=_array(made[-1], data[:size]))
        data = data[size:]
    if data:
        raise ValueError(f"{len(data)} bytes after the JSON do not belong to an input")
    return made


def _array(given: RequestInput, data: memoryview) -> np.ndarray:
    """The flat array of an input; data of the protocol are little-endian."""
    if given.datatype == "BYTES":
        raise ValueError(f"the input `{given.name}` has strings, which no model here accepts")
    dtype = np.dtype(codec.to_dtype(given)).newbyteorder("<")
    if min(given.shape, default=0) < 0 or len(data) != math.prod(given.shape) * dtype.itemsize:
        wanted = f"the shape {given.shape} of {given.datatype}"
        raise ValueError(f"the input `{given.name}` has {len(data)} bytes, which is not {wanted}")
    return np.frombuffer(data, dtype)


def body_of(response: InferenceResponse, request: ArrayRequest) -> tuple[bytes, int | None]:
    """The body of an HTTP response, and the bytes of its JSON if data follow."""
    default = _flag(request, "binary_data_output", False)
    wanted = {o.name: _flag(o, "binary_data", default) for o in request.outputs or ()}
    outputs, data = list[Mapping[str, Any]](), list[bytes]()
    for o in response.outputs:
        array: Any = o.data.root
        row: dict[str, Any] = {"name": o.name, "shape": o.shape, "datatype": o.datatype}
        if wanted.get(o.name, default):
            data.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            row["parameters"] = {"binary_data_size": len(data[-1])}
        else:
            row["data"] = array.tolist()
        outputs.append(row)
    head = {"model_name": response.model_name, "model_version": response.model_version, "id": response.id}
    text = json.dumps({k: v for k, v in head.items() if v is not None} | {"outputs": outputs}).encode()
    return b"".join([text, *data]), len(text) if data else None


def _flag(holder: Any, name: str, otherwise: bool) -> bool:
    return bool(getattr(holder.parameters, name, otherwise))
