"""A process that opens a model and runs it once: when the first result was there, and what memory the process ever took.

`first_run.py RUNTIME MODEL INPUTS.npz THREADS` prints JSON; `bench/speed.py` starts it once for each runtime, so that the start of
Python, imports and the opening of the model count. For `occ` the model is an artifact.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _occ(model: str, inputs: Mapping[str, Any], threads: int) -> None:
    from occ.loading import load

    load(model, threads).run(inputs)


def _onnxruntime(model: str, inputs: Mapping[str, Any], threads: int) -> None:
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, dict(inputs))


def _openvino(model: str, inputs: Mapping[str, Any], threads: int) -> None:
    import openvino  # pyright: ignore[reportMissingImports] - only for the comparison

    # As `occ bench` has it.
    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }  # fmt: skip
    compiled: Any = openvino.Core().compile_model(model, "CPU", settings)
    ports = {n: next(p for p in compiled.inputs if n in p.get_names()) for n in inputs}
    compiled.create_infer_request().infer({ports[n]: openvino.Tensor(a) for n, a in inputs.items()})


RUNTIMES = {"occ": _occ, "onnxruntime": _onnxruntime, "openvino": _openvino}


def main() -> None:
    """Run once and print `at`, on the clock that all processes share, `cpu_s` of all threads, and `peak_mb`."""
    import numpy as np

    runtime, model, inputs, threads = sys.argv[1:]
    with np.load(inputs, allow_pickle=False) as archive:
        given = {name: np.ascontiguousarray(archive[name]).reshape(archive[name].shape) for name in archive.files}
    RUNTIMES[runtime](model, given, int(threads))
    print(json.dumps({"at": time.monotonic(), "cpu_s": time.process_time(), "peak_mb": _peak()}))


def _peak() -> float:
    """The largest memory of this program, MB; `ru_maxrss` would count that of the process which started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()
