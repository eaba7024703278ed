"""Every call fails once in turn: one clear error each time, and nothing is left behind."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import plans
import pytest
from ascend_standin import P, Standin, om

from occ.runtime.acl import process
from occ.runtime.acl.ascend import AscendDevice
from occ.runtime.acl.launch import Launch
from occ.runtime.acl.model import Model
from occ.runtime.acl.options import Options
from occ.runtime.acl.prototypes import PROTOTYPES
from occ.runtime.acl.tensor import DeviceTensor
from occ.runtime.artifact import Artifact
from occ.runtime.errors import RunError
from occ.runtime.session import Session

X = np.arange(32, dtype=np.float32).reshape(4, 8)

# Calls that cannot report a failure, and what comes of one.
SILENT = {
    "aclDestroyTensorDesc": "gives nothing back",
    "aclopDestroyAttr": "gives nothing back",
    "aclmdlGetInputFormat": "an unknown format is taken as ND",
}
ZERO_IS_RIGHT = {("open shape", "aclmdlGetInputSizeByIndex"), ("open shape", "aclmdlGetOutputSizeByIndex")}
# Calls that give a plain value, so that a failure shows in what follows from it, and the driver's text is not asked for.
VALUES = {
    "aclmdlGetNumInputs", "aclmdlGetNumOutputs", "aclmdlGetInputDataType", "aclmdlGetOutputDataType",
    "aclmdlGetInputSizeByIndex", "aclmdlGetOutputSizeByIndex", "aclGetTensorDescNumDims",
}  # fmt: skip


def _geared(kind: str) -> Callable[[Standin], Artifact]:
    def make(standin: Standin) -> Artifact:
        values = {"x": P("x", "f32", (-1, 8)), "y": P("y", "f32", (-1, 8))}
        standin.programs[b"double"] = lambda xs: [xs[0] * 2]
        files = {"device/p.om": om(b"double", [values["x"]], [values["y"]], gears=kind)}
        return plans.artifact(values, ["x"], ["y"], [plans.Node("p", ["x"], ["y"])], files, dims=["n"])

    return make


def _image(standin: Standin) -> Artifact:
    values = {"x": P("x", "f32", (1, -1, -1)), "y": P("y", "f32", (1, -1, -1))}
    standin.programs[b"double"] = lambda xs: [xs[0] * 2]
    files = {"device/p.om": om(b"double", [values["x"]], [values["y"]], gears="image 4,4 32,32")}
    return plans.artifact(values, ["x"], ["y"], [plans.Node("p", ["x"], ["y"])], files, dims=["n"])


MODELS: dict[str, tuple[Callable[[Standin], Artifact], np.ndarray]] = {
    "two streams": (plans.diamond, X),
    "batch gears": (_geared("batch 1 4"), X),
    "dims gears": (_geared("dims 1,8 4,8"), X),
    "image gears": (_image, np.zeros((1, 4, 4), np.float32)),
    "open shape": (_geared(""), X),
    "one output twice": (plans.twice, X),
    "part by part": (plans.diamond, X),
    "operators": (plans.one_by_one, X),
    "operators part by part": (plans.one_by_one, X),
    "another thread": (plans.chain, np.zeros(64, np.float32)),
}


def _use(standin: Standin, name: str, folder: Path) -> None:
    """Open a session, run it on host arrays and on device tensors, and close it."""
    make, x = MODELS[name]
    profile = str(folder) if name == "two streams" else ""
    with plans.session(make(standin), profile=profile) as session:
        if name == "another thread":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(_run_bound, session, x).result()
        else:
            _run_bound(session, x)


def _run_bound(session: Session, x: np.ndarray) -> None:
    (source_name,), target_names = (p.name for p in session.inputs), [p.name for p in session.outputs]
    want = session.run({source_name: x})
    with ExitStack() as stack:
        source = DeviceTensor.from_numpy(x)
        stack.callback(source.close)
        targets = {n: DeviceTensor(want[n].shape, np.float32) for n in target_names[:1]}
        stack.callback(targets[target_names[0]].close)
        for n in target_names[1:]:
            targets[n] = DeviceTensor(want[n].shape, np.float32)
            stack.callback(targets[n].close)
        session.run({source_name: source}, outputs=targets)
        for n in target_names:
            np.testing.assert_array_equal(targets[n].numpy(), want[n])


def _shutdown() -> None:
    if process._process.devices:
        gc.collect()  # a session that an error left behind
    process.shutdown()


def _error(standin: Standin, name: str, folder: Path) -> tuple[str, str]:
    """The error that using a model ends in; whoever catches it may keep it, and the traceback with it, for no longer."""
    try:
        _use(standin, name, folder)
        _shutdown()
    except RunError as e:
        return e.code, str(e)
    return "", "nothing failed"


@pytest.mark.parametrize("name", MODELS)
def test_every_call_fails_once(standin: Standin, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", str(int("part by part" in name)))
    _use(standin, name, tmp_path)
    _shutdown()
    assert standin.report == ""
    calls = standin.calls
    for call, count in calls.items():
        for at in range(1, count + 1):
            standin.reset()
            standin.fail(call, at)
            if call in SILENT or (name, call) in ZERO_IS_RIGHT:
                _use(standin, name, tmp_path)
                _shutdown()
            else:
                code, told = _error(standin, name, tmp_path)
                assert code in ("OCC0512", "OCC0502"), told
                if call not in VALUES:
                    assert f"`{call}` returned" in told, told
                    assert f"{call} was told to fail" in told, told
                _shutdown()
            assert standin.report == "", f"{call} {at}"
            standin.errors.clear()


def test_every_call_that_the_runtime_knows_was_failed(
    standin: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: set[str] = set()
    for name in MODELS:
        monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", str(int("part by part" in name)))
        standin.reset()
        _use(standin, name, tmp_path)
        _shutdown()
        made |= set(standin.calls)
    elsewhere = ONLY_FILES | {"aclGetRecentErrMsg", "aclrtGetMemInfo"}
    assert set(PROTOTYPES) - made == elsewhere


ONLY_FILES = {"aclmdlQuerySize", "aclmdlLoadFromFileWithMem"}  # below


def test_loading_from_a_file_fails(standin: Standin, tmp_path: Path) -> None:
    path = tmp_path / "p.om"
    path.write_bytes(om(b"double", [P("x", "f32", (4, 8))], [P("y", "f32", (4, 8))]))
    for call in sorted(ONLY_FILES):
        standin.reset()
        standin.fail(call)
        with pytest.raises(RunError, match=f"loading part `p` failed: `{call}` returned 500000"), opened() as host:
            Model(host.device, host.arena, "p", path)
        _shutdown()
        assert standin.report == ""


@contextmanager
def opened() -> Iterator[AscendDevice]:
    """A device, current in this thread."""
    host = AscendDevice(Options())
    try:
        with host.device.current():
            yield host
    finally:
        host.close()


def test_a_model_runs_from_a_file(standin: Standin, tmp_path: Path) -> None:
    standin.programs[b"double"] = lambda xs: [xs[0] * 2]
    path = tmp_path / "p.om"
    path.write_bytes(om(b"double", [P("x", "f32", (4, 8))], [P("y", "f32", (4, 8))]))
    y = np.empty_like(X)
    with opened() as host:
        model, block = Model(host.device, host.arena, "p", path), host.arena.take(X.nbytes)
        host.device.upload(block.address, X)
        span = (block.address, X.nbytes)
        launch = Launch(model, host.arena, [span], [span], [X.shape])
        launch.start(None, blocking=True)
        launch.close()
        host.device.download(y, block.address)
        model.close()
    np.testing.assert_array_equal(y, X * 2)


def test_device_memory_runs_out(standin: Standin) -> None:
    made = plans.chain(standin, length=3, weight=1 << 20)
    x = np.arange(64, dtype=np.float32)

    def attempt(memory: int) -> str:
        standin.reset()
        standin.machine(memory=memory)
        try:
            with plans.session(made) as session:
                np.testing.assert_array_equal(session.run({"v0": x})["v3"], plans.chain_result(x))
        except RunError as e:
            return f"{e.code} {e.message}"
        return ""

    outcomes: list[bool] = []
    for memory in (1, *range(1 << 18, 6 << 20, 1 << 18)):
        told = attempt(memory)
        _shutdown()
        assert standin.report == ""
        outcomes.append(not told)
        exhausted = r"OCC0511 .*`aclrtMalloc` returned 207001 \(device memory exhausted\).*bytes are free"
        assert not told or re.match(exhausted, told), told
    assert sorted(outcomes) == outcomes, "more memory never hurts"
    assert not outcomes[4]
    assert outcomes[6], "one part at a time needs little more than one part"


def test_the_limit_runs_out(standin: Standin) -> None:
    made = plans.chain(standin, weight=1 << 20)
    with pytest.raises(RunError, match="`npu_mem_limit` is 1000000") as e:
        plans.session(made, npu_mem_limit=1_000_000)
    assert e.value.code == "OCC0511"
    assert standin.memory[1] <= 1_000_000


def test_memory_for_tensors_runs_out(standin: Standin) -> None:
    made = plans.chain(standin, extent=1 << 20)
    with plans.session(made, npu_mem_limit=6 << 20) as session, pytest.raises(RunError, match="npu_mem_limit") as e:
        session.run({"v0": np.zeros(1 << 20, np.float32)})
    assert e.value.code == "OCC0511"


def test_another_soc(standin: Standin) -> None:
    standin.machine(soc="Ascend910B2")
    with pytest.raises(RunError, match="compiled for `Ascend310P3`, device 0 is `Ascend910B2`") as e:
        plans.session(plans.chain(standin))
    assert e.value.code == "OCC0510"
    assert e.value.help == "build it with `-C soc_version=Ascend910B2`"
    _shutdown()
    assert standin.report == ""


def test_another_soc_that_only_the_driver_sees(standin: Standin) -> None:
    made = plans.chain(standin, 1)
    made.files["device/p0.om"] = made.files["device/p0.om"].replace(b"soc Ascend310P3", b"soc Ascend310B4")
    with pytest.raises(RunError, match="socVersion=Ascend310P3, but the model socVersion=Ascend310B4") as e:
        plans.session(made)
    assert e.value.code == "OCC0510"


@pytest.mark.parametrize("device_id", [1, 7])
def test_no_such_device(standin: Standin, device_id: int) -> None:
    with pytest.raises(RunError, match=f"`device_id` is {device_id}, this machine has devices 0 to 0") as e:
        plans.session(plans.chain(standin), device_id=device_id)
    assert e.value.code == "OCC0407"


def test_no_device(standin: Standin) -> None:
    standin.machine(devices=0)
    with pytest.raises(RunError, match="`device_id` is 0, this machine has no device") as e:
        plans.session(plans.chain(standin))
    assert e.value.code == "OCC0407"


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCC_ASCENDCL", raising=False)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    with pytest.raises(RunError, match=r"no `libascendcl\.so` on this machine") as e:
        AscendDevice(Options())
    assert e.value.code == "OCC0406"


def test_a_library_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libascendcl.so").write_bytes(b"no library")
    monkeypatch.setenv("OCC_ASCENDCL", str(tmp_path / "libascendcl.so"))
    with pytest.raises(RunError, match="AscendCL does not load") as e:
        AscendDevice(Options())
    assert e.value.code == "OCC0406"


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ({"device": 0}, "options: `device_id`, `npu_mem_limit`, `arena_extend_strategy`, `profile`"),
        ({"device_id": -1}, "it takes a number from 0"),
        ({"npu_mem_limit": "2G"}, "it takes a number of bytes"),
        ({"arena_extend_strategy": "kDouble"}, "it takes kNextPowerOfTwo or kSameAsRequested"),
    ],
)
def test_options_that_are_wrong(option: dict[str, object], remedy: str) -> None:
    with pytest.raises(RunError) as e:
        Options.read(option)
    assert (e.value.code, e.value.help) == ("OCC0501", remedy)


def test_a_compiled_part_of_another_build(standin: Standin) -> None:
    made = plans.chain(standin, 1)
    made.files["device/p0.om"] = om(b"affine", [P("v0", "f32", (65,))], [P("v1", "f32", (65,))])
    with pytest.raises(RunError, match=r"has the inputs v0: f32\[65\]; the plan expects v0: f32\[64\]") as e:
        plans.session(made)
    assert e.value.code == "OCC0502"


def test_a_damaged_model(standin: Standin) -> None:
    made = plans.chain(standin, 1)
    made.files["device/p0.om"] = made.files["device/p0.om"][:-1]
    with pytest.raises(RunError, match=r"100012 \(the model cannot be deserialised\); the driver says: .*cut off"):
        plans.session(made)


def test_a_failing_execution(standin: Standin) -> None:
    with plans.session(plans.diamond(standin)) as session:
        standin.programs[b"right"] = lambda xs: [xs[0][:1]]
        with pytest.raises(
            RunError, match="running `left`, `join`, `right` on device 0 failed: `aclrtSynchronizeStream`"
        ):
            session.run({"x": X})
        standin.programs[b"right"] = lambda xs: [xs[0] + 5]
        np.testing.assert_array_equal(session.run({"x": X})["y"], X * 3 - (X + 5))


def test_a_closed_session_and_a_closed_tensor(standin: Standin) -> None:
    session = plans.session(plans.chain(standin))
    tensor = DeviceTensor((64,), np.float32)
    tensor.close()
    with pytest.raises(RunError, match="closed"):
        session.run({"v0": tensor})
    session.close()
    session.close()
    with pytest.raises(RunError, match="the session is closed"):
        session.run({"v0": np.zeros(64, np.float32)})


def test_a_tensor_of_another_device(standin: Standin) -> None:
    standin.machine(devices=2)
    tensor = DeviceTensor((64,), np.float32, device_id=1)
    with plans.session(plans.chain(standin)) as session, pytest.raises(RunError, match="on device 1, the session runs"):
        session.run({"v0": tensor})
    tensor.close()


def test_another_library_has_initialised_ascendcl(standin: Standin) -> None:
    assert standin.dll.aclInit(None) == 0
    plans.session(plans.chain(standin)).close()
    _shutdown()
    assert standin.count("aclFinalize") == 0
    assert standin.dll.aclFinalize() == 0
