"""The plan of a partitioned model: copies, device calls and synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from occ.compiler.codegen_cann.parts.data_sizes import bounds, most
from occ.compiler.codegen_cann.parts.partition import Part
from occ.compiler.ir.dim import Dim, product
from occ.compiler.ir.module import Module
from occ.compiler.ir.op import Value, Weight
from occ.compiler.ir.shape import depends_on_data
from occ.compiler.ir.types import TensorType
from occ.compiler.plan.signature import dim_expr
from occ.runtime.buffers import assign_offsets
from occ.runtime.manifest import Buffer, Plan, Step, Storage


class _PartPlanner:
    """Writes the steps of the parts in order."""

    def __init__(self, m: Module, parts: Sequence[Part]) -> None:
        self.m, self.parts = m, parts
        self.limits = bounds(m)
        self.buffers: list[Buffer] = []
        self.storages: list[Storage] = []
        self.steps: list[Step] = []
        self.on_host: dict[Value, int] = {}  # value -> buffer
        self.on_device: dict[Value, int] = {}
        self.stream_of: dict[Value, int] = {}
        self.pending: dict[Value, int] = {}  # downloaded, but not available before its stream has been waited for
        self.copies: list[Step] = []  # outputs that no part computes
        self.streams = 0
        self.home = {v: k for k, v in reversed(list(enumerate(m.main.results)))}

    def plan(self) -> Plan:
        weights = constant_results(self.m)
        for k, arg in enumerate(self.m.main.args):
            self.on_host[arg] = self._buffer(arg, Storage("input", k))
        for part in self.parts:
            if part.on_device:
                self._device(part)
            else:
                self._cpu_subgraph(part)
        outputs = [self._output(k, v, weights) for k, v in enumerate(self.m.main.results)]
        for stream in sorted(set(self.pending.values())):
            self.steps.append(Step("sync", "", [], [], attrs={"stream": stream}))
        self.steps += self.copies
        inputs = [self.on_host[a] for a in self.m.main.args]
        arena, device = self._place("arena"), self._place("device")
        return Plan(self.buffers, self.storages, self.steps, inputs, outputs, arena, device)

    def _buffer(self, value: Value, storage: Storage) -> int:
        self.storages.append(storage)
        t = value.type
        if isinstance(t, TensorType) and t.shape is not None:
            self.buffers.append(Buffer(t.dtype.name, [dim_expr(d) for d in t.dims], len(self.storages) - 1))
        else:
            self.buffers.append(Buffer("", [], len(self.storages) - 1, opaque=True))
        return len(self.buffers) - 1

    def _host(self, value: Value) -> int:
        """The host buffer of a value: the output's own if it is one."""
        if value not in self.on_host:
            self.on_host[value] = self._buffer(value, self._host_storage(value))
        return self.on_host[value]

    def _host_storage(self, value: Value) -> Storage:
        """Where a value is on the host.

        Values with data-dependent sizes are available when their step has run.
        """
        if value in self.home:
            return Storage("output", self.home[value])
        t = value.type
        if isinstance(t, TensorType) and t.is_static and t.dtype.kind != "s":
            return Storage("arena", 0, dim_expr(t.nbytes))
        return Storage("host")

    def _on_device(self, value: Value) -> int:
        if value not in self.on_device:
            size = product(self._room(value) or value.tensor.dims) * value.tensor.dtype.itemsize
            self.on_device[value] = self._buffer(value, Storage("device", 0, dim_expr(size)))
        return self.on_device[value]

    def _room(self, value: Value) -> list[Dim]:
        """The maximum extents of a value with data-dependent ones; otherwise none."""
        if not any(depends_on_data(d) for d in value.tensor.dims):
            return []
        found = [most(d, self.limits) for d in value.tensor.dims]
        return [d for d in found if d is not None]

    def _device(self, part: Part) -> None:
        sources = sorted({self.stream_of[v] for v in part.inputs if v in self.stream_of and v in self.on_device})
        stream = sources[0] if sources else self.streams
        self.streams = max(self.streams, stream + 1)
        for value in part.inputs:
            if value not in self.on_device:
                self._arrived([value])
                target = self._on_device(value)
                self.steps.append(Step("upload", "", [self._host(value)], [target], attrs={"stream": stream}))
                self.stream_of[value] = stream
        for other in sources[1:]:
            self.steps.append(Step("wait", "", [], [], attrs={"stream": stream, "on": other}))
        reads, writes = ([self._on_device(v) for v in vs] for vs in (part.inputs, part.outputs))
        nodes = [n for op in part.ops for n in op.loc.nodes]
        room = [[dim_expr(d) for d in self._room(v)] for v in part.outputs]
        more = {"max_shapes": room} if any(room) else {}
        self.steps.append(Step("device", part.name, reads, writes, attrs={"stream": stream, **more}, nodes=nodes))
        for value in part.outputs:
            self.stream_of[value] = stream
            if value in self.home or self._read_on_host(value):
                step = Step("download", "", [self.on_device[value]], [self._host(value)], attrs={"stream": stream})
                self.steps.append(step)
                self.pending[value] = stream

    def _read_on_host(self, value: Value) -> bool:
        return any(value in p.inputs for p in self.parts if not p.on_device)

    def _arrived(self, values: Sequence[Value]) -> None:
        """Wait for downloads of values that the host is about to read."""
        for stream in sorted({self.pending[v] for v in values if v in self.pending}):
            self.steps.append(Step("sync", "", [], [], attrs={"stream": stream}))
            self.pending = {v: s for v, s in self.pending.items() if s != stream}

    def _cpu_subgraph(self, part: Part) -> None:
        self._arrived(part.inputs)
        reads, writes = ([self._host(v) for v in vs] for vs in (part.inputs, part.outputs))
        nodes = [n for op in part.ops for n in op.loc.nodes]
        self.steps.append(Step("cpu_subgraph", part.name, reads, writes, nodes=nodes))

    def _output(self, k: int, value: Value, weights: Sequence[Weight]) -> int:
        """The buffer of an output; inputs, constants and values returned twice are copied."""
        if self.home[value] == k and value in self.on_host and value not in self.m.main.args:
            return self.on_host[value]
        target = self._buffer(value, Storage("output", k))
        if isinstance(value, Weight):
            source = self._buffer(value, Storage("weight", weights.index(value)))
        else:
            source = self.on_host[value]
        self.copies.append(Step("copy", "copy", [source], [target]))
        return target

    def _place(self, kind: str) -> int:
        """Assign lifetimes and offsets to the storages of an arena; returns the arena's size."""
        slots = [k for k, s in enumerate(self.storages) if s.kind == kind]
        live = {k: [len(self.steps), 0] for k in slots}
        for at, step in enumerate(self.steps):
            for b in (*step.reads, *step.writes):
                k = self.buffers[b].storage
                if k in live:
                    live[k] = [min(live[k][0], at), max(live[k][1], at)]
        if kind == "device":  # steps on the device run later than they are issued
            live = {k: [first, len(self.steps)] for k, (first, _) in live.items()} if self.streams > 1 else live
        if any(not isinstance(self.storages[k].size, int) for k in slots):
            for k in slots:
                self.storages[k] = replace(self.storages[k], first=live[k][0], last=live[k][1])
            return -1
        sizes = [int(self.storages[k].size) for k in slots]
        offsets, total = assign_offsets(sizes, [(live[k][0], live[k][1]) for k in slots])
        for k, offset in zip(slots, offsets, strict=True):
            s = self.storages[k]
            self.storages[k] = Storage(kind, s.index, s.size, live[k][0], live[k][1], offset)
        return total


def constant_results(m: Module) -> list[Weight]:
    """The constants that a module returns, which an artifact stores outside of its parts."""
    return [v for v in dict.fromkeys(m.main.results) if isinstance(v, Weight)]


def plan_parts(m: Module, parts: Sequence[Part]) -> Plan:
    """The plan that runs the parts of a module."""
    return _PartPlanner(m, parts).plan()
