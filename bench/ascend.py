"""Models built for an Ascend chip and run on the simulator, compared with onnxruntime: a table and JSON.

`python bench/ascend.py --models DIR... [--inputs DIR]` takes every `.onnx` file in the folders. Inputs are `inputs.npz`
next to the model, or `PACKAGE__NAME.npz` in the folder of inputs; their shapes are what the model is built for. A model
without inputs is left out, and named. Every model is run in a process of its own, so that the next one has the memory.

A difference is the largest one of all outputs, as a part of the largest value of its output. Where a model computes with
8-bit integers, a sum at the border between two steps can round to either side, so that even two builds of onnxruntime
differ by whole steps. For every model, `exact` is the difference from onnxruntime with its graph optimisations off, which
computes what the file says, and `own` is that between onnxruntime with and without them.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
TARGETS = "ascend310,ascend310b,ascend310p,ascend910,ascend910b,ascend910_93"
HEAD = ("model", "device parts", "nodes on the device", "on the CPU")


def main() -> int:
    """Measure the requested models; returns 1 if any of them failed."""
    args = _arguments()
    if args.one:
        print(json.dumps(measure(args.models[0], args.inputs_of, configurations(args.targets, args.modes), args.save)))
        return 0
    results: list[dict[str, Any]] = []
    head = (*HEAD, *(" ".join(c).removesuffix(" default") for c in configurations(args.targets, args.modes)), "remark")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for path in models(args.models):
        inputs = inputs_file(path, args.inputs)
        if args.names and name_of(path) not in args.names:
            continue
        if inputs is None:
            print(f"{name_of(path)}: no inputs", file=sys.stderr)
            continue
        results.append(in_process(path, inputs, args.targets, args.modes, args.save))
        print(row(results[-1], len(head)), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1))
    return int(any("error" in r for r in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models of the folders; all of them by default")
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="folders with models")
    parser.add_argument("--inputs", type=Path, default=None, help="folder with inputs")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument(
        "--modes", default="default", help="values of precision_mode_v2, and `default`: that of the chip"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")
    parser.add_argument("--save", type=Path, default=None, help="keep the artifact of the first chip and mode here")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--inputs-of", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def models(folders: list[Path]) -> list[Path]:
    """The models of some folders, each file once."""
    return sorted({path for folder in folders for path in folder.rglob("*.onnx")}, key=name_of)


def name_of(path: Path) -> str:
    """How a model is called: by its folder, and by its file where that says more."""
    return path.parent.name if (path.parent / "inputs.npz").exists() else f"{path.parent.name}/{path.stem}"


def inputs_file(path: Path, folder: Path | None) -> Path | None:
    """The inputs of a model; None if there are none."""
    named = [folder / f"{path.parent.name}__{path.stem}.npz"] if folder is not None else []
    return next((f for f in (path.parent / "inputs.npz", *named) if f.is_file()), None)


def configurations(targets: str, modes: str) -> list[tuple[str, str]]:
    """Each chip with each mode."""
    return [(target, mode) for target in targets.split(",") for mode in modes.split(",")]


def in_process(
    path: Path, inputs: Path, targets: str, modes: str, save: Path | None = None, seconds: int = 0
) -> dict[str, Any]:
    """The result of `measure` in a separate process; `error` is the reason if there is none.

    With `seconds`, the process is ended after as much CPU time, however busy the machine is.
    """
    flags = ["--models", path, "--inputs-of", inputs, "--targets", targets, "--modes", modes]
    flags += ["--save", save] if save is not None else []
    command = [sys.executable, __file__, "--one", *map(str, flags)]
    if seconds:
        command = ["/bin/sh", "-c", f'ulimit -t {seconds}; exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True)
    if seconds and done.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
        return {"model": name_of(path), "error": f"it took more than {seconds} seconds of CPU time"}
    if done.returncode:
        return {"model": name_of(path), "error": done.stderr.strip()[-600:] or f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def measure(path: Path, inputs: Path, wanted: list[tuple[str, str]], save: Path | None) -> dict[str, Any]:
    """Build a model for each chip and mode, run it on the simulator, and compare."""
    import occ
    from occ.compiler.compare import difference
    from occ.runtime.errors import RunError

    with np.load(inputs, allow_pickle=False) as archive:
        given: Arrays = {name: archive[name] for name in archive.files}
    want, exact = (_onnxruntime(path, given, optimised) for optimised in (True, False))
    made: dict[str, Any] = {"model": name_of(path), "own": _worst(difference, exact, want), "figures": {}}
    for target, mode in wanted:
        options = {"cpu_fallback": "cpu-jit"} | ({} if mode == "default" else {"precision_mode_v2": mode})
        artifact = occ.build(path, target, shapes={n: x.shape for n, x in given.items()}, options=options)
        if "device_parts" not in made:
            summary = artifact.manifest.summary
            made |= {k: summary[k] for k in ("device_parts", "device_ops", "cpu_ops", "cpu_operators")}
            if save is not None:
                artifact.save(save)
        try:
            got = _simulated(artifact, given)
        except RunError as e:
            made["figures"][f"{target} {mode}"] = {"refused": str(e)}
            continue
        figures = {"optimised": _worst(difference, got, want), "exact": _worst(difference, got, exact)}
        made["figures"][f"{target} {mode}"] = figures
    made["seconds"] = time.process_time()
    return made


def _onnxruntime(path: Path, given: Mapping[str, np.ndarray], optimised: bool) -> Arrays:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(given)), strict=True))


def _simulated(artifact: Any, given: Arrays) -> Arrays:
    from occ.compiler.driver.sessions import open_session

    return open_session(artifact, 1, simulate=True).run(given)


def _worst(difference: Any, got: Arrays, want: Arrays) -> float:
    return max(difference(got[name], value) for name, value in want.items())


def row(result: dict[str, Any], width: int) -> str:
    """A line of the table."""
    if "error" in result:
        cells = [result["model"], *["-"] * (width - 2), " ".join(result["error"].split())[-200:]]
    else:
        cells = [result["model"], *(str(result[k]) for k in ("device_parts", "device_ops", "cpu_ops"))]
        cells += [_figure(found) for found in result["figures"].values()]
        cells.append("; ".join(_remarks(result)))
    return f"| {' | '.join(cells)} |"


def _figure(found: dict[str, Any]) -> str:
    return "refused" if "refused" in found else f"{found['optimised']:.1e}"


def _remarks(result: dict[str, Any]) -> Iterator[str]:
    if result["cpu_operators"]:
        yield f"CPU: {', '.join(result['cpu_operators'])}"
    for name, found in result["figures"].items():
        if "refused" in found:
            yield f"{name}: {found['refused']}"
    if result["own"] > 1e-4:
        exact = ", ".join(f"{f['exact']:.1e}" for f in result["figures"].values() if "exact" in f)
        yield f"onnxruntime from itself {result['own']:.1e}, from the exact one {exact}"


if __name__ == "__main__":
    sys.exit(main())
