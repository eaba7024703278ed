"""Files of other formats that are given as a model: each is named, with the way to ONNX."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import occ
from occ.runtime.file_formats import foreign_file


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def _zip(*names: str, method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as z:
        for name in names:
            z.writestr(name, b"x" * 100)
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as t:
        t.addfile(tarfile.TarInfo("model.onnx"))
    return file.getvalue()


HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
FILES: dict[str, tuple[bytes, str, str]] = {
    "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git-lfs pointer", "git lfs pull"),
    "page.onnx": (b"<!doctype html>\n<html><body>Not found</body></html>", "a web page", "resolve"),
    "page2.onnx": (b"\n<!-- x -->\n<html lang=en>", "a web page", "raw file"),
    "error.onnx": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an XML file", "says why"),
    "ir.xml": (b'<?xml version="1.0"?>\n<net name="m" version="11">', "OpenVINO", "ONNX model"),
    "error2.onnx": (b'{"error":"Invalid username or password."}', "a JSON file", "says why"),
    "model.pkl": (pickle.dumps({"a": 1}), "a pickle", "torch.onnx.export"),
    "old.pt": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "PyTorch", "torch.onnx.export"),
    "new.pt": (_zip("a/data.pkl", "a/version", "a/data/0"), "a PyTorch file", "torch.onnx.export"),
    "net.keras": (_zip("metadata.json", "model.weights.h5", method=8), "Keras", "model.export"),
    "net.h5": (b"\x89HDF\r\n\x1a\n" + bytes(20), "HDF5", "tf2onnx"),
    "net.tflite": (struct.pack("<I", 28) + b"TFL3" + bytes(20), "TFLite", "tf2onnx.convert --tflite net.tflite"),
    "saved.zip": (_zip("m/saved_model.pb", "m/variables/variables.index"), "TensorFlow", "--saved-model"),
    "net.gguf": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "GGUF", "optimum-cli export onnx"),
    "net.safetensors": (struct.pack("<Q", len(HEADER)) + HEADER + bytes(4), "safetensors", "optimum-cli export onnx"),
    "x.npy": (_npy(), "an array of numpy", "--input x.npy"),
    "x.npz": (_npz(a=np.ones(3)), "an .npz file", "--inputs x.npz"),
    "m.onnx.gz": (gzip.compress(b"x"), "a gzip file", "gunzip m.onnx.gz"),
    "m.tar": (_tar(), "a tar file", "tar xf m.tar"),
    "m.zip": (_zip("m/model.onnx", method=8), "a zip with a model", "unzip m.zip"),
    "other.zip": (_zip("readme.txt"), "a zip file, but not an artifact", ".onnx files"),
    "net.plan": (b"ftrt" + bytes(30), "TensorRT", "ONNX model"),
    "a.out": (b"\x7fELF" + bytes(30), "a program", ".onnx files"),
    "dog.jpg": (b"\xff\xd8\xff\xe0" + bytes(30), "a picture", ".onnx files"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "entry", [occ.inspect, occ.load, lambda p: occ.compile(p, "interp")], ids=["inspect", "load", "compile"]
)
def test_a_file_of_another_format_is_named(entry: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    data, what, remedy = FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises((occ.CompileError, occ.RunError)) as e:
        entry(tmp_path / name)
    assert what in str(e.value)
    assert remedy in str(e.value)
    assert str(e.value).startswith(("error[OCC0102]", "error[OCC0109]", "error[OCC0502]"))


@pytest.mark.parametrize("entry", [occ.inspect, lambda p: occ.compile(p, "interp")], ids=["inspect", "compile"])
def test_a_program_of_torch_needs_torch(
    entry: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "net.pt2").write_bytes(_zip("d/models/model.json", "d/archive_format"))
    with pytest.raises(
        occ.CompileError, match=r"OCC0409.*torch.export needs `torch`(?s:.)*pip install torch onnxscript"
    ):
        entry(tmp_path / "net.pt2")


@pytest.mark.parametrize("name", [n for n, (data, _, _) in FILES.items() if not data.startswith(b"PK")])
def test_bytes_of_another_format_are_named(name: str) -> None:
    with pytest.raises(occ.CompileError, match="is not an ONNX model but") as e:
        occ.compile(FILES[name][0], "interp")
    assert FILES[name][1] in str(e.value)


def test_models_and_artifacts_are_not_foreign(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    occ.build(root / "examples/digits.onnx", "interp", tmp_path / "digits.occ")
    assert foreign_file(root / "examples/digits.onnx") is None
    assert foreign_file(tmp_path / "digits.occ") is None
    assert foreign_file(tmp_path / "none") is None
    assert foreign_file(b"") is None
