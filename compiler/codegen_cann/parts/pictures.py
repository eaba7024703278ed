"""Inputs that AIPP computes from images: which part reads them, and the artifact's input instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from occ.compiler.codegen_cann.graph.aipp import pictures
from occ.compiler.codegen_cann.graph.formats import FLOATS
from occ.compiler.codegen_cann.graph.graph import Graph
from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.codegen_cann.parts.partition import Part
from occ.compiler.diagnostics import error
from occ.compiler.ir.dtype import U8
from occ.compiler.ir.module import Module
from occ.compiler.ir.types import TensorType


def configuration(part: str) -> str:
    """The name of a part's configuration file, next to its `.air`."""
    return f"{part}.aipp.cfg"


def take_pictures(
    m: Module, parts: Sequence[Part], graphs: Mapping[str, Graph], options: AscendOptions
) -> dict[str, str]:
    """Replace inputs that AIPP computes by the images it reads, in a module whose part graphs exist.

    Args:
        m: the types of such inputs become the pictures'.
        parts: all of it.
        graphs: of the device parts, by name.
        options: of the target.

    Returns:
        The configuration of each part that has one.

    Raises:
        CompileError: OCC0603 the configuration does not match the model, or an input has readers other than one device
            part.
    """
    if not options.aipp:
        return {}
    shapes = {a.name: a.type.static for a in m.main.args if isinstance(a.type, TensorType) and a.type.is_static}
    texts: dict[str, str] = {}
    for name, picture in pictures(options.aipp, shapes).items():
        arg = next(a for a in m.main.args if a.name == name)
        readers = [p for p in parts if arg in p.inputs]
        if len(readers) != 1 or not readers[0].on_device or arg in m.main.results:
            what = f"`aipp={options.aipp}`: the input `{name}` is not read by one part on the device alone"
            raise error("OCC0603", what, help="`occ check` says what the CPU runs; build with `-C cpu_fallback=off`")
        graph, rank = graphs[readers[0].name], readers[0].inputs.index(arg)
        node = graph.data[rank]
        if node.outputs[0].dtype not in FLOATS:
            what = f"`aipp={options.aipp}`: the input `{name}` is {node.outputs[0].dtype}, AIPP makes floats"
            raise error("OCC0603", what)
        node.outputs[0] = replace(node.outputs[0], format="NCHW")
        arg.type = TensorType(U8, picture.shape(shapes[name][0]))
        texts[graph.name] = texts.get(graph.name, "") + picture.text(rank)
    return texts
