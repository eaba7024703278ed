"""The compiler of libonnxifi-occ on a machine with an Ascend device, as far as the stand-in goes. Its argument is the command.

OCC_TEST_MEMORY: bytes of the device. OCC_TEST_FAULT: a method of `Devices`, and a call of AscendCL that returns a status while the
method runs for the first time, as in `open aclrtCreateStream 207008`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ascend_standin import Standin
from simulated_device import simulate, simulate_operator

from occ.compiler.onnxifi.devices import Devices
from occ.compiler.onnxifi.server import main

standin = Standin(Path(os.environ["OCC_ASCENDCL"]))
standin.machine("Ascend910B1", devices=1, memory=int(os.environ.get("OCC_TEST_MEMORY", 1 << 30)))
standin.fallback, standin.operator = simulate, simulate_operator
if fault := os.environ.get("OCC_TEST_FAULT", "").split():
    method, name, status = fault
    healthy = getattr(Devices, method)

    def faulty(self: Devices, *args: Any) -> Any:
        setattr(Devices, method, healthy)
        standin.fail(name, standin.count(name) + 1, int(status))
        return healthy(self, *args)

    setattr(Devices, method, faulty)
main()
