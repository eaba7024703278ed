"""Recognises files of other formats by their first bytes.

Sources of the signatures: file(1)'s magic files, and the readers of each format.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

_PAGE = "use the link to the file itself: on Hugging Face `resolve` instead of `blob`, on GitHub the raw file"
_TORCH = "export it from PyTorch: `torch.onnx.export(module, inputs, 'model.onnx', dynamo=True)`, or `occ.torch.export`"
_WEIGHTS = "it has weights but no graph: export the model to ONNX, for example with `optimum-cli export onnx`"
_LANGUAGE_MODEL = (
    "if it is a language model, use `occ generate`; otherwise export the model, for example with "
    "`optimum-cli export onnx`"
)
_KERAS = "export it to ONNX: `model.export('model.onnx', format='onnx')` in Keras, or the package tf2onnx"
_UNPACK = "unpack it first: `{}`"

# The first bytes of a kind of file, as a regular expression; its description; and a remedy.
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"version https://git-lfs", "a git-lfs pointer", "fetch the real file: `git lfs pull`"),
    (rb"(?i)\s*(<!--.*?-->\s*)*<(!doctype html|html|head)\b", "a web page", _PAGE),
    (rb"\s*<\?xml[^>]*>\s*<net\b", "a model of OpenVINO", "use the ONNX model that it was made from"),
    (rb"\s*<\?xml", "an XML file", "if a server sent it instead of the model, it says why"),
    (rb"GGUF", "a GGUF file", _LANGUAGE_MODEL),
    (rb"(lmgg|fmgg|tjgg|ggjt|ggml)", "a GGML file", _WEIGHTS),
    (rb".{4}\0{4}\{\s*\"", "a safetensors file", _LANGUAGE_MODEL),
    (rb".{4}TFL3", "a TFLite model", "convert it: `python -m tf2onnx.convert --tflite FILE --output model.onnx`"),
    (rb"\x80[\x02-\x05]", "a pickle, as PyTorch writes them", _TORCH),
    (rb"\x93NUMPY", "an array of numpy", "arrays are inputs: `occ run MODEL --input FILE`"),
    (rb"\x89HDF\r\n", "an HDF5 file, as Keras writes them", _KERAS),
    (rb"\x1f\x8b", "a gzip file", _UNPACK.format("gunzip FILE")),
    (rb"BZh[1-9]", "a bzip2 file", _UNPACK.format("bunzip2 FILE")),
    (rb"\xfd7zXZ\0", "an xz file", _UNPACK.format("unxz FILE")),
    (rb"\x28\xb5\x2f\xfd", "a zstandard file", _UNPACK.format("unzstd FILE")),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z file", _UNPACK.format("7z x FILE")),
    (rb"(?s).{257}ustar", "a tar file", _UNPACK.format("tar xf FILE")),
    (rb"(ftrt|ptrt)", "an engine of TensorRT", "use the ONNX model that it was made from"),
    (rb"IMOD", "an offline model of CANN", "use the ONNX model that `atc` made it from"),
    (rb"\x7fELF", "a program or a library", "models are .onnx files, .occ texts and artifacts"),
    (rb"(\x89PNG|\xff\xd8\xff|GIF8|%PDF)", "a picture or a document",
     "models are .onnx files, .occ texts and artifacts"),
    (rb"\s*[\[{]\s*[\"\[{]", "a JSON file", "if a server sent it instead of the model, it says why"),
    (rb"[\t\n\r -~]+\Z", "a text file", "models are .onnx files, .occ texts and artifacts"),
)  # fmt: skip
# The same for zips: a member name.
_ZIPS: tuple[tuple[str, str, str], ...] = (
    (r"archive_format$|models/model\.json$|serialized_exported_program\.json$", "a program of torch.export", _TORCH),
    (r"data\.pkl$", "a PyTorch file", _TORCH),
    (r"model\.weights\.h5$", "a model of Keras", _KERAS),
    (r"\.npy$", "an .npz file of arrays", "arrays are inputs: `occ run MODEL --inputs FILE`"),
    (r"[^/]*\.onnx$", "a zip with a model in it", _UNPACK.format("unzip FILE")),
    (r"saved_model\.pb$", "a model of TensorFlow", "convert it: `python -m tf2onnx.convert --saved-model FOLDER --output model.onnx`"),
)  # fmt: skip
_HEAD = 4096


def foreign_file(source: str | os.PathLike[str] | bytes) -> tuple[str, str] | None:
    """The format of a file that is neither model nor artifact, and the remedy.

    None if it is unknown.
    """
    if isinstance(source, bytes):
        head, path = source[:_HEAD], None
    else:
        try:
            with open(source, "rb") as f:
                head, path = f.read(_HEAD), Path(source)
        except OSError:
            return None
    if path is not None and head.startswith(b"PK"):
        return _zip(path)
    found = next(((what, help_) for mark, what, help_ in _KINDS if re.match(mark, head, re.S)), None)
    return found and (found[0], found[1].replace("FILE", path.name if path else "FILE"))


def _zip(path: Path) -> tuple[str, str] | None:
    try:
        with zipfile.ZipFile(path) as z:
            names = z.namelist()
    except (OSError, ValueError, RuntimeError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return None
    if "manifest.json" in names:
        return None
    for mark, what, help_ in _ZIPS:
        if any(re.search(mark, n) for n in names):
            return what, help_.replace("FILE", path.name)
    return (
        "a zip file, but not an artifact: it has no `manifest.json`",
        "models are .onnx files, .occ texts and artifacts",
    )
