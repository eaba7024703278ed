"""Dumps of a device, written here as its format says, compared with the simulator by `occ diff --dump`."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from building import model_of
from simulating import built

from occ.compiler.ge_simulator.dump_files import dumps

RNG = np.random.default_rng(67)
W = RNG.standard_normal((5, 3, 3, 3), dtype=np.float32)
MODEL = "g (float[1, 3, 6, 6] x) => (float[1, 5, 6, 6] y) { c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Sigmoid (c) }"
TYPES = {np.dtype(np.float32): 1, np.dtype(np.float16): 2, np.dtype(np.int8): 3, np.dtype(np.int32): 7}


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def shape(dims: tuple[int, ...]) -> bytes:
    return field(1, b"".join(map(varint, dims)))


def dump(
    folder: Path, kind: str, name: str, x: np.ndarray, whole: tuple[int, ...], layout: int = 2, given: bytes = b"abc"
) -> Path:
    """A file as a device writes it, of one input and one output."""
    output = (
        field(1, TYPES[x.dtype])
        + field(2, layout)
        + field(3, shape(x.shape))
        + field(6, x.nbytes)
        + field(7, shape(whole))
    )
    header = (
        field(1, b"2.0")
        + field(2, 1234567)
        + field(3, output)
        + field(4, field(1, 3) + field(5, len(given)))
        + field(6, name.encode())
    )
    path = folder / f"{kind}.{name.replace('/', '_')}.3.1.1700000000000000"
    path.write_bytes(struct.pack("<Q", len(header)) + header + given + x.tobytes())
    return path


def blocked(x: np.ndarray, c0: int = 16) -> np.ndarray:
    """NCHW as NC1HWC0."""
    n, c, h, w = x.shape
    wide = np.zeros((n, -(-c // c0) * c0, h, w), x.dtype)
    wide[:, :c] = x
    return np.ascontiguousarray(wide.reshape(n, -1, c0, h, w).transpose(0, 1, 3, 4, 2))


def fractal(x: np.ndarray) -> np.ndarray:
    """A matrix as FRACTAL_NZ."""
    m, n = (-(-d // 16) for d in x.shape)
    wide = np.zeros((m * 16, n * 16), x.dtype)
    wide[: x.shape[0], : x.shape[1]] = x
    return np.ascontiguousarray(wide.reshape(m, 16, n, 16).transpose(2, 0, 1, 3))


def test_formats_of_kernels_are_read_back(tmp_path: Path):
    picture, matrix = (
        RNG.standard_normal((1, 5, 4, 3)).astype(np.float16),
        RNG.standard_normal((20, 7), dtype=np.float32),
    )
    dump(tmp_path, "Conv2D", "a/b", blocked(picture), picture.shape, 3)
    (tmp_path / "deeper").mkdir()
    dump(tmp_path / "deeper", "MatMulV2", "m", fractal(matrix), matrix.shape, 29)
    dump(tmp_path, "Other", "z", np.zeros((4, 4), np.int32), (4, 4), 4)
    (tmp_path / "Add.x.1.1.17").write_bytes(b"\xff" * 40)
    found, refused = dumps(tmp_path)
    by_name = {d.name: d for d in found}
    np.testing.assert_array_equal(by_name["a/b"].outputs[0], picture)
    np.testing.assert_array_equal(by_name["m"].outputs[0], matrix)
    assert by_name["z"].outputs == (None,)
    assert refused == ["Add.x.1.1.17: its header is not within the file"]


@pytest.fixture
def case(tmp_path: Path):
    """An artifact, its input, a folder with a dump of both operators, and what these are."""
    made = built(model_of(MODEL, {"w": W}), "ascend910b")
    made.save(tmp_path / "m.occ")
    x = RNG.standard_normal((1, 3, 6, 6), dtype=np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    from occ.compiler.ge_simulator.watch import Watcher
    from occ.runtime.open import open_artifact

    watcher = Watcher()
    open_artifact(made, 1, device=watcher).run({"x": x})
    names = {k: v[0] for k, v in watcher.seen.items() if v[0].shape == (1, 5, 6, 6)}
    folder = tmp_path / "dump"
    folder.mkdir()
    return tmp_path, folder, names


def command(root: Path, *more: str) -> list[str]:
    return ["diff", str(root / "m.occ"), "--dump", str(root / "dump"), "--inputs", str(root / "x.npz"), *more]


def test_the_first_operator_that_differs_is_named(case, occ_cli):
    root, folder, names = case
    (conv, a), (sigmoid, b) = names.items()
    dump(folder, "Conv2D", conv, blocked(a.astype(np.float16)), a.shape, 3)
    dump(folder, "TransData", "trans_TransData_1", a, a.shape)
    dump(folder, "Sigmoid", sigmoid, b, b.shape)
    ran = occ_cli(*command(root))
    assert ran.code == 0
    assert "2 of 2 results of operators are within 0.01" in ran.err
    assert "1 operators of the dump are not in the graph" in ran.err
    dump(folder, "Conv2D", conv, a * np.float32(1.5), a.shape)
    ran = occ_cli(*command(root, "--json"))
    assert ran.code == 5
    assert f"DIFFERS  {conv}:0" in occ_cli(*command(root)).out
    assert [json.loads(line)["ok"] for line in ran.out.splitlines()[:2]] == [False, True]


def test_what_cannot_be_compared(case, occ_cli):
    root, folder, _ = case
    ran = occ_cli(*command(root))
    assert ran.code == 2
    assert "has no dump of an operator of the artifact" in " ".join(ran.err.split())
    dump(folder, "Add", "other", np.zeros(3, np.float32), (3,)).write_bytes(struct.pack("<Q", 5) + b"\x1a\x7f123")
    assert "header is cut off" in " ".join(occ_cli(*command(root)).err.split())
    ran = occ_cli("diff", str(root / "m.occ"), "--dump", str(folder))
    assert ran.code == 2
    assert "--inputs FILE.npz" in " ".join(ran.err.split())
