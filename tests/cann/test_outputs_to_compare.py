"""`--outputs` on Ascend: values inside of a device part come out of it, with fixed extents and with gears."""

from __future__ import annotations

import numpy as np
import onnx
from building import mlp, reference
from simulating import worst

from occ.compiler.driver.compilation import Compilation, Settings
from occ.compiler.driver.sessions import open_session
from occ.compiler.frontend.signature import Overrides


def test_values_of_a_device_part_come_out():
    for overrides, options in (
        (Overrides(dims={"n": 3}, outputs=["r", "h"]), {}),
        (Overrides(outputs=["r", "h"]), {"dynamic_batch_size": "2,3"}),
    ):
        model = mlp()
        artifact = Compilation(model, Settings("ascend910b", overrides, options)).artifact()
        (part,) = artifact.manifest.parts
        assert {t.name for t in part.outputs} == {"y", "r", "h"}
        x = {"x": np.random.default_rng(0).standard_normal((3, 8), dtype=np.float32)}
        made = open_session(artifact, 1, simulate=True).run(x)
        assert list(made) == ["y", "r", "h"]
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in ("r", "h"))
        assert worst(list(made.values()), reference(model, x)) < 1e-6
