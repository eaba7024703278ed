"""Artifacts that somebody has changed, digests corrected: they run as before, or OCC0502 says why not. No crash, no traceback."""

from __future__ import annotations

import hashlib
import json
import platform
import random
import re
import shutil
import struct
import subprocess
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import mlp, model_of
from machines import TARGETS, is_here

import occ
from occ.runtime import machine
from occ.runtime.members import LIBRARY, MANIFEST, WEIGHTS

X = np.ones((3, 8), np.float32)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tampered") / "m.occ"
    occ.build(mlp(), "cpu-jit", out=str(path))
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as z:
        return {n: z.read(n) for n in z.namelist()}


def write(path: Path, parts: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """An artifact of members, whose digests are right."""
    made = dict(parts)
    try:
        manifest = json.loads(made[MANIFEST])
        manifest["digests"] = {n: hashlib.sha256(d).hexdigest() for n, d in made.items() if n != MANIFEST}
        made[MANIFEST] = json.dumps(manifest).encode()
    except (ValueError, RecursionError, TypeError):
        pass
    with zipfile.ZipFile(path, "w", method) as z:
        for name, data in made.items():
            z.writestr(name, data)
    return path


def refused(path: Path, said: str = "") -> None:
    with pytest.raises(occ.RunError) as found:
        occ.load(path)
    assert "OCC0502" in str(found.value)
    assert said in str(found.value)


def opened_or_refused(path: Path) -> Any:
    """A session, or None where OCC0502 says that there is none."""
    try:
        return occ.load(path)
    except occ.RunError as e:
        if "OCC0502" not in str(e):
            raise
        return None


def numbers(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of the numbers in JSON data."""
    if isinstance(value, (dict, list)):
        for k, v in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(v, (*at, k))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield at


def test_numbers_of_the_manifest(artifact: Path, tmp_path: Path) -> None:
    parts, rng = members(artifact), random.Random(0)
    expected = occ.load(artifact).run({"x": X})["y"]
    places = [p for p in numbers(json.loads(parts[MANIFEST])) if p[0] != "summary"]
    opened = 0
    for place in rng.sample(places, min(len(places), 150)):
        manifest = json.loads(parts[MANIFEST])
        inner = manifest
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = rng.choice([-1, inner[place[-1]] + 1, 1 << 40, 1 << 70, 0])
        changed = write(tmp_path / "t.occ", {**parts, MANIFEST: json.dumps(manifest).encode()})
        session = opened_or_refused(changed)
        if session is None:
            continue
        opened += 1
        np.testing.assert_array_equal(session.run({"x": X})["y"], expected)
    assert opened < 60


@pytest.mark.parametrize("engine", ["interp", "cpu-jit"])
def test_numbers_where_no_code_knows_them(engine: str, tmp_path: Path) -> None:
    """The plans of `interp`, and of models without native entry, are checked by themselves."""
    model = model_of("g (float[n, 4] x) => (float[m, 2] y) { z = NonZero (x) c = Cast <to = 1> (z) y = Transpose (c) }")
    occ.build(model, engine, out=str(tmp_path / "m.occ"))
    parts, rng = members(tmp_path / "m.occ"), random.Random(1)
    for place in list(numbers(json.loads(parts[MANIFEST])))[:60]:
        manifest = json.loads(parts[MANIFEST])
        inner = manifest
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = rng.choice([-1, 1 << 40, 1 << 70])
        opened_or_refused(write(tmp_path / "t.occ", {**parts, MANIFEST: json.dumps(manifest).encode()}))


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def nested(data: bytes) -> bytes:
    return b'{"a":' * 100_000 + b"1" + b"}" * 100_000


MEMBERS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "a library that is cut off": (LIBRARY, cut, "cut off"),
    "half a header": (LIBRARY, lambda d: d[:40], "cut off"),
    "no library": (LIBRARY, lambda d: b"#!/bin/sh\n" + d, "not a library"),
    "deep JSON": (MANIFEST, nested, "not readable"),
    "no object": (MANIFEST, lambda d: b"[]", "not readable"),
    "not UTF-8": (MANIFEST, lambda d: b"\xff" * 40, "not readable"),
    "weights that are cut off": (WEIGHTS, cut, "cut off"),
}


@pytest.mark.parametrize("case", MEMBERS)
def test_members(artifact: Path, tmp_path: Path, case: str) -> None:
    name, change, said = MEMBERS[case]
    parts = members(artifact)
    refused(write(tmp_path / "t.occ", {**parts, name: change(parts[name])}), said)


TEXT = "ir/canonical.occ"
OTHERS: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "digests that are a list": ("cpu-jit", lambda m: m.update(digests=[]), "is not an object"),
    "a function that is a number": ("cpu-jit", lambda m: m.update(functions={"f": 1}), "is not an object"),
    "an engine that is nothing": ("cpu-jit", lambda m: m.update(engine=None), "is not str"),
    "a dim that ends at a word": ("interp", lambda m: m["dims"][0].update(hi="x"), "is not int"),
    "kernels without a library": ("cpu-jit", lambda m: m.update(library=""), "no library"),
    "an output that no plan has": (
        "cpu-jit",
        lambda m: m["outputs"].append(m["outputs"][0]),
        "other inputs or outputs",
    ),
    "an output that no text has": ("interp", lambda m: m["outputs"].append(m["outputs"][0]), "does not fit"),
    "an input that no text has": ("interp", lambda m: m["inputs"].append(m["inputs"][0]), "does not fit"),
    "an input of another type": ("interp", lambda m: m["inputs"][0].update(dtype="i64"), "does not fit"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_number_in_the_manifest(case: str, tmp_path: Path) -> None:
    engine, change, said = OTHERS[case]
    model = model_of("g (float[n, 4] x) => (float[n, 4] y) { y = Neg (x) }")
    occ.build(model, engine, out=str(tmp_path / "m.occ"))
    parts = members(tmp_path / "m.occ")
    manifest = json.loads(parts[MANIFEST])
    change(manifest)
    with zipfile.ZipFile(tmp_path / "t.occ", "w") as z:
        for name, data in {**parts, MANIFEST: json.dumps(manifest).encode()}.items():
            z.writestr(name, data)
    refused(tmp_path / "t.occ", said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda parts: parts.pop(TEXT), "is missing"),
        (lambda parts: parts.update({TEXT: b"\xff"}), "is damaged"),
        (lambda parts: parts.update({TEXT: parts[TEXT].replace(b"\n  func", b"\n  weight @v : f32[3] = ref(0, 12)\n  func", 1)}), "no data"),
    ],
)  # fmt: skip
def test_text_that_is_interpreted(change: Callable[[dict[str, bytes]], Any], said: str, tmp_path: Path) -> None:
    weights = {"w": np.arange(64, dtype=np.float32)}
    occ.build(
        model_of("g (float[64] x) => (float[64] y) { y = Add (x, w) }", weights), "interp", out=str(tmp_path / "m.occ")
    )
    parts = members(tmp_path / "m.occ")
    change(parts)
    with pytest.raises((occ.RunError, occ.CompileError), match=said):
        occ.load(write(tmp_path / "t.occ", parts))


def test_compressed_members_are_not_read(artifact: Path, tmp_path: Path) -> None:
    """A small file that holds a gigabyte is refused before anything is unpacked."""
    parts = {**members(artifact), "src/large": bytes(64 << 20)}
    refused(write(tmp_path / "t.occ", parts, zipfile.ZIP_DEFLATED), "is compressed")


def test_two_members_of_one_name(artifact: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "t.occ", members(artifact))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as z:
        warnings.simplefilter("ignore")
        z.writestr(LIBRARY, b"another")
    refused(path, "two members")


FIELDS = {"flags": 8, "method": 10, "compressed": 20, "size": 24, "name": 28, "extra": 30, "header": 42}


@pytest.mark.parametrize("field", FIELDS)
def test_fields_of_the_zip(artifact: Path, tmp_path: Path, field: str) -> None:
    data = artifact.read_bytes()
    for entry in [m.start() for m in re.finditer(rb"PK\x01\x02", data)]:
        for value in (1, 0x7FFF, 99):
            changed = bytearray(data)
            struct.pack_into("<H", changed, entry + FIELDS[field], value)
            (tmp_path / "t.occ").write_bytes(changed)
            session = opened_or_refused(tmp_path / "t.occ")
            if session is not None:
                session.run({"x": X})


def test_weights_are_verified_on_request(artifact: Path, tmp_path: Path) -> None:
    data = bytearray(artifact.read_bytes())
    at = data.index(members(artifact)[WEIGHTS][:64])
    data[at + 5] ^= 1
    (tmp_path / "t.occ").write_bytes(data)
    occ.load(tmp_path / "t.occ")
    with pytest.raises(occ.RunError, match="does not match its digest"):
        occ.load(tmp_path / "t.occ", verify=True)
    occ.load(artifact, verify=True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the tests build for AVX")
@pytest.mark.parametrize("target", ["cpu-jit", pytest.param("cpu", marks=pytest.mark.toolchain)])
def test_a_processor_that_lacks_something(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, occ_cli: Any
) -> None:
    path = tmp_path / "m.occ"
    occ.build(mlp(), target, path, options={"halide.target": TARGETS["x86-64-v3"]})
    if is_here("x86-64-v3"):
        assert machine.missing_feature(occ.load(path).artifact.manifest.machine) == ""
        assert "glibc" in occ_cli("inspect", path).out
    monkeypatch.setattr(machine, "flags", lambda: frozenset({"sse4_1"}))
    refused(path, "a processor with `avx`")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")
def test_the_signature_of_the_documentation(artifact: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/security.md").read_text()
    commands = text.split("```\n", 2)[1].split("```")[0]
    shutil.copy(artifact, tmp_path / "model.occ")
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, check=True, capture_output=True)
    data = bytearray((tmp_path / "model.occ").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "model.occ").write_bytes(data)
    verify = next(line for line in commands.splitlines() if "verify" in line)
    assert subprocess.run(["bash", "-ec", verify], cwd=tmp_path, check=False, capture_output=True).returncode != 0
