"""`python bench/sizes.py MODEL...`: bytes of C programs that run a model, as rows of a Markdown table.

A program opens the model, runs it and is stripped; nothing but libc is outside of it. Weights are a file of their own.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """#include "{name}.h"
int main(void) {{
    occ_model *model;
    {name}_ports ports = {{0}};
    if ({name}_open({weights}, &model)) return 1;
    int code = {name}_run(model, &ports);
    occ_close(model);
    return code;
}}
"""


def built(model: Path, folder: Path, processor: str) -> tuple[int, int]:
    """Bytes of the program, and of the weights."""
    out = folder / "out"
    command = ["build", str(model), "--emit", "static", "-o", str(out / "net.a"), "--target-cpu", processor, "--json"]
    ran = subprocess.run([sys.executable, "-m", "occ.cli", *command], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{model}: {ran.stdout or ran.stderr}")
    facts = json.loads(ran.stdout)
    weights = out / "net.weights"
    argument = '"net.weights"' if weights.exists() else "0"
    (folder / "main.c").write_text(PROGRAM.format(name="net", weights=argument))
    link = shlex.split(facts["link"])
    program = folder / "program"
    link = [str(folder / "main.c") if part == "main.c" else part for part in link]
    subprocess.run([*link, "-s", "-Wl,--gc-sections", "-o", str(program)], cwd=out, check=True)
    return program.stat().st_size, weights.stat().st_size if weights.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target-cpu", default="x86-64-v3,cortex-a76", help="processors, comma-separated")
    given = parser.parse_args()
    processors = given.target_cpu.split(",")
    print("| model | ONNX file | weights | " + " | ".join(f"program, {p}" for p in processors) + " |")
    print("|---|---|---|" + "---|" * len(processors))
    for model in given.models:
        row: list[str] = []
        weights = 0
        for processor in processors:
            with tempfile.TemporaryDirectory() as folder:
                size, weights = built(model, Path(folder), processor)
            row.append(f"{size / 1024:,.0f} KiB")
        label = model.parent.name if model.stem == "model" else model.stem
        print(
            f"| {label} | {model.stat().st_size / 1024:,.0f} KiB | {weights / 1024:,.0f} KiB | {' | '.join(row)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
