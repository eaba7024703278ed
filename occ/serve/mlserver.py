"""A runtime of MLServer (https://mlserver.readthedocs.io): KServe's V2 inference protocol over REST and gRPC.

    {"name": "digits", "implementation": "occ.serve.mlserver.OccRuntime", "parameters": {"uri": "./digits.occ"}}

is a complete model-settings.json. `docs/serving.md` lists further settings.
"""

import math
from typing import Any

import mlserver  # pyright: ignore[reportMissingImports] - an extra
import numpy as np
from mlserver.codecs import numpy as codec  # pyright: ignore[reportMissingImports]
from mlserver.errors import InferenceError, MLServerError  # pyright: ignore[reportMissingImports]
from mlserver.types import (  # pyright: ignore[reportMissingImports]
    InferenceRequest,
    InferenceResponse,
    MetadataTensor,
    Parameters,
    ResponseOutput,
    TensorData,
)
from mlserver.utils import get_model_uri  # pyright: ignore[reportMissingImports]

from occ.analysis.inspect import is_artifact
from occ.api import compile as compile_
from occ.compiler.diagnostics import CompileError
from occ.loading import load, on_half
from occ.runtime.errors import RunError
from occ.runtime.session import Port, Session
from occ.runtime.signature import numpy_dtype
from occ.serve.batching import Arrays, Batcher, can_batch
from occ.serve.metrics import batch_rows
from occ.serve.tensors import ArrayRequest

LARGEST = 256 << 20  # default maximum bytes of a request's inputs
BATCH = 32  # default rows of a batch
_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}  # data types that convert to an array's without loss


class OccRuntime(mlserver.MLModel):  # pyright: ignore[reportUntypedBaseClass, reportAttributeAccessIssue]
    """A model, or an artifact, on one session.

    `parameters.extra` of its settings may have `target`, `options`, `dims` and `threads` as for `occ.compile`, `batch`
    (rows of a batch; 1 for none) and `max_request_bytes`.
    """

    async def load(self) -> bool:
        """Open the model, compiling it unless it is an artifact; MLServer serves the older one meanwhile.

        Raises:
            MLServerError: it cannot be opened.
        """
        path = await get_model_uri(self.settings, wellknown_filenames=["model.occ", "model.onnx"])
        extra: dict[str, Any] = dict(self.settings.parameters.extra or {})
        self._largest = int(extra.pop("max_request_bytes", LARGEST))
        most = int(extra.pop("batch", BATCH))
        try:
            session = _opened(path, extra)
            self.inputs = [_metadata(p) for p in session.inputs]
            self.outputs = [_metadata(p) for p in session.outputs]
        except (CompileError, RunError, OSError, TypeError) as e:
            raise MLServerError(f"`{self.name}`: {e}") from e
        batches = most > 1 and can_batch(session)
        self._session = session
        watch = batch_rows().labels(self.name).observe
        self._answer = Batcher(session, most, watch) if batches else Batcher(session, 1, watch, on_half(session))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer a request.

        Raises:
            InferenceError: 400, the inputs do not match the model. MLServerError: 413, they are too large.
        """
        try:
            inputs = self._inputs(payload)
            outputs = await self._answer(inputs)
        except RunError as e:
            raise InferenceError(str(e)) from e
        wanted = [o.name for o in payload.outputs or ()] or list(outputs)
        for name in wanted:
            if name not in outputs:
                raise InferenceError(f"there is no output `{name}`, but {', '.join(outputs)}")
        return InferenceResponse(
            model_name=self.name,
            model_version=self.version,
            id=payload.id,
            outputs=[_encoded(name, outputs[name], as_array=isinstance(payload, ArrayRequest)) for name in wanted],
        )

    def _inputs(self, payload: InferenceRequest) -> Arrays:
        """The arrays of a request, checked against the model, so that it cannot spoil its batch."""
        ports = {p.name: p for p in self._session.inputs}
        given = {i.name: i for i in payload.inputs}
        if len(given) < len(payload.inputs):
            raise InferenceError("an input occurs twice")
        if given.keys() != ports.keys():
            raise InferenceError(
                f"the model takes {', '.join(map(str, ports.values()))}; the request has: "
                f"{', '.join(given) or 'nothing'}"
            )
        wanted = sum(abs(math.prod(i.shape)) * numpy_dtype(ports[n].dtype).itemsize for n, i in given.items())
        if wanted > self._largest:
            raise MLServerError(f"the inputs have {wanted} bytes, {self._largest} are allowed", status_code=413)
        return {n: _decoded(ports[n], given[n]) for n in ports}


def _datatype(dtype: np.dtype) -> str:
    return str(codec.to_datatype(dtype).value)


def _opened(path: str, extra: dict[str, Any]) -> Session:
    if is_artifact(path):
        return load(path, extra.get("threads"))
    return compile_(path, **extra)


def _metadata(port: Port) -> MetadataTensor:
    """An input or output in the protocol's terms, which has neither bfloat16 nor sequences."""
    dtype = numpy_dtype(port.dtype)
    if port.kind != "tensor" or dtype.kind not in "fiub":
        raise TypeError(f"`{port}` has no type in the V2 protocol")
    shape = [d if isinstance(d, int) else -1 for d in port.shape]
    return MetadataTensor(name=port.name, datatype=_datatype(dtype), shape=shape)


def _decoded(port: Port, given: Any) -> np.ndarray:
    """An input in the model's form.

    Raises:
        InferenceError: type, rank, extents or data are wrong.
    """
    dtype, shape = numpy_dtype(port.dtype), tuple(given.shape)
    expected = _datatype(dtype)
    asked = str(getattr(given.datatype, "value", given.datatype))
    if asked != expected:
        raise InferenceError(f"the input `{port.name}` is {expected}, not {asked}")
    fits = len(shape) == len(port.shape) and all(
        d == n or (isinstance(d, str) and n >= 0) for d, n in zip(port.shape, shape, strict=True)
    )
    if not fits:
        raise InferenceError(f"the model takes {port}, the input has the shape {list(shape)}")
    try:
        data = np.asarray(getattr(given.data, "root", given.data))
    except ValueError:
        raise InferenceError(f"the data of the input `{port.name}` are not an array") from None
    if data.size != math.prod(shape):
        raise InferenceError(
            f"the input `{port.name}` has {data.size} elements, its shape {list(shape)} has {math.prod(shape)}"
        )
    if data.size and data.dtype.kind not in _KINDS[dtype.kind]:
        raise InferenceError(f"the data of the input `{port.name}` are not of the type {expected}")
    if data.size and dtype.kind in "iu" and not np.iinfo(dtype).min <= data.min() <= data.max() <= np.iinfo(dtype).max:
        raise InferenceError(f"the data of the input `{port.name}` are out of the range of {expected}")
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(data.reshape(shape), dtype)
    except FloatingPointError:
        raise InferenceError(f"the data of the input `{port.name}` are out of the range of {expected}") from None


def _encoded(name: str, value: np.ndarray, *, as_array: bool) -> ResponseOutput:
    flat = value.ravel()
    return ResponseOutput.model_construct(
        name=name, datatype=_datatype(value.dtype), shape=list(value.shape),
        data=TensorData.model_construct(root=flat if as_array else flat.tolist()),
        parameters=Parameters(content_type="np"),
    )  # fmt: skip
