"""Dynamo graphs with parameters as constants, and sizes computed from tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from occ.runtime.dataclass import dataclass
from occ.torch.library import torch_module


@dataclass(frozen=True)
class Frozen:
    """A graph with only tensors as inputs.

    Attributes:
        module: takes the tensors of `tensors`, and returns each computed result once.
        static: positions of inputs that are now constants.
        tensors: positions of the remaining inputs.
        dynamic: of each of these, the axes with symbolic extents.
        results: the source of each result of the graph: a result of `module` by position, an input, or a constant.
        computes: whether there is anything to compute.
    """

    module: Any
    static: tuple[int, ...]
    tensors: tuple[int, ...]
    dynamic: tuple[tuple[int, ...], ...]
    results: tuple[tuple[str, Any], ...]
    computes: bool


def freeze(gm: Any, inputs: Sequence[Any]) -> Frozen:
    """A frozen copy of a graph; `inputs` are example arguments.

    Raises:
        ValueError: a size is an input that no tensor has, or a result is a size.
    """
    torch = torch_module()

    graph = deepcopy(gm.graph)
    places = [n for n in graph.nodes if n.op == "placeholder"]
    kinds = [_kind(e) for e in inputs]
    made = torch.fx.GraphModule(gm, graph)
    for k, node in enumerate(places):
        if kinds[k] == "static":
            value: Any = inputs[k].detach()
            made.register_buffer(f"occ_constant_{k}", value)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(f"occ_constant_{k}"))
    tensors = [k for k, kind in enumerate(kinds) if kind == "tensor"]
    _replace_sizes(graph, places, kinds, tensors)
    results = _results(graph, places)
    for k, node in enumerate(places):
        if kinds[k] != "tensor":
            graph.erase_node(node)
    graph.lint()
    made.recompile()
    dynamic = tuple(_symbolic_axes(_example(places[k], inputs[k])) for k in tensors)
    computed = next(n for n in graph.nodes if n.op == "output").args[0]
    return Frozen(
        made, tuple(k for k, s in enumerate(kinds) if s == "static"), tuple(tensors), dynamic, results, bool(computed)
    )


def constant_numbers(gm: Any) -> tuple[int, ...]:
    """Positions of scalar arguments that affect more than values, such as a norm's epsilon.

    Dynamo makes them inputs if it assumes nothing fixed (`dynamic=True`, or a number that changes between calls), but
    the exporter must know them: they must be positive, or are attributes of an operator. A number that is only added to
    or multiplied with tensors stays an input. A size that no tensor has, such as one from before a graph break, is such
    a number too.
    """
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    sizes = {str(d) for n in places for d in getattr(n.meta.get("example_value"), "shape", ())}
    return tuple(
        k
        for k, n in enumerate(places)
        if (_is_number(n) and not all(map(_computes, n.users)))
        or (_is_size(n) and str(n.meta["example_value"]) not in sizes)
    )


def _is_size(node: Any) -> bool:
    return bool(node.users) and isinstance(node.meta.get("example_value"), torch_module().SymInt)


def _is_number(node: Any) -> bool:
    """Whether a placeholder is a number that Dynamo passes as a rank-0 tensor."""
    passed = getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
    return (
        bool(passed) and bool(node.users) and all(u.op == "call_method" and str(u.target) == "item" for u in node.users)
    )


def _computes(item: Any) -> bool:
    """Whether a number, and everything derived from it, only enters into arithmetic."""
    torch = torch_module()

    for user in item.users:
        if user.op != "call_function" or getattr(user.target, "__module__", "") != "_operator":
            return False
        if isinstance(user.meta.get("example_value"), torch.SymFloat) and not _computes(user):
            return False
    return True


def with_constants(gm: Any, values: Mapping[int, float]) -> Any:
    """A copy of a graph with the numbers at some positions replaced by values."""
    torch = torch_module()

    graph = deepcopy(gm.graph)
    places = [n for n in graph.nodes if n.op == "placeholder"]
    for k, value in values.items():
        for node in [places[k]] if _is_size(places[k]) else list(places[k].users):
            with graph.inserting_after(places[-1]):
                node.replace_all_uses_with(graph.call_function(type(value), (value,)))
            if node is not places[k]:
                graph.erase_node(node)
    return torch.fx.GraphModule(gm, graph)


def _kind(example: Any) -> str:
    """The kind of an input: `static` (a parameter or buffer), `tensor`, or `size`."""
    torch = torch_module()

    if not isinstance(example, torch.Tensor):
        return "size"
    held = isinstance(example, torch.nn.Parameter) or getattr(example, "_dynamo_static_input_type", None)
    return "static" if held else "tensor"


def _example(node: Any, value: Any) -> Any:
    """Dynamo's example of an input, with symbolic extents."""
    return node.meta.get("example_value", value)


def _symbolic_axes(example: Any) -> tuple[int, ...]:
    torch = torch_module()

    return tuple(k for k, d in enumerate(example.shape) if isinstance(d, torch.SymInt))


def _replace_sizes(graph: Any, places: Sequence[Any], kinds: Sequence[str], tensors: Sequence[int]) -> None:
    """Replace input sizes by reads from a tensor that has them."""
    torch = torch_module()

    last = places[-1] if places else None
    for k, node in enumerate(places):
        if kinds[k] != "size" or not node.users:
            continue
        wanted = str(node.meta.get("example_value"))
        found = next(
            ((t, d) for t in tensors for d, n in enumerate(_example(places[t], None).shape) if str(n) == wanted), None
        )
        if found is None:
            raise ValueError(f"the size `{wanted}` is an input that no tensor has")
        with graph.inserting_after(last):
            node.replace_all_uses_with(graph.call_function(torch.ops.aten.sym_size.int, (places[found[0]], found[1])))


def _results(graph: Any, places: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """Make the graph return each computed tensor once; returns the source of each of its results."""
    torch = torch_module()

    output = next(n for n in graph.nodes if n.op == "output")
    computed: list[Any] = []
    results: list[tuple[str, Any]] = []
    for value in output.args[0]:
        if not isinstance(value, torch.fx.Node):
            results.append(("constant", value))
        elif value in places:
            results.append(("input", places.index(value)))
        else:
            if isinstance(value.meta.get("example_value"), (torch.SymInt, int)):
                raise ValueError("a result is a size")  # noqa: TRY004 - it is not an argument of ours
            if value not in computed:
                computed.append(value)
            results.append(("result", computed.index(value)))
    output.args = (tuple(computed),)
    return tuple(results)
