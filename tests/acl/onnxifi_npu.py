"""The compiler of libonnxifi-occ on a machine with an Ascend device, as far as the stand-in goes. Its argument is the command."""

from __future__ import annotations

import os
from pathlib import Path

from ascend_standin import Standin
from test_whole_path import simulate, simulate_operator

from occ.compiler.onnxifi.server import main

standin = Standin(Path(os.environ["OCC_ASCENDCL"]))
standin.machine("Ascend910B1", devices=1, memory=1 << 30)
standin.fallback, standin.operator = simulate, simulate_operator
main()
