"""The keys that docs/json.md lists are those that the commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples/digits.onnx"
ROWS = dict(re.findall(r"^\| (`?[^|]+?) \| [^|]+ \| (.*) \|$", (ROOT / "docs/json.md").read_text(), re.M))
COMMANDS = {
    "`occ build`": "build MODEL -t cpu-jit -o other.occ",
    "`occ build`, Ascend": "build MODEL -t ascend910b --dim N=1 -o a.occ",
    "`occ run`": "run m.occ",
    "`occ run --profile`": "run m.occ --profile",
    "`occ inspect`, model": "inspect MODEL",
    "`occ inspect`, artifact": "inspect m.occ",
    "`occ inspect --nodes`": "inspect MODEL --nodes",
    "`occ check`": "check MODEL -t cpu-jit",
    "`occ diff`": "diff m.occ --onnx MODEL --against interp",
    "`occ bench`": "bench m.occ --rounds 1",
    "`occ bench --per-op`": "bench MODEL -t cpu-jit --per-op",
    "`occ extract`": "extract MODEL --to node_relu -o part.onnx",
    "`occ quantize`": "quantize MODEL -t cpu-jit -o q.onnx --rounds 1",
    "`occ report`": "report MODEL -t cpu-jit --against none",
    "`occ targets`": "targets",
    "`occ ops`": "ops Relu",
    "`occ ops --where`": "ops Relu --where",
    "`occ rules`": "rules MODEL",
    "`occ rules --schedule`": "rules --schedule",
    "`occ rules --schedule --why KERNEL`": "rules --schedule MODEL -t cpu --why node_relu",
    "`occ explain`": "explain OCC0305",
    "`occ warm`": "warm MODEL",
    "`occ cache`": "cache",
    "an error": "report m.occ",
}


def keys(value: object, maps: set[str], name: str = "") -> set[str]:
    """Keys of objects at any depth, but for those of maps, which are names."""
    if isinstance(value, list):
        return {k for v in value for k in keys(v, maps)}
    if not isinstance(value, dict):
        return set()
    own = set() if name in maps else set(value)
    return own | {k for n, v in value.items() for k in keys(v, maps, n)}


def test_every_row_has_a_command():
    assert set(ROWS) - {"command", "---"} == set(COMMANDS)


@pytest.mark.parametrize("row", COMMANDS)
def test_the_keys_of_a_row(row, occ_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "m.occ" in COMMANDS[row]:
        assert occ_cli("build", MODEL, "-t", "cpu-jit", "-o", "m.occ").code == 0
    if "per-op" in row:
        pytest.importorskip("onnxruntime")
    ran = occ_cli(*[str(MODEL) if w == "MODEL" else w for w in COMMANDS[row].split()], "--json")
    listed = re.findall(r"\(?`(\w+)(\{ \}|\[ \])?`\)?", ROWS[row])
    optional = set(re.findall(r"\(`(\w+)`\)", ROWS[row]))
    maps = {name for name, form in listed if form == "{ }"}
    for line in ran.out.splitlines():
        found = keys(json.loads(line), maps)
        assert {name for name, _ in listed} - optional <= found, row
        assert found <= {name for name, _ in listed}, row
    assert ran.out
