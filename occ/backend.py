"""The ONNX backend API (onnx.backend.base).

`prepare(model, device="CPU", target="cpu")` with target `cpu`, `cpu-jit` or `interp`. Devices are

- `CPU`, this machine;
- `CPU:arm-64`, and `arm-32`, `riscv-64`, `powerpc-64`, `wasm-32`, a machine of that kind in an emulator (QEMU,
wasmtime), for testing cross builds;
- `NPU`, a simulated Ascend device, with an Ascend target; `NPU:ascend910b` and the like select it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend as BaseBackend
from onnx.backend.base import BackendRep, namedtupledict
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from occ.compiler.cache.cache import Cache
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.dtype import from_numpy
from occ.compiler.objects.processors import ARCHES, Arch, arch_of
from occ.compiler.standalone import module
from occ.compiler.standalone.emulated import Emulated, missing
from occ.compiler.standalone.module import Instance
from occ.compiler.targets.default import DEFAULT
from occ.compiler.targets.registry import all_targets

_UNSUPPORTED = ("OCC0103", "OCC0104", "OCC0203", "OCC03")


_NPU = "ascend310p"  # of a device `NPU`


class Runs(Protocol):
    """A session, or an equivalent."""

    @property
    def inputs(self) -> Sequence[Any]: ...

    def run(self, inputs: dict[str, Any], /) -> dict[str, Any]: ...


class Rep(BackendRep):
    """A prepared model."""

    def __init__(self, session: Runs) -> None:
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
        default_target: the target if `prepare` is not given one.
    """

    default_target = DEFAULT

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be compiled."""
        if not cls.supports_device(device):
            return False
        try:
            Compilation(model, cls._settings(device, kwargs.get("target"))).check()
        except CompileError:
            return False
        return True

    @classmethod
    def _settings(cls, device: str, target: str | None, options: Mapping[str, str] | None = None) -> Settings:
        given = dict(options or {})
        kind, _, which = device.partition(":")
        if kind == "NPU":
            return Settings(target or which or _NPU, options=given)
        if which in ("", "0"):
            return Settings(target or cls.default_target, options=given)
        arch = _arch(which)
        return Settings(target or "cpu", options=given | {"halide.target": arch.target if arch is not None else which})

    @classmethod
    def prepare(
        cls, model: ModelProto, device: str = "CPU", *, target: str | None = None, threads: int | None = None,
        options: Mapping[str, str] | None = None, **_: Any,
    ) -> Rep:  # fmt: skip
        """Compile a model.

        Args:
            model: the model.
            device: the device to run on, see above.
            target: the target to compile for, if the device does not decide it.
            threads: of a run; the number of cores of this machine by default.
            options: `-C` options of the target.

        Raises:
            BackendIsNotSupposedToImplementIt: it uses unsupported features.
            CompileError: it is not valid.
        """
        if not cls.supports_device(device):
            raise BackendIsNotSupposedToImplementIt(f"device {device}")
        try:
            settings = cls._settings(device, target, options)
            compilation = Compilation(model, settings)
            arch = arch_of(getattr(compilation.options, "halide_target", "host"))
            if arch is not None and arch.system == "wasi":
                return Rep(Instance.of(compilation.artifact(linked=False), compilation.native, Cache()))
            artifact = compilation.artifact()
            if arch != arch_of():
                return Rep(Emulated(artifact, Cache()))
            return Rep(open_session(artifact, threads, simulate=device.startswith("NPU")))
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
        """The CPU, one of another kind that can be emulated here, and the simulated NPU."""
        kind, _, which = device.partition(":")
        if kind == "NPU":
            return not which or any(t.name == which and which.startswith("ascend") for t in all_targets())
        if kind != "CPU" or which in ("", "0"):
            return kind == "CPU"
        other = _arch(which)
        if other is None or other == arch_of():
            return other is not None
        return not (module.missing() if other.system == "wasi" else missing(other))


def _arch(kind: str) -> Arch | None:
    return next((a for a in ARCHES if a.kind == kind), None)


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
