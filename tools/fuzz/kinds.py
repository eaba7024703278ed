"""Kinds of files for the fuzzer of files: models, texts, artifacts and inputs, how they are changed, and what uses them."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from onnx import ModelProto

from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import parsed
from occ.compiler.ir.printer import module_text
from occ.compiler.ir.stages import ORDER
from occ.runtime.artifact import LIBRARY, Artifact
from tools.fuzz import mutate
from tools.fuzz.generate import Case, generate
from tools.fuzz.patterns import MAKERS
from tools.fuzz.profiles import PROFILES

Try = Callable[[Path], None]  # uses the files in a folder
NODES = 5  # most of them in a graph: a case should cost a millisecond or two
WHOLE = 0.25  # of the files that are taken go through all passes; the others stop after a stage
VERIFIED = 8  # one seed in this many checks modules after each pass


@dataclass
class Attempt:
    """A changed file, and what uses it.

    Attributes:
        data: the file, for the record of a failure.
        use: writes and uses it, in a folder of its own.
        codes: of diagnostics that it may not see. For a text OCC0902 is how verification refuses it.
    """

    data: bytes
    use: Try
    codes: tuple[str, ...] = ("OCC0901", "OCC0902")


def small(seed: int, profile: str = "") -> Case:
    """A small random model."""
    name = profile or list(PROFILES)[seed % len(PROFILES)]
    return generate(seed, name, replace(PROFILES[name], nodes=NODES), MAKERS)


def _advance(model: Any, target: str, part: float, *, verify: bool) -> None:
    """Compile a part of the way: to the last stage below `WHOLE`, else to any."""
    compilation = Compilation(model, Settings(target, cache=False, verify=verify))
    before = ORDER[compilation.module.stage]
    stages = sorted((s for s in compilation.pipeline if ORDER[s] > before), key=ORDER.__getitem__)
    if stages:
        compilation.advance(stages[-1] if part < WHOLE else stages[int((part - WHOLE) / (1 - WHOLE) * len(stages))])


def models(rng: Generator, seed: int) -> Iterator[Attempt]:
    """ONNX files: changed messages, and changed bytes."""
    case = small(seed)
    target = mutate.choose(rng, ("interp", "cpu-jit", "cpu"))
    while True:
        made = ModelProto()
        made.CopyFrom(case.model)
        mutate.message(rng, made)
        data = made.SerializeToString()
        if rng.random() < 0.3:
            data = mutate.blob(rng, data)
        part = rng.random()
        yield Attempt(data, lambda _, d=data, p=part: _advance(d, target, p, verify=seed % VERIFIED == 0))


def external(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Models with external data: changed references."""
    case = small(seed, "products")
    words = [
        *mutate.STRINGS,
        "../m.data",
        "m.data",
        "m.onnx",
        "/dev/zero",
        "/proc/self/mem",
        "link",
        "sub/../m.data",
        ".",
    ]
    while True:
        made = ModelProto()
        made.CopyFrom(case.model)
        data = b"".join(t.raw_data for t in made.graph.initializer)
        onnx.external_data_helper.convert_model_to_external_data(made, location="m.data", size_threshold=0)
        for t in made.graph.initializer:
            onnx.external_data_helper.set_external_data(t, "m.data", offset=0, length=len(t.raw_data))
            t.data_location = onnx.TensorProto.EXTERNAL
            t.ClearField("raw_data")
            if rng.random() < 0.6:
                entry = mutate.choose(rng, t.external_data)
                entry.value = (
                    mutate.choose(rng, words) if rng.random() < 0.5 else str(mutate.choose(rng, mutate.INTEGERS))
                )
            if rng.random() < 0.2:
                mutate.message(rng, t)
        yield Attempt(made.SerializeToString(), lambda d, m=made, data=data, p=rng.random(): _external(d, m, data, p))


def _external(folder: Path, m: ModelProto, data: bytes, part: float) -> None:
    (folder / "m.data").write_bytes(data)
    (folder / "link").symlink_to("link")
    (folder / "m.onnx").write_bytes(m.SerializeToString())
    _advance(folder / "m.onnx", "interp", part, verify=False)


