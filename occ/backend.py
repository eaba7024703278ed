"""The ONNX backend API (onnx.backend.base), so that occ can stand wherever an ONNX backend can.

`prepare(model, device="CPU", target="cpu")` with target `cpu`, `cpu-jit` or `interp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend as BaseBackend
from onnx.backend.base import BackendRep, namedtupledict
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.sessions import compile_model
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.dtype import from_numpy
from occ.runtime.session import Session

_UNSUPPORTED = ("OCC0103", "OCC0104", "OCC0203", "OCC03")


class Rep(BackendRep):
    """A prepared model."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Sequence[Any] | Mapping[str, Any], **_: Any) -> tuple[Any, ...]:
        """Run on inputs by position or by name; the outputs by position, as a named tuple."""
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        else:
            listed = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            given = dict(zip((p.name for p in self.session.inputs), listed, strict=False))
        outputs = self.session.run(given)
        return namedtupledict("Outputs", list(outputs))(*outputs.values())


class Backend(BaseBackend):
    """occ as an ONNX backend.

    Attributes:
        default_target: what models are compiled for where `prepare` is not told.
    """

    default_target = "cpu"

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be compiled."""
        from occ.api import capability

        return cls.supports_device(device) and capability(model, kwargs.get("target", cls.default_target)).ok

    @classmethod
    def prepare(
        cls, model: ModelProto, device: str = "CPU", *, target: str | None = None, threads: int | None = None, **_: Any
    ) -> Rep:
        """Compile a model.

        Raises:
            BackendIsNotSupposedToImplementIt: it uses what occ does not support.
            CompileError: it is not valid.
        """
        if not cls.supports_device(device):
            raise BackendIsNotSupposedToImplementIt(f"device {device}")
        try:
            return Rep(compile_model(model, Settings(target or cls.default_target), threads))
        except CompileError as e:
            if all(d.code.startswith(_UNSUPPORTED) for d in e.diagnostics):
                raise BackendIsNotSupposedToImplementIt(str(e)) from e
            raise

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run one node; types and shapes of its inputs are those of the arrays."""
        listed = (
            [np.asarray(inputs[n]) for n in node.input]
            if isinstance(inputs, Mapping)
            else list(map(np.asarray, inputs))
        )
        names = [n for n in node.input if n]
        infos = [
            helper.make_tensor_value_info(n, from_numpy(x.dtype).onnx, x.shape)
            for n, x in zip(names, listed, strict=True)
        ]
        outputs = [helper.make_empty_tensor_value_info(n) for n in node.output if n]
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        graph = helper.make_graph([node], "node", infos, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        return cls.run_model(model, listed, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only the CPU."""
        return device.partition(":")[0] == "CPU"


class Cpu(Backend):
    """The target `cpu`."""


class CpuJit(Backend):
    """The target `cpu-jit`."""

    default_target = "cpu-jit"


class Interp(Backend):
    """The target `interp`."""

    default_target = "interp"


prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
is_compatible = Backend.is_compatible
