"""Makes a failing case small: `occ reduce` on the graph, with onnxruntime or onnx.reference as the oracle of the reduced graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import ModelProto

from occ.compiler.debugging.random_tensors import random_array
from occ.compiler.debugging.shrink import copy_of, reduce
from occ.compiler.debugging.validate import Recorder
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.settings import Settings
from occ.compiler.frontend.export import export
from occ.compiler.ir.module import Module
from tools.fuzz.generate import Case
from tools.fuzz.graphs import WRONG, write
from tools.fuzz.oracle import run_onnxruntime, run_reference
from tools.fuzz.run import Outcome, Runner, outcomes

TEST = '''"""{text}"""

from pathlib import Path

from tools.fuzz.graphs import read
from tools.fuzz.run import Runner, outcomes


def test_{name}() -> None:
    found = list(outcomes(Runner(read(Path(__file__).with_name("{stem}")), options={{"{target}": {options}}}), ["{way}"]))
    assert {{o.kind for o in found}} == {{"same"}}, found
'''


def shrink(case: Case, way: str, options: dict[str, dict[str, str]], folder: Path, tell: Callable[[str], None]) -> Path:
    """Shrink a failing case; returns the stem of the files that were written: .onnx, .npz, and a test in .py.

    Args:
        case: the case.
        way: of running it that fails; see `outcomes`.
        options: of the targets.
        folder: where the files go.
        tell: called with progress.

    Raises:
        ValueError: it does not fail.
    """
    m = Compilation(case.model, Settings("interp", cache=False)).advance("inferred")
    values = _values(m, case)

    def wrong(made: Case) -> list[Outcome]:
        return [o for o in outcomes(Runner(made, options=options), [way]) if o.kind in WRONG]

    def smaller(candidate: Module) -> Case:
        model, feeds = export(candidate), {a.name: _feed(a, values) for a in candidate.main.args}
        return Case(case.seed, case.profile, model, feeds, feeds | _oracle(model, feeds))

    first = wrong(case)
    if not first:
        raise ValueError(f"`{way}` does not fail")

    def fails(candidate: Module) -> bool:
        try:
            found = wrong(smaller(candidate))
        except Exception:
            return False
        return bool(found) and found[0].kind == first[0].kind

    made = smaller(reduce(m, fails, tell)) if fails(copy_of(m)) else case
    found = wrong(made)
    write(made, found, folder)
    stem = folder / f"{case.profile}-{case.seed}"
    target, name = way.split()[0], stem.name.replace("-", "_")
    text = TEST.format(
        text=found[0].text.replace('"', "'")[:100],
        name=name,
        stem=stem.name,
        target=target,
        options=options.get(target, {}),
        way=way,
    )
    stem.with_name(f"test_{name}.py").write_text(text)
    return stem


def _values(m: Module, case: Case) -> dict[str, np.ndarray]:
    """The value of everything in a module, for what becomes an input of smaller ones."""
    recorder = Recorder(m)
    try:
        recorder.run([case.feeds[a.name] for a in m.main.args], {})
    except Exception:
        return dict(case.feeds)
    return case.feeds | {n: x for n, (_, x) in recorder.values.items()}


def _feed(arg, values: dict[str, np.ndarray]) -> np.ndarray:
    name = arg.name.removesuffix(".in")
    if name in values:
        return values[name]
    shape = [d if isinstance(d, int) else 3 for d in arg.tensor.dims]
    return random_array(np.random.default_rng(0), arg.type.dtype.numpy, shape)


def _oracle(model: ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    try:
        return run_onnxruntime(model, feeds)
    except Exception:
        return run_reference(model, feeds)
