"""The files of examples/deploy: each by the tool that reads it, or run as it would be."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from building import mlp

import occ

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/deploy"
THREE = np.load(ROOT / "examples/three.npy")


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, their lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {"": []}
    for word, rest in instructions():
        if word == "FROM":
            found[rest.split(" AS ")[1]] = []
        else:
            found[list(found)[-1]].append((word, rest))
    return found


def test_stages_copy_what_is_there_and_what_runs_has_no_toolchain() -> None:
    known = {"FROM", "ARG", "RUN", "COPY", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in instructions()} <= known
    for name in ("served", "alone", "program"):
        steps = stages()[name]
        assert ("USER", "65534") in steps
        assert not any("g++" in rest for _, rest in steps)
        assert all("--from=built" in rest or (ROOT / rest.split()[0]).exists() for w, rest in steps if w == "COPY")


@pytest.mark.toolchain
def test_the_commands_of_the_stages_build_what_the_program_runs(tmp_path: Path) -> None:
    """The RUN lines of the first stage, in a shell here, then the ENTRYPOINT of `program` and the CMD of `alone`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/occ").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m occ "$@"\n')
    (tmp_path / "bin/occ").chmod(0o755)
    for k, path in (("src", ROOT), ("three.npy", ROOT / "examples/three.npy")):
        (tmp_path / k).symlink_to(path)

    def here(text: str) -> str:
        return re.sub(r"(?<![\w./])/(src|models|classify|three\.npy)\b", rf"{tmp_path}/\1", text)

    steps = stages()["built"]
    setting = {k: v for w, rest in steps if w == "ARG" for k, _, v in [rest.partition("=")]}
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), **setting}
    for line in [here(rest) for w, rest in steps if w == "RUN" and ("occ build" in rest or rest.startswith("cc "))]:
        subprocess.run(["sh", "-ec", line], env=env, check=True, capture_output=True)
    (entry,) = [here(rest) for w, rest in stages()["program"] if w == "ENTRYPOINT"]
    command = re.findall(r'"([^"]+)"', entry)
    assert subprocess.run(command, input=THREE.tobytes(), capture_output=True, check=True).stdout == b"3\n"
    short = subprocess.run(command, input=b"1234", capture_output=True, check=False)
    assert (short.returncode, short.stderr) == (1, b"64 numbers of 32 bits are wanted\n")
    (cmd,) = [here(rest) for w, rest in stages()["alone"] if w == "CMD"]
    code = re.findall(r'"([^"]+)"', cmd)[-1]
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"3\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (tmp_path / "occ").write_text("#!/bin/sh\n")
    (tmp_path / "occ").chmod(0o755)
    unit = (DEPLOY / "occ.service").read_text().replace("/opt/occ/bin/occ", str(tmp_path / "occ"))
    (tmp_path / "occ.service").write_text(unit)
    ran = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "occ.service"], capture_output=True, text=True, check=False
    )
    assert "occ.service" not in ran.stderr, ran.stderr
    assert ran.returncode == 0


def test_options_of_the_files_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from occ.cli.serve import command

    started = [re.findall(r'"([^"]+)"', rest) for w, rest in stages()["served"] if w == "ENTRYPOINT"]
    started += [
        shlex.split(line) for line in re.findall(r"^ExecStart=(.*)$", (DEPLOY / "occ.service").read_text(), re.M)
    ]
    for line in started:
        context = command.make_context("serve", line[2:])
        assert context.params["models"][0].startswith("digits=")


def known_to_kserve(value: Any, kind: str, models: Sequence[Any]) -> None:
    """Compare a value with the class of KServe's, or Kubernetes', API that it is to be."""
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        for v in value:
            known_to_kserve(v, match[1], models)
        return
    found = next(filter(None, (getattr(m, kind, None) for m in models)), None)
    if found is None:
        return
    names = {json: python for python, json in found.attribute_map.items()}
    for key, v in value.items():
        assert key in names, f"{kind} has no `{key}`"
        known_to_kserve(v, found.openapi_types[names[key]], models)


def test_kserve_knows_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    service = yaml.safe_load((DEPLOY / "kserve.yaml").read_text())
    container = service["spec"]["predictor"]["containers"][0]
    for probe, path in (("startupProbe", "live"), ("livenessProbe", "live"), ("readinessProbe", "ready")):
        assert container[probe]["httpGet"] == {
            "path": f"/v2/health/{path}",
            "port": container["ports"][0]["containerPort"],
        }
    if find_spec("kserve") is None or find_spec("kubernetes") is None:
        pytest.skip("kserve and kubernetes are not installed: `pip install --no-deps kserve kubernetes`")
    for name in ("kserve", "kubernetes"):  # their models alone: the packages import servers and logins of their own
        package = types.ModuleType(name)
        package.__path__ = list(find_spec(name).submodule_search_locations)
        monkeypatch.setitem(sys.modules, name, package)
    import kserve.models
    import kubernetes.client.models

    both = (kserve.models, kubernetes.client.models)
    known_to_kserve(service, "V1beta1InferenceService", both)
    with pytest.raises(AssertionError, match="has no `port`"):
        known_to_kserve({"spec": {"predictor": {"containers": [{"port": 1}]}}}, "V1beta1InferenceService", both)


def test_triton_knows_the_configuration_and_the_page_has_the_same() -> None:
    page = (ROOT / "docs/serving.md").read_text()
    config, code = ((DEPLOY / "triton/digits" / name).read_text() for name in ("config.pbtxt", "1/model.py"))
    assert config in page
    assert code.partition("\n\n")[2].strip() in page
    schema = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient is not installed")
    from google.protobuf import text_format

    made = text_format.Parse(config, schema.ModelConfig())
    assert [tuple(i.dims) for i in made.input] == [THREE.shape[1:]]


@pytest.mark.skipif(find_spec("mlserver") is None, reason="MLServer is not installed (the extra `mlserver`)")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_ends_with_0(how: signal.Signals, tmp_path: Path) -> None:
    from serving import started

    occ.build(mlp(), "cpu-jit", tmp_path / "m.occ")
    server = started(tmp_path, "m.occ")
    server.process.send_signal(how)
    assert server.process.wait(90) == 0
    assert "serving m at http://127.0.0.1:" in (tmp_path / "log").read_text()


@pytest.mark.skipif(find_spec("mlserver") is None, reason="MLServer is not installed (the extra `mlserver`)")
@pytest.mark.parametrize(
    ("args", "code"), [(["broken.onnx"], 1), (["m.onnx", "-t", "gpu"], 2), (["m.onnx", "--port", "x"], 2)]
)
def test_exit_codes_of_a_server_that_cannot_serve(args: list[str], code: int, tmp_path: Path) -> None:
    onnx.save(mlp(), tmp_path / "m.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"<html>")
    command = [sys.executable, "-m", "occ", "serve", *args]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
