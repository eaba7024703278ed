"""Models of nnsmith, a public fuzzer of deep learning compilers: operators, shapes and types that its authors chose, exported by PyTorch."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from tools.fuzz.generate import Case
from tools.fuzz.graphs import Graphs
from tools.fuzz.inputs import fits_into, is_float
from tools.fuzz.oracle import Reject, names_read, run_node

# In these the place of a NaN decides what onnxruntime does; docs/numerics.md says what occ does.
EXTREMES = frozenset(("ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "MaxPool"))
MILLISECONDS = 10_000  # for the solver of constraints, as nnsmith has it


class Generator:
    """Makes models as `nnsmith.model_gen` does.

    The same seed makes the same graph as long as the solver is in time; weights and inputs for which values are finite are
    searched for 20 ms by gradients, so they may be others on a busy machine.

    Attributes:
        nodes: operators of a model at most.
    """

    def __init__(self, nodes: int, folder: Path) -> None:
        """Find out what can be exported, once for each folder, in which it is kept; that takes a minute.

        Raises:
            ImportError: nnsmith or PyTorch is not installed.
        """
        warnings.filterwarnings("ignore", message="Install pygraphviz")
        import torch
        from nnsmith import narrow_spec
        from nnsmith.abstract.op import Reshape
        from nnsmith.materialize import Model

        self.nodes = nodes
        torch.set_num_threads(1)
        torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)  # nnsmith knows the exporter that traces
        logging.getLogger("dtest").setLevel(logging.ERROR)  # warns of every type that PyTorch does not export
        narrow_spec.NNSMITH_CACHE_DIR = str(folder / "operators")
        self._type: Any = Model.init("onnx", backend_target="cpu")
        self._type.add_seed_setter()
        # The search solves what Reshape requires without that sizes are positive, and fails on those that are not; of one axis, the
        # product of the sizes is that of the input, which is. What is searched for are types.
        axes, Reshape.num_var_param = Reshape.num_var_param, [1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._operators = narrow_spec.auto_opset(self._type, vulops=True)
        Reshape.num_var_param = axes

    def __call__(self, seed: int) -> tuple[ModelProto, dict[str, np.ndarray]]:
        """A model of a seed, and inputs.

        Raises:
            Reject: nnsmith fails, or PyTorch.
        """
        from nnsmith.graph_gen import model_gen

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = model_gen(
                    self._operators, "symbolic-cinit", max_nodes=self.nodes, seed=seed, timeout_ms=MILLISECONDS
                )
                model = self._type.from_gir(made.make_concrete())
                model.refine_weights()
                return model.native_model, model.make_oracle().input
            except Exception as e:
                raise Reject(f"nnsmith: {type(e).__name__}") from e


@dataclass
class Models(Graphs):
    """Does models of nnsmith, each as an artifact of `interp`, by the passes of `cpu`, and as native code of `cpu-jit`.

    Attributes:
        generator: makes a model and inputs from a seed.
    """

    generator: Any = None

    def make(self, seed: int) -> Case:
        model, feeds = self.generator(seed)
        known = values(model, feeds)
        if not is_defined(model, known):
            raise Reject("ONNX leaves open what it computes")
        return Case(seed, "nnsmith", model, feeds, known)

    def ways(self, turn: int) -> list[str]:
        return ["interp", "cpu passes", "cpu-jit"]


def values(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value of a model, node by node, as the fuzzer of graphs knows those of its own.

    Raises:
        Reject: no oracle knows a node.
    """
    known = dict(feeds) | {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        reads = {n: known[n] for n in names_read([node])}
        try:
            found = run_node(node, reads, model.opset_import[0].version)
        except Reject as e:
            raise Reject(f"no oracle knows {node.op_type} of {', '.join(str(x.dtype) for x in reads.values())}") from e
        known |= dict(zip([n for n in node.output if n], found, strict=True))
    return known


def is_defined(model: ModelProto, known: Mapping[str, np.ndarray]) -> bool:
    """Whether ONNX says what a model computes: it leaves open what NaN and numbers out of range are as integers, and which extreme
    there is among NaNs.
    """
    casts = [n for n in model.graph.node if n.op_type == "Cast"]
    extremes = [known[n.input[0]] for n in model.graph.node if n.op_type in EXTREMES]
    has_nan = any(is_float(x.dtype) and np.isnan(x).any() for x in extremes)
    return not has_nan and all(fits_into(known[n.input[0]], known[n.output[0]].dtype) for n in casts)