def texts(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Texts of every stage."""
    target = mutate.choose(rng, ("cpu-jit", "cpu"))
    verify = seed % VERIFIED == 0
    codes = ("OCC0901",)
    known = list(_stages(seed, target, ORDER))
    while known:
        text = mutate.text(rng, mutate.choose(rng, known))
        yield Attempt(
            text.encode("utf-8", "replace"), lambda _, t=text, p=rng.random(): _text(t, target, p, verify), codes
        )


def _stages(seed: int, target: str, stages: Iterable[str]) -> Iterator[str]:
    case = small(seed)
    for stage in stages:
        try:
            text = module_text(Compilation(case.model, Settings(target, cache=False)).advance(stage), inline=True)
        except CompileError:
            continue
        if len(text) < 6_000:
            yield text


def _text(text: str, target: str, part: float, verify: bool) -> None:
    m = parsed(text)
    _advance(m, m.target or target, part, verify=verify)


def plans(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Texts of the last stage with other numbers, to native code that runs: what the plan says decides where it writes."""
    case = small(seed)
    for whole in _stages(seed, "cpu-jit", ["lowered"]):
        while True:
            text = mutate.numbers(rng, whole)
            yield Attempt(text.encode("utf-8", "replace"), lambda _, t=text: _plan(t, case), ("OCC0901",))


def _plan(text: str, case: Case) -> None:
    made = Compilation(parsed(text), Settings("cpu-jit", cache=False)).artifact()
    _feed(made, case)


def _built(seed: int) -> tuple[Case, dict[str, bytes], Artifact]:
    """A small artifact with native code, and one that is interpreted now and then. It has no Loop: changed data are trip counts too."""
    for k in range(seed, seed + 50):
        case = small(k * 7 + 3)
        if any(n.op_type == "Loop" for n in case.model.graph.node):
            continue
        try:
            made = Compilation(case.model, Settings("interp" if seed % 4 == 0 else "cpu-jit", cache=False)).artifact()
            return case, made.members(), made
        except CompileError:
            continue
    raise AssertionError("no seed builds")


def manifests(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts with a changed manifest."""
    case, whole, _ = _built(seed)
    source = whole["manifest.json"].decode()
    while True:
        text = json.dumps(mutate.tree(rng, json.loads(source))) if rng.random() < 0.85 else mutate.text(rng, source)
        if rng.random() < 0.002:
            text = mutate.choose(rng, ("[", '{"a":')) * 100_000
        changed = whole | {"manifest.json": text.encode("utf-8", "replace")}
        yield Attempt(changed["manifest.json"], lambda d, c=changed: _run(d, _zip(c), case))


def zips(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts with changed bytes, names, or members."""
    case, whole, _ = _built(seed)
    while True:
        changed = dict(whole)
        kind = int(rng.integers(5))
        name = mutate.choose(rng, list(changed))
        if kind == 0:
            del changed[name]
        elif kind == 1:
            changed[name] = mutate.blob(rng, changed[name])
        elif kind == 2:
            changed[mutate.choose(rng, (*mutate.STRINGS, "a/../../b", "a\\b", name + "/", "C:x"))] = b"x"
        data = _zip(changed, mutate.choose(rng, (zipfile.ZIP_STORED,) * 4 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)))
        if kind >= 3:
            tail = max(len(data) - 600, 0)  # where the directory is
            data = data[:tail] + mutate.blob(rng, data[tail:]) if rng.random() < 0.7 else mutate.blob(rng, data)
        yield Attempt(data, lambda d, data=data: _run(d, data, case))


def members(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts of which a member that is not native code was changed, and its digest with it."""
    case, whole, _ = _built(seed - seed % 4)
    names = [n for n in whole if n not in ("manifest.json", LIBRARY)]
    while names:
        name = mutate.choose(rng, names)
        old = whole[name]
        data = (
            mutate.text(rng, old.decode()).encode("utf-8", "replace")
            if name.endswith(".occ")
            else mutate.blob(rng, old)
        )
        digests = [hashlib.sha256(d).hexdigest().encode() for d in (old, data)]
        changed = whole | {name: data, "manifest.json": whole["manifest.json"].replace(*digests)}
        yield Attempt(data, lambda d, c=changed: _run(d, _zip(c), case), ("OCC0901",))


def libraries(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Artifacts whose library was changed, its digest as it was: nothing of it may be loaded."""
    case, whole, _ = _built(seed | 1)
    while LIBRARY in whole:
        code = mutate.blob(rng, whole[LIBRARY])
        if code != whole[LIBRARY]:
            yield Attempt(code, lambda d, c=code: _refused(lambda: _run(d, _zip(whole | {LIBRARY: c}), case)))


def inputs(rng: Generator, seed: int) -> Iterator[Attempt]:
    """Files of arrays that were changed, for a run on the command line."""
    from occ.inputs import arrays_of

    case, _, artifact = _built(seed)
    session = open_session(artifact, 1)
    whole = {f"{name}.npy": _npy(x) for name, x in case.feeds.items()}
    while True:
        kind = int(rng.integers(4))
        if kind == 0 or (kind == 1 and not whole):
            data = mutate.blob(rng, _zip(whole))
        elif kind == 1:  # whole as a zip: the change gets to what reads arrays
            name = mutate.choose(rng, list(whole))
            data = _zip(
                whole | {name: mutate.blob(rng, whole[name]) if rng.random() < 0.3 else _header(rng, whole[name])}
            )
        if kind <= 1:
            yield Attempt(data, lambda d, data=data: _inputs(d, data, lambda f: session.run(arrays_of(f))))
        else:
            feeds = {n: _array(rng, x) if rng.random() < 0.5 else x for n, x in case.feeds.items()}
            yield Attempt(_record(feeds), lambda _, f=feeds: session.run(f) and None)


def _npy(x: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, x, allow_pickle=False)
    return buffer.getvalue()


def _header(rng: Generator, npy: bytes) -> bytes:
    """A file of an array with a changed text of its type and shape."""
    end = npy.index(b"\n") + 1  # of the header, which starts after ten bytes
    text = mutate.text(rng, npy[10:end].decode("latin1")).encode("utf-8", "replace")
    return npy[:8] + len(text).to_bytes(2, "little") + text + npy[end:]


def _inputs(folder: Path, data: bytes, use: Callable[[str], Any]) -> None:
    (folder / "x.npz").write_bytes(data)
    use(str(folder / "x.npz"))


def _record(feeds: dict[str, Any]) -> bytes:
    """What shows arrays apart; printing their elements would take longer than running them."""
    arrays = {n: np.asarray(x) for n, x in feeds.items()}
    return b"\n".join(f"{n} {x.dtype} {x.shape} ".encode() + x.tobytes() for n, x in arrays.items())


def _array(rng: Generator, x: np.ndarray) -> Any:
    """An array of another type, shape, order, or alignment."""
    kind = int(rng.integers(7))
    if kind == 0:
        return x.astype(mutate.choose(rng, (np.float64, np.int8, np.bool_, np.complex64, object, ">f4")))
    if kind == 1:
        return x.reshape(-1)
    if kind == 2:
        return np.broadcast_to(x[..., None], (*x.shape, 2))[..., 1]
    if kind == 3:
        return x[::-1] if x.ndim else x.item()
    if kind == 4:
        return np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape) if x.size else None
    if kind == 5:
        return np.asfortranarray(np.repeat(x, 2, -1)) if x.ndim else [[]]
    return mutate.choose(rng, (None, "x", [], x.tolist(), np.zeros((0,) * x.ndim, x.dtype)))


KINDS: dict[str, Callable[[Generator, int], Iterator[Attempt]]] = {
    "models": models, "external": external, "texts": texts, "plans": plans, "manifests": manifests, "zips": zips,
    "members": members, "libraries": libraries, "inputs": inputs,
}  # fmt: skip


def _zip(whole: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as z:
        for name, data in whole.items():
            z.writestr(zipfile.ZipInfo(name or "_"), data, compress_type=how)
    return buffer.getvalue()


def _run(folder: Path, data: bytes, case: Case) -> None:
    path = folder / "a.occ"
    path.write_bytes(data)
    _feed(Artifact.load(path), case)


def _feed(artifact: Artifact, case: Case) -> None:
    session = open_session(artifact, 1)
    try:
        session.run(case.feeds)
    finally:
        session.close()


def _refused(use: Callable[[], None]) -> None:
    use()
    raise AssertionError("a changed library was loaded")
