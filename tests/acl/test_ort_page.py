"""The code of docs/ascend-onnxruntime.md, in Python and in C, on the stand-ins: the Python part compiles, the C part runs what was compiled."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from ascend_standin import Standin
from building import model_of

import occ

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.toolchain
PAGE = Path(__file__).parents[2] / "docs/ascend-onnxruntime.md"
KINDS = ("upload", "download", "device")

# What the example calls, as onnxruntime_c_api.h declares it, by the places in the table of functions: no package for Python has the header.
CALLS = {
    2: "const char *(*GetErrorMessage)(const OrtStatus *)", 3: "OrtStatus *(*CreateEnv)(int, const char *, OrtEnv **)",
    7: "OrtStatus *(*CreateSession)(const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **)",
    9: "OrtStatus *(*Run)(OrtSession *, const void *, const char *const *, const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **)",
    10: "OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **)",
    48: "OrtStatus *(*CreateTensorAsOrtValue)(OrtAllocator *, const int64_t *, size_t, int, OrtValue **)",
    49: "OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **)",
    51: "OrtStatus *(*GetTensorMutableData)(OrtValue *, void **)", 69: "OrtStatus *(*CreateCpuMemoryInfo)(int, int, OrtMemoryInfo **)",
    92: "void (*ReleaseEnv)(OrtEnv *)", 94: "void (*ReleaseMemoryInfo)(OrtMemoryInfo *)", 95: "void (*ReleaseSession)(OrtSession *)",
    96: "void (*ReleaseValue)(OrtValue *)", 100: "void (*ReleaseSessionOptions)(OrtSessionOptions *)",
    133: "OrtStatus *(*RunWithBinding)(OrtSession *, const void *, const OrtIoBinding *)",
    134: "OrtStatus *(*CreateIoBinding)(OrtSession *, OrtIoBinding **)", 135: "void (*ReleaseIoBinding)(OrtIoBinding *)",
    136: "OrtStatus *(*BindInput)(OrtIoBinding *, const char *, const OrtValue *)",
    138: "OrtStatus *(*BindOutputToDevice)(OrtIoBinding *, const char *, const OrtMemoryInfo *)",
    301: "OrtStatus *(*RegisterExecutionProviderLibrary)(OrtEnv *, const char *, const char *)",
    302: "OrtStatus *(*UnregisterExecutionProviderLibrary)(OrtEnv *, const char *)",
    303: "OrtStatus *(*GetEpDevices)(const OrtEnv *, const OrtEpDevice *const **, size_t *)",
    304: "OrtStatus *(*SessionOptionsAppendExecutionProvider_V2)(OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t, "
         "const char *const *, const char *const *, size_t)",
    312: "const char *(*EpDevice_EpName)(const OrtEpDevice *)", 374: "const OrtMemoryInfo *(*EpDevice_MemoryInfo)(const OrtEpDevice *, int)",
    376: "OrtStatus *(*GetSharedAllocator)(OrtEnv *, const OrtMemoryInfo *, OrtAllocator **)",
    386: "OrtStatus *(*CopyTensors)(const OrtEnv *, const OrtValue *const *, OrtValue *const *, void *, size_t)",
}  # fmt: skip
TYPES = (
    "OrtStatus", "OrtEnv", "OrtSession", "OrtSessionOptions", "OrtValue", "OrtMemoryInfo", "OrtAllocator", "OrtIoBinding", "OrtEpDevice",
)  # fmt: skip


def header() -> str:
    lines = ["#include <stddef.h>", "#include <stdint.h>", *(f"typedef struct {t} {t};" for t in TYPES)]
    lines += [
        "enum { ORT_LOGGING_LEVEL_WARNING = 2, OrtArenaAllocator = 1, OrtMemTypeDefault = 0, OrtDeviceMemoryType_DEFAULT = 0 };"
    ]
    lines += ["enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 };", "typedef struct OrtApi {"]
    at = 0
    for slot, declared in sorted(CALLS.items()):
        lines += [f"void *unused_{at}[{slot - at}];"] * (slot > at) + [declared + ";"]
        at = slot + 1
    base = "typedef struct { const OrtApi *(*GetApi)(uint32_t); const char *(*GetVersionString)(void); } OrtApiBase;"
    return "\n".join([*lines, "} OrtApi;", base, "const OrtApiBase *OrtGetApiBase(void);", ""])


@pytest.fixture
def device(toolkit: Standin) -> Iterator[Standin]:
    toolkit.machine("Ascend310P3")
    weights = np.random.default_rng(3).standard_normal((8, 3, 3, 3), dtype=np.float32)
    text = "g (float[1,3,32,32] x) => (float[1,8,32,32] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Relu(c) }"
    onnx.save(model_of(text, {"w": weights}), "model.onnx")
    yield toolkit
    gc.collect()
    occ.onnxruntime.unregister()


def code(language: str) -> str:
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S))


def wanted(x: np.ndarray) -> np.ndarray:
    return onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@contextmanager
def printed_by_c(path: Path) -> Iterator[None]:
    """Have the output of the process in a file."""
    before = os.dup(1)
    with path.open("wb") as f:
        os.dup2(f.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)


def test_the_python_of_the_page(device):
    names: dict[str, object] = {}
    exec(code("python"), names)
    np.testing.assert_allclose(names["y"], wanted(names["x"]), atol=0.05)
    assert len(occ.onnxruntime.claimed()) == 1
    assert occ.onnxruntime.refused() == []
    names.clear()


def test_the_c_of_the_page(device, tmp_path, occ_cli):
    """A host without Python: in this process all the same, since what the device computes is simulated in it."""
    libraries = list(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not libraries:
        pytest.skip("this onnxruntime has no library for C")
    (tmp_path / "onnxruntime_c_api.h").write_text(header())
    (tmp_path / "example.c").write_text(code("c"))
    flags = ["-Wall", "-Wextra", "-Werror", "-I.", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "example.c", "-o", "example.so", str(libraries[0])], check=True, cwd=tmp_path)
    assert occ_cli("build", "model.onnx", "-t", "ascend310p", "--emit", "ort", "-o", "ready.onnx").code == 0
    library = occ_cli("config", "--ep-ascend").out.strip()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32), dtype=np.float32)
    x.tofile("x.bin")
    kept = ctypes.CDLL(str(libraries[0]))  # which `example.so` is linked with by a name that is not that of the file
    main = ctypes.CDLL(str(tmp_path / "example.so")).main
    arguments = (ctypes.c_char_p * 4)(b"example", library.encode(), b"ready.onnx", b"x.bin")
    with printed_by_c(tmp_path / "out.txt"):
        assert main(4, arguments) == 0
    assert float((tmp_path / "out.txt").read_text()) == pytest.approx(wanted(x)[0, 0, 0, 0], abs=0.02)
    # One copy of `x` to the device for the binding, and for the other run one there and one back.
    assert [device.copies(k)[0] for k in KINDS] == [2, 1, 0]
    assert device.count("aclmdlExecute") == 2
    del kept
