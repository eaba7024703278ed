"""Artifacts with device parts, written by hand: what the compiler makes, in small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from ascend_standin import P, Standin, om, operator_model

from occ.runtime.acl.ascend import AscendDevice
from occ.runtime.acl.options import Options
from occ.runtime.artifact import Artifact
from occ.runtime.device import DeviceEngine
from occ.runtime.device_part import DevicePart, PartTensor
from occ.runtime.manifest import Buffer, DimInfo, Manifest, Plan, Step, Storage, TensorInfo
from occ.runtime.session import Session

SOC = "Ascend310P3"


@dataclass(frozen=True)
class Node:
    """A device part of a test: reads and writes values by name."""

    name: str
    reads: Sequence[str]
    writes: Sequence[str]
    stream: int = 0
    waits: Sequence[int] = ()


def artifact(
    values: dict[str, P], inputs: Sequence[str], outputs: Sequence[str], nodes: Sequence[Node],
    files: dict[str, bytes], dims: Sequence[str] = (), gives: dict[str, str] | None = None, **more: object,
) -> Artifact:  # fmt: skip
    """An artifact whose plan uploads the inputs, runs the nodes, and downloads the outputs; `gives`: from what value."""
    source = {name: name for name in outputs} | (gives or {})
    made = _Plan(values)
    for name in inputs:
        made.host(name, "input", inputs.index(name))
    for name in outputs:
        made.host(name, "output", outputs.index(name))
    uploaded: set[str] = set()
    for node in nodes:
        for name in node.reads:
            if name in inputs and name not in uploaded:
                made.step("upload", "", [made.hosts[name]], [made.device(name)], node.stream)
                uploaded.add(name)
        made.steps += [Step("wait", "", [], [], attrs={"stream": node.stream, "on": on}) for on in node.waits]
        reads, writes = ([made.device(n) for n in side] for side in (node.reads, node.writes))
        made.step("device", node.name, reads, writes, node.stream)
    last = {name: node.stream for node in nodes for name in node.writes}
    for name in outputs:
        made.step("download", "", [made.device(source[name])], [made.hosts[name]], last[source[name]])
    made.steps += [Step("sync", "", [], [], attrs={"stream": s}) for s in sorted({n.stream for n in nodes})]
    plan = Plan(
        made.buffers, made.storages, made.steps, [made.hosts[n] for n in inputs], [made.hosts[n] for n in outputs]
    )
    tensor = lambda n: TensorInfo(n, values[n].dtype, made.shape(n))
    part = lambda n: PartTensor(n, values[n].dtype, made.shape(n), values[n].format)
    parts = [
        DevicePart(n.name, f"device/{n.name}.air", SOC, "origin", [part(v) for v in n.reads], [part(v) for v in n.writes],
                   om=f"device/{n.name}.om")
        for n in nodes
    ]  # fmt: skip
    manifest = Manifest(
        "test", "ascend310p", "test", [DimInfo(d, d) for d in dims], [tensor(n) for n in inputs],
        [tensor(n) for n in outputs], [], [], plan, engine="ascend", parts=parts, **more,
    )  # fmt: skip
    return Artifact(manifest, [], b"", files)


class _Plan:
    def __init__(self, values: dict[str, P]) -> None:
        self.values = values
        self.buffers: list[Buffer] = []
        self.storages: list[Storage] = []
        self.steps: list[Step] = []
        self.hosts: dict[str, int] = {}
        self.devices: dict[str, int] = {}

    def shape(self, name: str) -> list[int | str]:
        """-1 is the dim `n`."""
        return ["n" if d == -1 else d for d in self.values[name].shape]

    def _buffer(self, name: str, storage: Storage) -> int:
        self.storages.append(storage)
        self.buffers.append(Buffer(self.values[name].dtype, self.shape(name), len(self.storages) - 1))
        return len(self.buffers) - 1

    def host(self, name: str, kind: str, index: int) -> None:
        self.hosts[name] = self._buffer(name, Storage(kind, index))

    def device(self, name: str) -> int:
        if name not in self.devices:
            self.devices[name] = self._buffer(name, Storage("device"))
        return self.devices[name]

    def step(self, kind: str, name: str, reads: list[int], writes: list[int], stream: int) -> None:
        self.steps.append(Step(kind, name, reads, writes, attrs={"stream": stream}))


def session(made: Artifact, **options: object) -> Session:
    """A session on the device."""
    device = AscendDevice(Options.read(made.manifest.options, options))
    return Session(made, DeviceEngine(made.manifest, [], made.files, device, {}), 1)


def chain(standin: Standin, length: int = 3, extent: int = 64, weight: int = 8192, **more: object) -> Artifact:
    """x -> 2x+1 -> ... : `length` parts one after the other on f32[extent]."""
    values = {f"v{k}": P(f"v{k}", "f32", (extent,)) for k in range(length + 1)}
    nodes = [Node(f"p{k}", [f"v{k}"], [f"v{k + 1}"]) for k in range(length)]
    standin.programs[b"affine"] = lambda xs: [np.float32(2) * xs[0] + np.float32(1)]
    files = {
        f"device/p{k}.om": om(b"affine", [values[f"v{k}"]], [values[f"v{k + 1}"]], weight=weight) for k in range(length)
    }
    return artifact(values, ["v0"], [f"v{length}"], nodes, files, **more)


def chain_result(x: np.ndarray, length: int = 3) -> np.ndarray:
    """What `chain` computes."""
    for _ in range(length):
        x = np.float32(2) * x + np.float32(1)
    return x


def twice(standin: Standin) -> Artifact:
    """x -> 3x, as two outputs `y` and `z`."""
    values = {n: P(n, "f32", (4, 8)) for n in ("x", "y", "z")}
    standin.programs[b"left"] = lambda xs: [xs[0] * 3]
    files = {"device/left.om": om(b"left", [values["x"]], [values["y"]])}
    return artifact(values, ["x"], ["y", "z"], [Node("left", ["x"], ["y"])], files, gives={"z": "y"})


def one_by_one(standin: Standin) -> Artifact:
    """x -> Mix(x, x, absent, weight, [3, 2]) -> Twice: two operators one by one, with attributes of every kind."""
    tensor = {"format": "ND", "type": "float", "shape": [4, 8]}
    attrs = [
        ("i", "int", 3), ("f", "float", 0.1), ("b", "bool", True), ("s", "string", "NCHW"), ("t", "data_type", "int64"),
        ("li", "list_int", [1, -1]), ("lf", "list_float", [0.5, 0.1]), ("lb", "list_bool", [True, False]),
        ("ls", "list_string", ["a", "b"]), ("lli", "list_list_int", [[1, 2], [], [3]]), ("none", "list_int", []),
    ]  # fmt: skip
    mix = {
        "op": "Mix",
        "input_desc": [
            {**tensor, "dynamic_input": "x"}, {**tensor, "dynamic_input": "x"},
            {"format": "RESERVED", "type": "UNDEFINED", "shape": []}, tensor,
            {"format": "ND", "type": "int64", "shape": [2], "is_const": True, "const_value": [3, 2]},
        ],
        "output_desc": [tensor],
        "attr": [{"name": n, "type": t, "value": v} for n, t, v in attrs],
    }  # fmt: skip
    twice = {"op": "Twice", "input_desc": [tensor], "output_desc": [tensor]}
    weight = np.arange(32, dtype=np.float32).reshape(4, 8)
    constants = weight.tobytes() + np.int64([3, 2]).tobytes()
    operators = [
        {"name": "mix", "entry": mix, "reads": [0, 0, -1, 1, 2], "writes": [3]},
        {"name": "twice", "entry": twice, "reads": [3], "writes": [4]},
    ]
    program = {"inputs": 1, "constants": [[0, 128], [128, 16]], "operators": operators, "outputs": [4]}

    def compute(kind: str, given: dict[str, object], _: object, __: object, xs: list[np.ndarray]) -> list[np.ndarray]:
        if kind == "Twice":
            return [xs[0] * 2]
        want = {n: int(v) if t == "bool" else v for n, t, v in attrs}
        assert {**given, "f": 0, "lf": 0} == {**want, "t": 9, "lb": [1, 0], "f": 0, "lf": 0}, given
        np.testing.assert_allclose([given["f"], *given["lf"]], [0.1, 0.5, 0.1])
        assert xs[2] is None
        return [xs[0] + xs[1] + xs[3] * np.float32(xs[4][0])]

    standin.operator = compute
    values = {n: P(n, "f32", (4, 8)) for n in ("x", "y")}
    files = {
        "device/p.program.json": json.dumps(program).encode(), "device/p.constants": constants,
        "device/p/0.om": operator_model(mix), "device/p/1.om": operator_model(twice),
    }  # fmt: skip
    made = artifact(values, ["x"], ["y"], [Node("p", ["x"], ["y"])], files)
    (part,) = made.manifest.parts
    parts = [replace(part, om="device/p/", program="device/p.program.json")]
    return replace(made, manifest=replace(made.manifest, parts=parts))


def one_by_one_result(x: np.ndarray) -> np.ndarray:
    """What `one_by_one` computes."""
    return (x + x + np.arange(32, dtype=np.float32).reshape(4, 8) * np.float32(3)) * 2


def diamond(standin: Standin) -> Artifact:
    """x -> a(x), b(x) side by side on two streams -> c(a, b)."""
    values = {n: P(n, "f32", (4, 8)) for n in ("x", "a", "b", "y")}
    standin.programs[b"left"] = lambda xs: [xs[0] * 3]
    standin.programs[b"right"] = lambda xs: [xs[0] + 5]
    standin.programs[b"join"] = lambda xs: [xs[0] - xs[1]]
    nodes = [Node("left", ["x"], ["a"]), Node("right", ["x"], ["b"], 1), Node("join", ["a", "b"], ["y"], 0, [1])]
    files = {
        f"device/{n.name}.om": om(n.name.encode(), [values[v] for v in n.reads], [values[v] for v in n.writes])
        for n in nodes
    }
    return artifact(values, ["x"], ["y"], nodes, files)
