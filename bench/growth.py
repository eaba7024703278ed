"""How builds grow with the nodes of a graph: seconds of processor time and peak memory, for graphs that are made here.

`python bench/growth.py --kinds chain,net --nodes 500,2000 --targets interp,cpu-jit` builds each in a process of its own without
its artifact being cached, and runs it once.
A curve is linear where the microseconds a node, which the table lists too, stay the same.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

WIDTH = 16  # of rows, and channels


class Graph:
    """A graph with the input `x` that grows by nodes of one result."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.nodes = shape, list[NodeProto]()
        self.weights: list[TensorProto] = []
        self._rng = np.random.default_rng(0)

    def add(self, op: str, *operands: str, **attributes: object) -> str:
        """A node; the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """A constant of small random numbers."""
        return self.constant(self._rng.normal(0, 0.3 / max(shape) ** 0.5, shape).astype(np.float32))

    def constant(self, x: np.ndarray) -> str:
        """A constant."""
        self.weights.append(numpy_helper.from_array(x, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def model(self, *results: str) -> onnx.ModelProto:
        """The model of the graph."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        ends = [helper.make_empty_tensor_value_info(r) for r in results]
        graph = helper.make_graph(self.nodes, "g", [x], ends, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def chain(nodes: int) -> onnx.ModelProto:
    """Elementwise operators one after the other."""
    g, x = Graph((WIDTH, WIDTH)), "x"
    while len(g.nodes) < nodes:
        x = g.add("Tanh", g.add("Add", g.add("Mul", x, g.weight(WIDTH)), g.weight(1)))
    return g.model(x)


def wide(nodes: int) -> onnx.ModelProto:
    """Many operators of one input, whose results are joined and added up."""
    g = Graph((WIDTH, WIDTH))
    parts = [g.add("Relu", g.add("MatMul", "x", g.weight(WIDTH, WIDTH))) for _ in range(nodes // 3)]
    while len(parts) > 1:
        parts = [g.add("Add", a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) & ~1 :]
    return g.model(*parts)


def joined(nodes: int) -> onnx.ModelProto:
    """A Split into many parts, an operator for each, and a Concat of all."""
    n = nodes - 2
    g = Graph((n, WIDTH))
    parts = [f"p{k}" for k in range(n)]
    g.nodes.append(helper.make_node("Split", ["x"], parts, axis=0))
    return g.model(g.add("Concat", *(g.add("Tanh" if k % 2 else "Neg", p) for k, p in enumerate(parts)), axis=0))


def ends(nodes: int) -> onnx.ModelProto:
    """As many inputs and outputs as operators."""
    names = [f"x{k}" for k in range(nodes)]
    made = [helper.make_node("Neg", [n], [f"y{n}"]) for n in names]
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [WIDTH]) for n in names]
    results = [helper.make_empty_tensor_value_info(f"y{n}") for n in names]
    return helper.make_model(
        helper.make_graph(made, "g", given, results), ir_version=9, opset_imports=[helper.make_opsetid("", 17)]
    )


def moves(nodes: int) -> onnx.ModelProto:
    """Pad and Slice in turn: each pair moves all columns by one."""
    g, x = Graph((WIDTH, WIDTH)), "x"
    pads, begin, end = (g.constant(np.array(a)) for a in ([0, 1, 0, 2], [0, 0], [WIDTH, WIDTH]))
    while len(g.nodes) < nodes:
        x = g.add("Slice", g.add("Pad", x, pads), begin, end)
    return g.model(x)


def net(nodes: int) -> onnx.ModelProto:
    """Residual blocks of convolutions."""
    g, x = Graph((1, WIDTH, 8, 8)), "x"
    while len(g.nodes) < nodes:
        y = g.add("Relu", g.add("Conv", x, g.weight(WIDTH, WIDTH, 3, 3), g.weight(WIDTH), pads=[1] * 4))
        x = g.add("Relu", g.add("Add", x, g.add("Conv", y, g.weight(WIDTH, WIDTH, 1, 1))))
    return g.model(x)


def transformer(nodes: int) -> onnx.ModelProto:
    """Blocks of attention with two heads, and of products."""
    g, x = Graph((1, 8, WIDTH)), "x"
    heads, flat = g.constant(np.array([1, 8, 2, WIDTH // 2])), g.constant(np.array([1, 8, WIDTH]))

    def product(y: str, n: int, m: int) -> str:
        return g.add("Add", g.add("MatMul", y, g.weight(n, m)), g.weight(m))

    def head(y: str, perm: list[int]) -> str:
        return g.add("Transpose", g.add("Reshape", product(y, WIDTH, WIDTH), heads), perm=perm)

    while len(g.nodes) < nodes:
        y = g.add("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH))
        q, k, v = (head(y, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = g.add("Softmax", g.add("Mul", g.add("MatMul", q, k), g.constant(np.float32(0.3))), axis=-1)
        y = g.add("Reshape", g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3]), flat)
        x = g.add("Add", x, product(y, WIDTH, WIDTH))
        y = g.add("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH))
        x = g.add("Add", x, product(g.add("Relu", product(y, WIDTH, 4 * WIDTH)), 4 * WIDTH, WIDTH))
    return g.model(x)


KINDS: dict[str, Callable[[int], onnx.ModelProto]] = {
    f.__name__: f for f in (chain, wide, joined, ends, moves, net, transformer)
}

_BUILD = """
import json, resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
import numpy as np
import occ
from occ.inputs import random_inputs
start = time.process_time()
artifact = occ.build(sys.argv[1], sys.argv[2], out=sys.argv[1] + ".occ")
own, tools = (resource.getrusage(k) for k in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
peak = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) / 1024
built = time.process_time() - start
session = occ.load(sys.argv[1] + ".occ", threads=1)
session.run(random_inputs(session, {}, np.random.default_rng(0)))
opened = time.process_time() - start - built
print(json.dumps({"own": built, "tools": tools.ru_utime + tools.ru_stime, "peak": peak, "child": tools.ru_maxrss / 1024, "run": opened}))
"""


def measured(kind: str, nodes: int, target: str, seconds: int) -> dict[str, float] | str:
    """What a build took; or why there is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "m.onnx")
        onnx.save(KINDS[kind](nodes), file)
        command = [sys.executable, "-c", _BUILD, str(file), target, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        return f"{signal.Signals(-done.returncode).name} (over {seconds} s?)"
    return done.stderr.strip().splitlines()[-1][:160] if done.returncode else json.loads(done.stdout.splitlines()[-1])


def rows(kinds: list[str], sizes: list[int], targets: list[str], seconds: int) -> Iterator[str]:
    """Lines of the table."""
    yield (
        "| graph | target | nodes | s | µs a node | s in tools | peak MB | MB of a tool | s to open and run |\n|"
        + "---|" * 9
    )
    for kind in kinds:
        for target in targets:
            for nodes in sizes:
                made = measured(kind, nodes, target, seconds)
                if isinstance(made, str):
                    yield f"| {kind} | {target} | {nodes} | {made} |"
                    break
                yield (
                    f"| {kind} | {target} | {nodes} | {made['own']:.2f} | {1e6 * made['own'] / nodes:.0f} | {made['tools']:.2f} "
                    f"| {made['peak']:.0f} | {made['child']:.0f} | {made['run']:.2f} |"
                )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--nodes", default="500,2000,5000,10000,20000")
    parser.add_argument("--targets", default="interp,cpu-jit,cpu")
    parser.add_argument("--seconds", type=int, default=600, help="of processor time for one build")
    args = parser.parse_args()
    sizes = [int(n) for n in args.nodes.split(",")]
    for line in rows(args.kinds.split(","), sizes, args.targets.split(","), args.seconds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
