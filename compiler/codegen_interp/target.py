"""The target `interp`: artifacts that hold the text of a model, which the interpreter runs."""

from __future__ import annotations

from occ.compiler.codegen_interp import TEXT
from occ.compiler.codegen_interp.pipeline import interp
from occ.compiler.ir.module import Module
from occ.compiler.ir.printer import module_text, weight_offsets
from occ.compiler.plan.signature import signature
from occ.compiler.targets.native import InterpOptions
from occ.compiler.targets.target import Build, Generated, Target
from occ.runtime.artifact import Artifact, weight_infos
from occ.runtime.manifest import Manifest, Plan
from occ.runtime.version import occ_version


def _generate(_: Build, m: Module) -> Generated:
    m.target = INTERP.name
    weights = [m.weights[n].data for n in weight_offsets(m)]
    infos = weight_infos(list(weight_offsets(m)), [w.nbytes for w in weights])
    inputs, outputs, dims, constraints = signature(m)
    made = Manifest(
        m.name, INTERP.name, f"occ {occ_version()}", dims, inputs, outputs, constraints, infos,
        Plan([], [], [], [], []),
        engine="interp",
    )  # fmt: skip
    return Generated(Artifact(made, weights, b"", {TEXT: module_text(m, "../weights.bin").encode()}))


INTERP = Target(
    name="interp",
    doc="the numpy oracle: slow, needs nothing",
    pipeline=interp,
    generate=_generate,
    options=InterpOptions(),
)
