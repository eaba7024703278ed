"""libocc refuses what it cannot run and what is damaged, with a code and a text; nothing crashes."""

from __future__ import annotations

import ctypes
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import mlp, model_of
from c_library import (
    ARGUMENT,
    DAMAGED,
    FILE,
    INPUT,
    OK,
    RUN,
    UNSUPPORTED,
    Failed,
    Model,
    error_text,
    library,
    two_tensors,
)

import occ

pytestmark = pytest.mark.toolchain
RNG = np.random.default_rng(0)


BAD_INPUTS: dict[str, tuple[int, Any, str]] = {
    "rank": (INPUT, {"rank": 1}, "the input `x` has rank 1, the model takes 2"),
    "extent": (INPUT, {"extents": (3, 7)}, "axis 1 of the input `x` is 7, the model takes 8"),
    "type": (INPUT, {"dtype": 8}, "the input `x` is i64, the model takes f32"),
    "no type": (INPUT, {"dtype": 99}, "the input `x` is no element type, the model takes f32"),
    "bytes": (INPUT, {"bytes": 95}, "the input `x` has 95 bytes, its extents need 96"),
    "negative": (INPUT, {"extents": (-1, 8)}, "the input `x` has impossible extents"),
    "huge": (INPUT, {"extents": (2**62, 8)}, "the input `x` has impossible extents"),
    "null": (ARGUMENT, {"data": None}, "the data of the input `x` are null"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_inputs_that_do_not_fit(case: str, built: Any):
    code, wrong, said = BAD_INPUTS[case]
    with Model(built(mlp())) as m:
        inputs, outputs = two_tensors(np.ones((3, 8), np.float32))
        for name, value in wrong.items():
            setattr(inputs[0], name, (ctypes.c_int64 * 16)(*value) if name == "extents" else value)
        with pytest.raises(Failed, match=re.escape(said)) as caught:
            m.check(library().occ_run(m.address, inputs, 1, outputs, 1))
        assert caught.value.code == code
        assert not outputs[0].data


def test_null_pointers_and_wrong_counts(built: Any):
    dll = library()
    inputs, outputs = two_tensors(np.ones((3, 8), np.float32))
    with Model(built(mlp())) as m:
        a = m.address
        for args in ((None, inputs, 1, outputs, 1), (a, None, 1, outputs, 1), (a, inputs, 1, None, 1)):
            assert dll.occ_run(*args) == ARGUMENT
            assert dll.occ_output_extents(*args) == ARGUMENT
        assert dll.occ_run(a, inputs, 0, outputs, 1) == ARGUMENT
        assert error_text(a) == f"`{dll.occ_name(a).decode()}` has 1 inputs and 1 outputs, not 0 and 1"
        assert dll.occ_set_threads(a, 0) == ARGUMENT
    assert [dll.occ_set_threads(None, 1), dll.occ_set_parallel(None, None, None), dll.occ_verify(None)] == [
        ARGUMENT
    ] * 3
    handle = ctypes.c_void_p(1)
    assert dll.occ_open(None, ctypes.byref(handle)) == ARGUMENT
    assert not handle.value
    assert [dll.occ_open(b"x", None), dll.occ_open_memory(None, 5, ctypes.byref(handle))] == [ARGUMENT] * 2
    assert [dll.occ_inputs(None), dll.occ_outputs(None), dll.occ_name(None)] == [0, 0, b""]
    assert not dll.occ_input(None, 0)
    dll.occ_close(None)
    dll.occ_free(None)


SUM = "g (float[n, m] x, float[k, j] v) => (float[i] y) { r = Reshape(x, flat) s = Reshape(v, flat) [culprit] y = Add(r, s) }"
FAILING: dict[str, tuple[str, tuple[np.ndarray, np.ndarray], int, str]] = {
    "check": (
        "g (float[4] x, int64[n] i) => (float[n] y) { [culprit] y = Gather(x, i) }",
        (np.ones(4, np.float32), np.array([1, 4])), RUN, "culprit",
    ),
    "extent": (
        "g (int64 n, int64 s) => (int64[m] y) { [culprit] y = Range(s, n, s) }", (np.array(2**40), np.array(1)), RUN,
        "node `culprit`.* require an extent of 1099511627775",
    ),
    "fraction": (
        "g (float n, float s) => (float[m] y) { [culprit] y = Range(s, n, s) }",
        (np.array(2**40, np.float32), np.array(8, np.float32)), RUN,
        "node `culprit`.* require an extent of 137438953472",
    ),
    "sizes": (
        SUM, (np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)), INPUT,
        "node `culprit` needs two sizes to be equal, but for these inputs they are not: m\\*n and j\\*k",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILING)
def test_failures_of_a_run_name_the_node(case: str, built: Any):
    text, feed, code, said = FAILING[case]
    model = model_of(text, {"flat": np.array([-1])} if "flat" in text else {})
    with pytest.raises(occ.RunError) as python:
        occ.compile(model, "cpu-jit").run(dict(zip([i.name for i in model.graph.input], feed, strict=True)))
    with Model(built(model)) as m:
        with pytest.raises(Failed, match=said) as caught:
            m.run(*feed)
        assert caught.value.code == code
        assert error_text(m.address + 64) == "", "it was of another model"
    if code == RUN:
        assert re.sub(".*(?=require)", "", str(caught.value)) in str(python.value)


REFUSED = {
    "g (float16[n] x) => (float16[k] y) { [culprit] y = Unique(x) }": "node `culprit`",
    "g (string[n] x) => (string[n] y) { y = Identity(x) }": "`x` is of texts",
}


@pytest.mark.parametrize("target", ["cpu-jit", "cpu"])
@pytest.mark.parametrize("text", REFUSED)
def test_models_that_need_python_are_refused(text: str, target: str, built: Any):
    with pytest.raises(Failed, match=f"only Python can run this model: .*{REFUSED[text]}") as caught:
        Model(built(model_of(text), target))
    assert caught.value.code == UNSUPPORTED


def test_what_is_no_artifact(tmp_path: Path, built: Any):
    said: dict[str, tuple[int, Any]] = {
        "No such file": (FILE, tmp_path / "missing.occ"),
        "`manifest.json` is missing": (DAMAGED, tmp_path),
        "not an artifact, or damaged": (DAMAGED, b"not a zip at all, but long enough to be one"),
        "has no native code": (UNSUPPORTED, built(mlp(), "interp")),
    }
    for text, (code, source) in said.items():
        with pytest.raises(Failed, match=text) as caught:
            Model(source)
        assert caught.value.code == code
    handle = ctypes.c_void_p()
    read, write = os.pipe()
    assert library().occ_open_fd(read, ctypes.byref(handle)) == FILE
    os.close(read)
    os.close(write)
    assert library().occ_open_fd(read, ctypes.byref(handle)) == FILE


def test_compressed_members_are_refused(tmp_path: Path, built: Any):
    with zipfile.ZipFile(built(mlp())) as z, zipfile.ZipFile(tmp_path / "c.occ", "w", zipfile.ZIP_DEFLATED) as c:
        for name in z.namelist():
            c.writestr(name, z.read(name))
    with pytest.raises(Failed, match="damaged"):
        Model(tmp_path / "c.occ")


@pytest.mark.parametrize("member", ["manifest.json", "kernels/model.so", "weights.bin"])
@pytest.mark.parametrize("how", ["missing", "cut", "changed"])
def test_damaged_folders(member: str, how: str, tmp_path: Path):
    occ.build(mlp(), "cpu-jit", out=str(tmp_path / "m.occ"), folder=True)
    path = tmp_path / "m.occ" / member
    data = path.read_bytes()
    at = data.index(b'"producer":"occ') + 12 if (member, how) == ("manifest.json", "changed") else len(data) // 2
    path.write_bytes(data[:at] if how == "cut" else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    if how == "missing":
        path.unlink()
    expected = (
        OK if (member, how) == ("manifest.json", "changed") else DAMAGED
    )  # what it says to people is not looked at
    assert outcome(tmp_path / "m.occ") == expected


def outcome(source: Path | bytes) -> int:
    """The code of opening and verifying an artifact."""
    try:
        with Model(source) as m:
            return library().occ_verify(m.address)
    except Failed as e:
        return e.code


def test_no_damage_of_a_zip_goes_unnoticed_or_crashes(built: Any):
    """A changed byte is in what is compared with a digest, in what nothing depends on, or makes the zip unreadable."""
    data, x = built(mlp()).read_bytes(), RNG.random((3, 8), np.float32)
    with Model(data) as m:
        want = m.run(x)[0]
    rng, codes = np.random.default_rng(1), []
    ends = np.concatenate([np.arange(len(data) - 900, len(data)), rng.integers(0, len(data), 400)])
    spoilt = [data[: int(n)] for n in ends[::3]]
    for at in ends:
        changed = bytearray(data)
        changed[int(at)] ^= 1 << int(rng.integers(8))
        spoilt.append(bytes(changed))
    for bad in spoilt:
        codes.append(outcome(bad))
        if codes[-1] == OK:
            with Model(bad) as m:
                np.testing.assert_array_equal(m.run(x)[0], want)
    assert set(codes) == {OK, DAMAGED}
