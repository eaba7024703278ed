"""The fuzzer of large sizes: graphs whose tensors have up to billions of elements, which are inferred, lowered and planned, never run.

Extents are what onnx.shape_inference says, and onnxruntime where it says any. A second form of each graph has symbols for the extents
of its inputs: what is inferred of that must come to the same numbers. No step may cost more where numbers are larger.
"""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
from onnx import ModelProto

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.ir.dim import Dim, evaluate
from occ.compiler.ir.types import TensorType
from occ.compiler.plan.plan import manifest
from tools.fuzz.campaign import Say
from tools.fuzz.large_graphs import Large, inferred, large
from tools.fuzz.oracle import options

SECONDS = 20  # of a processor for all that is done with one graph; most take half of one
MEMORY = 6 << 30  # bytes that a process may ask for: none may make a tensor of such a graph
INTERNAL = ("OCC0403", "OCC0901", "OCC0902")
# Refusals of such graphs: windows and blocks that do not fit, and more elements than a kernel counts.
EXPECTED = ("OCC0202", "OCC0206", "OCC0309")


def problems(g: Large, refusals: list[str] | None = None) -> list[tuple[str, str]]:
    """What is wrong with what is inferred, lowered and planned of a graph: a kind and a text each.

    Args:
        refusals: receives the codes of errors by which a form of the graph is refused.
    """
    found, ends, began = [], g.ends(), time.process_time()
    known = _known(g.model(ends))
    refused = set[str]()
    for symbolic in (False, True):
        for target in sorted({"cpu", "cpu-jit"} - refused):
            form = f"{target}{' symbolic' if symbolic else ''}"
            try:
                shapes = _planned(g.model(ends, symbolic=symbolic), target)
            except CompileError as e:
                if e.diagnostics[0].code in INTERNAL:
                    found.append((f"{form}: {e.diagnostics[0].code}", str(e)))
                elif e.diagnostics[0].code not in EXPECTED:
                    found.append((f"{form}: refused", str(e)))
                if refusals is not None:
                    refusals.append(e.diagnostics[0].code)
                refused.add(target)  # a window that does not fit, for one: symbols leave that to the run
                continue
            except Exception as e:
                found.append((f"{form}: {type(e).__name__}", "".join(traceback.format_exception(e))[-800:]))
                continue
            sizes = {f"{n}_{k}": s for n in g.inputs for k, s in enumerate(g.shapes[n])}
            for name, shape in shapes.items():
                if (
                    shape is not None
                    and (got := _valued(shape, sizes)) is not None
                    and not _agree(got, known.get(name))
                ):
                    found.append((f"{form}: another shape", f"{name} is {got}, expected {known[name]}"))
    if (spent := time.process_time() - began) > SECONDS:
        found.append(("slow", f"{spent:.1f} s of a processor"))
    return found


def _planned(model: ModelProto, target: str) -> dict[str, tuple[Dim, ...] | None]:
    """The shapes of the outputs; the plan of the model is made, and no kernel."""
    compilation = Compilation(model, Settings(target, cache=False, verify=False))
    m = compilation.advance("inferred")
    shapes = {
        n: r.type.shape if isinstance(r.type, TensorType) else None
        for n, r in zip(m.main.result_names, m.main.results, strict=True)
    }
    manifest(compilation.advance("lowered"), library="", machine="", tasks=None)
    return shapes


def _known(model: ModelProto) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of the outputs by onnx.shape_inference, and by onnxruntime if it makes a session."""
    known = {o.name: [tuple(d.dim_value for d in o.type.tensor_type.shape.dim)] for o in inferred(model).graph.output}
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    except Exception:
        return known
    for o in session.get_outputs():
        if all(isinstance(n, int) for n in o.shape):
            known[o.name].append(tuple(o.shape))
    return known


def _valued(shape: Sequence[Dim], sizes: dict[str, int]) -> tuple[int, ...] | None:
    """A shape at sizes; None where a symbol is none of them."""
    try:
        return tuple(d if isinstance(d, int) else evaluate(d, sizes) for d in shape)
    except KeyError:
        return None


def _agree(got: tuple[int, ...], known: Sequence[tuple[int, ...]] | None) -> bool:
    return not known or got in known


@dataclass
class LargeSizes:
    """Does graphs of large sizes.

    Attributes:
        folder: where failing models are written.
    """

    folder: Path

    def __call__(self, first: int, last: int, say: Say) -> None:
        """Do the graphs of some seeds, and say what came out."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for seed in range(first, last):
            say({"seed": seed})
            g = large(seed)
            refusals: list[str] = []
            found = problems(g, refusals) if g.nodes else []
            if found:
                self.folder.mkdir(parents=True, exist_ok=True)
                onnx.save(g.model(g.ends()), self.folder / f"large-{seed}.onnx")
            say({
                "cases": ["graph"] if g.nodes else [],
                "outcomes": [f"{(found and 'wrong') or (refusals and f'refused {refusals[0]}') or 'right'}: graph"],
                "faults": [(kind, f"large-{seed}", text[:900]) for kind, text in found],
            })  # fmt: skip
