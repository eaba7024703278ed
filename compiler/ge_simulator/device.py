"""The simulator as a device of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Protocol

import numpy as np

from occ.compiler.ge_simulator.aipp import Maker, makers
from occ.compiler.ge_simulator.kernel_table import chip_of
from occ.compiler.ge_simulator.precision import Precision
from occ.compiler.ge_simulator.reader import BadGraph, NoKernel, NotSimulated
from occ.compiler.ge_simulator.simulate import Simulator
from occ.runtime.dataclass import dataclass
from occ.runtime.device_part import DevicePart
from occ.runtime.errors import RunError
from occ.runtime.resident import Resident
from occ.runtime.signature import numpy_dtype


def precision_on(mode: str, soc: str) -> Precision:
    """A precision mode on a chip."""
    return Precision(mode, chip_of(soc))


def simulator(part: DevicePart, files: Mapping[str, bytes], precision: Precision) -> Simulator:
    """A part of an artifact, ready to be simulated.

    Raises:
        RunError: OCC0502 GE would not load the `.air` file, or the chip has no kernel for a node.
    """
    beside = {name.rpartition("/")[2]: files[name] for name in part.files}
    try:
        made = Simulator(files[part.air], beside, replace(precision, fixed=bool(part.gears)))
        _check_binding(part, made)
        return made
    except NoKernel as e:
        remedy = (
            "if a kernel is missing, build with another `-C precision_mode_v2` or for another chip; if a limit is "
            "exceeded, this is a fault of occ: report it with the model"
        )
        raise RunError("OCC0502", f"`{part.air}` cannot be simulated: {e}", remedy) from None
    except NotSimulated as e:
        remedy = "run the model on a device; without such operators it can be simulated"
        raise RunError("OCC0502", f"`{part.air}` cannot be simulated: {e}", remedy) from None
    except (BadGraph, KeyError) as e:
        raise RunError("OCC0502", f"`{part.air}` cannot be simulated: {e}", _AGAIN) from None


def _check_binding(part: DevicePart, made: Simulator) -> None:
    """Check that a graph's inputs match the plan, which binds by position.

    Raises:
        BadGraph: it has other inputs, or in another order.
    """
    takes, given = [d.name for d in made.root.data], [t.name for t in part.inputs]
    if takes != given:
        raise BadGraph(f"the graph takes {', '.join(takes)} in this order, the plan passes {', '.join(given)}")


def _differs(k: int, value: np.ndarray, target: np.ndarray, plan: str) -> RunError:
    found, wanted = (f"{x.dtype}{list(x.shape)}" for x in (value, target))
    return RunError("OCC0505", f"the simulator stopped: output {k} of the graph is {found}, {plan} {wanted}", _AGAIN)


_AGAIN = "build the artifact again; if that does not help, it is a fault of occ: report it with the model"


@dataclass(frozen=True)
class Pictured:
    """A part whose inputs are first computed from pictures, as `--insert_op_conf` does.

    Attributes:
        graph: reads the computed inputs.
        makers: by the index of the input.
    """

    graph: Simulator
    makers: Mapping[int, Maker]

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Implements `Runs.run`."""
        given = list(inputs)
        for k, make in self.makers.items():
            given[k] = make(given[k]).astype(self.graph.root.data[k].output_descs[0].dtype)
        return self.graph.run(given)


class Runs(Protocol):
    """A part that is ready: a graph, or an observer of one."""

    def run(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]: ...


class SimulatedDevice:
    """Runs device parts with numpy. Steps run immediately, so there is nothing to wait for."""

    def load(self, part: DevicePart, files: Mapping[str, bytes]) -> Runs:
        """See `occ.runtime.device.Accelerator`.

        Raises:
            RunError: as `simulator`.
        """
        graph = simulator(part, files, precision_on(part.precision, part.soc))
        named = [a.partition("=")[2] for a in part.command if a.startswith("--insert_op_conf=")]
        texts = [files[f].decode() for f in part.files if f.rpartition("/")[2] in named]
        return Pictured(graph, makers("\n".join(texts))) if texts else graph

    def begin(self) -> SimulatedRun:
        """Implements `Accelerator.begin`."""
        return SimulatedRun()

    def close(self) -> None:
        """Implements `Accelerator.close`."""


class SimulatedRun:
    """One run; device memory is host memory here."""

    def allocate(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """Implements `occ.runtime.device.DeviceRun.allocate`."""
        return np.empty(tuple(shape), numpy_dtype(dtype))

    def adopt(self, resident: Resident) -> np.ndarray:
        """See `DeviceRun`; there is no device that could hold the tensor.

        Raises:
            RunError: always.
        """
        raise RunError("OCC0501", "the simulator has no device memory", "pass arrays of the host")

    def upload(self, source: np.ndarray, target: np.ndarray, stream: int) -> None:
        target[...] = source

    def copy(self, source: np.ndarray, target: np.ndarray, stream: int) -> None:
        target[...] = source

    def execute(self, part: Runs, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], stream: int) -> None:
        """See `DeviceRun`.

        Raises:
            RunError: OCC0505 a result is not what the graph states.
        """
        for k, (target, value) in enumerate(zip(outputs, self._run(part, inputs), strict=True)):
            if (value.dtype, value.shape) != (target.dtype, target.shape):
                raise _differs(k, value, target, "the plan has")
            target[...] = value

    def measure(
        self, part: Runs, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], stream: int
    ) -> list[tuple[int, ...]]:
        """See `DeviceRun`.

        Raises:
            RunError: OCC0505 a result is not what the graph states, or exceeds the plan's buffer.
        """
        made = self._run(part, inputs)
        for k, (target, value) in enumerate(zip(outputs, made, strict=True)):
            fits = len(value.shape) == len(target.shape) and all(map(int.__le__, value.shape, target.shape))
            if value.dtype != target.dtype or not fits:
                raise _differs(k, value, target, "the plan has room for")
            target.reshape(-1)[: value.size] = value.reshape(-1)
        return [value.shape for value in made]

    def beginning(self, tensor: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Implements `DeviceRun.beginning`."""
        return tensor.reshape(-1)[: prod(shape)].reshape(shape)

    def _run(self, part: Runs, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            return part.run(inputs)
        except BadGraph as e:
            raise RunError("OCC0505", f"the simulator stopped: {e}", _AGAIN) from None

    def download(self, source: np.ndarray, target: np.ndarray, stream: int) -> None:
        target[...] = source

    def wait(self, stream: int, on: int) -> None: ...

    def sync(self, stream: int) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...
