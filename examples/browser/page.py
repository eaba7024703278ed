"""Makes one HTML file of a model that classifies pictures: a picture in, a class out, without a server or a network.

    python examples/browser/page.py examples/digits.onnx -o digits.html
    python examples/browser/page.py mobilenet_v2.onnx --labels imagenet.txt --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 -o m.html

The model has one input, f32[N,C,H,W] or f32[N,H,W,C] of 1 or 3 channels, and one output, a score of each class.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path

TEMPLATE = Path(__file__).with_name("page.html")


def numbers(text: str) -> list[float]:
    return [float(n) for n in text.split(",")]


def page(module: bytes, script: str, **facts: object) -> str:
    """The text of the page.

    Args:
        module: NAME.wasm of `occ build --emit shared --weights embed`.
        script: occ.js.
        facts: what the page knows of the model: title, labels, size, mean and std.
    """
    given = json.dumps({**facts, "module": base64.b64encode(module).decode()}).replace("<", "\\u003c")
    values = {
        "TITLE": str(facts["title"]).replace("&", "&amp;").replace("<", "&lt;"),
        "FACTS": given,
        "OCC_JS": script.replace("export ", ""),
    }
    made = TEMPLATE.read_text("utf-8")
    for name, value in values.items():
        made = made.replace(f"@{name}@", value)
    return made


def main() -> None:
    """Build the model for WebAssembly, and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", type=Path)
    options.add_argument("-o", "--out", type=Path, required=True)
    options.add_argument("--labels", type=Path, help="a file with the name of each class in a line")
    options.add_argument("--title", help="that of the page; the name of the model by default")
    options.add_argument("--size", type=int, default=224, help="pixels of an edge, where the model leaves that open")
    options.add_argument(
        "--mean", type=numbers, default=[0.0], help="of the channels, which is taken from pixels in [0, 1]"
    )
    options.add_argument("--std", type=numbers, default=[1.0], help="of the channels, by which they are divided then")
    given = options.parse_args()
    labels = given.labels.read_text("utf-8").splitlines() if given.labels else []
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "model.wasm"
        occ = [sys.executable, "-c", "from occ.cli import main; main()"]
        how = ["--target-cpu", "wasm32", "--emit", "shared", "--weights", "embed"]
        subprocess.run([*occ, "build", str(given.model), *how, "-o", str(module)], check=True)
        text = page(
            module.read_bytes(), module.with_name("occ.js").read_text("utf-8"),
            title=given.title or given.model.stem, labels=labels, size=given.size, mean=given.mean, std=given.std,
        )  # fmt: skip
    given.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
