"""Calibration of an Ascend build: sample inputs decide which nodes stay FLOAT."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from occ.compiler.codegen_cann.options import AscendOptions
from occ.compiler.diagnostics import Diagnostic, error, shorten
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import deferred_compiler
from occ.compiler.ge_simulator.calibrate import Calibrator, Finding
from occ.runtime.artifact import Artifact
from occ.runtime.dataclass import dataclass
from occ.runtime.open import open_artifact

TOLERANCE = 0.01  # relative to a tensor's largest value: ten times what half precision costs one product


@dataclass(frozen=True)
class Calibration:
    """The result of calibrating on sample inputs.

    Attributes:
        artifact: built with the findings.
        samples: number of samples.
        findings: nodes that overflow, or at which results start to deviate.
    """

    artifact: Artifact
    samples: int
    findings: Sequence[Finding]

    @property
    def kept(self) -> frozenset[str]:
        """Nodes that now stay FLOAT."""
        return frozenset(name for f in self.findings for name in f.kept)

    def warnings(self) -> list[Diagnostic]:
        """One for each node that still loses precision."""
        made: list[Diagnostic] = []
        for f in self.findings:
            if not f.remains:
                continue
            what = f"reaches {f.after.largest:.3g}, half precision ends at 65504" if f.after.overflows else _deviates(f)
            text = f"`{shorten(f.node, 60)}` ({f.operator}) {what}"
            remedy = (
                "another `-C precision_mode_v2` or `ascend910b` computes it in fp32; the model could scale its values"
            )
            made.append(Diagnostic("OCC0307", text, f.part, helps=(remedy,), severity="warning"))
        return made

    def table(self) -> list[str]:
        """A line for each finding."""
        made = [f"{self.samples} samples, {len(self.kept)} nodes kept in FLOAT"]
        for f in self.findings:
            why = f"reaches {f.before.largest:.3g}" if f.before.overflows else f"off by {f.before.error:.1e}"
            now = "still overflows" if f.after.overflows else f"{f.after.error:.1e} now"
            made.append(f"{shorten(f.node, 40)} ({f.operator}) {why}, {now}, {len(f.kept)} kept")
        return made


def _deviates(f: Finding) -> str:
    if math.isfinite(f.after.smallest):
        what = f"has a tensor whose largest value is {f.after.smallest:.1e}, and half precision ends at 6e-08"
        return f"{what}: it is off by {f.after.error:.1e} of its largest value, and no kernel of the chip helps"
    return f"is off by {f.after.error:.1e} of its largest value in this precision mode, and no kernel of the chip helps"


def calibrate(compilation: Compilation, samples: Sequence[Mapping[str, Any]]) -> Calibration:
    """Build for an Ascend target, keeping in FLOAT what the samples show to overflow or deviate by over `TOLERANCE`.

    Args:
        compilation: not yet built.
        samples: inputs by name, one mapping per run.

    Raises:
        CompileError: OCC0603 the target is not an Ascend one, or there is no sample; or it does not compile.
        RunError: a sample does not match the inputs, or the simulator rejects the graph.
    """
    options = compilation.options
    if not isinstance(options, AscendOptions):
        remedy = "`-t ascend310p` and the other Ascend targets have precision modes"
        raise error("OCC0603", f"calibration is not for target `{compilation.target.name}`", help=remedy)
    if not samples:
        raise error("OCC0603", "calibration needs at least one sample", help="pass the inputs of a typical run")
    artifact, device = compilation.artifact(), Calibrator()
    with open_artifact(
        artifact, 1, run_deferred=deferred_compiler([compilation.extensions.registry]), device=device
    ) as s:
        for sample in samples:
            s.run(dict(sample))
    findings = [f for part in device.parts for f in part.search(TOLERANCE)]
    made = Calibration(artifact, len(samples), findings)
    if not made.kept:
        return made
    compilation.options = replace(options, calibrated=made.kept)
    return replace(made, artifact=compilation.artifact())
