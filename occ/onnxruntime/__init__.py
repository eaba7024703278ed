"""occ as an execution provider of onnxruntime.

    occ.onnxruntime.register()
    session = onnxruntime.InferenceSession("m.onnx", providers=["OccExecutionProvider", "CPUExecutionProvider"])

With `register("ascend310p")` it is `OccAscendExecutionProvider`, on an Ascend device.

`docs/onnxruntime.md` is the guide. Only `register` imports onnxruntime.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from numbers import Real
from typing import Any

from occ.arguments import checked_options
from occ.compiler.diagnostics import error
from occ.compiler.targets.default import DEFAULT
from occ.onnxruntime.ascend import NAME as ASCEND
from occ.onnxruntime.ascend import AscendClaims, check_chip, load_library
from occ.onnxruntime.claims import Claimed, Claims
from occ.onnxruntime.library import get_library_path, onnxruntime_module
from occ.onnxruntime.policy import LEAST

NAME = "OccExecutionProvider"
__all__ = [
    "ASCEND", "NAME", "claimed", "get_ep_name", "get_library_path", "refused", "register", "session_options",
    "unregister",
]  # fmt: skip
_Callback = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p)
# By the name of a provider: its library, its plugin, and the callback, which must outlive it.
_registered: dict[str, dict[str, Any]] = {}
_last: list[str] = []  # the most recently registered provider


def get_ep_name(target: str = DEFAULT) -> str:
    """The name of the execution provider for a target."""
    from occ.compiler.targets.registry import on_device

    return ASCEND if on_device(target) else NAME


def register(
    target: str = DEFAULT, *, options: Mapping[str, Any] | None = None, least: int = LEAST, build: str = "wait"
) -> str:
    """Make the execution provider known to onnxruntime, in this process; repeated calls replace its settings.

    Args:
        target: for groups of nodes: `cpu`, `cpu-jit`, or one of the Ascend chips, which is another provider.
        options: of the target, as `-C`.
        least: the minimum cost of a group, in elements; Ascend devices take everything they support.
        build: what a session does with a group that was not compiled before: `wait` for it; leave it to onnxruntime,
            and compile it in the `background` for later sessions; or `never` compile. For Ascend devices it is `wait`.

    Returns:
        The name for `providers=`.

    Raises:
        ValueError: `build` is none of these. TypeError: `least` is not a number.
        ImportError: onnxruntime is not installed, or is older than 1.23, for Ascend devices 1.24.
        CompileError: OCC0303 there is no such target, or it makes no native code; OCC0401 there is no C++ compiler,
            which builds the library on first use. OCC0603 an option is wrong. For Ascend devices, OCC0406 there is no
            AscendCL, OCC0407 no device, OCC0510 it is another chip.
    """
    _check(target, build, least)
    name = get_ep_name(target)
    given = checked_options(options)
    if name == NAME:
        claims: Any = _claims_of_cpu(target, given, least, build)
    else:
        claims = _claims_of_ascend(target, given)
    callback = _Callback(claims)
    _registered[name]["library"].occ_ep_ask(callback)
    _registered[name].update(claims=claims, callback=callback)
    _last[:] = [name]
    return name


def _check(target: str, build: str, least: int) -> None:
    """Refuse what `register` cannot take."""
    from occ.compiler.targets.native import InterpOptions
    from occ.compiler.targets.registry import get_target
    from occ.onnxruntime.background import WAYS

    onnxruntime = onnxruntime_module()
    if build not in WAYS:
        raise ValueError(f"build is {build!r}; known are {', '.join(WAYS)}")
    if not isinstance(least, Real):
        raise TypeError(f"least is {least!r}; it is a number of elements")
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise ImportError(f"onnxruntime {onnxruntime.__version__} has no plugins: 1.23 or later is needed")
    if type(get_target(target).options) is InterpOptions:
        message = f"`{target}` computes with numpy, and sessions of onnxruntime need native code"
        raise error("OCC0303", message, help="register `cpu` or `cpu-jit`")


def _claims_of_cpu(target: str, options: dict[str, str], least: int, way: str) -> Claims:
    from occ.compiler.targets.registry import get_target

    onnxruntime = onnxruntime_module()
    get_target(target).options.read(target, options)
    if NAME not in _registered:
        path = str(get_library_path())
        library = c.CDLL(path)
        library.occ_ep_refusal.restype = c.c_char_p
        onnxruntime.register_execution_provider_library(NAME, path)
        _registered[NAME] = {"library": library}
    return Claims(_registered[NAME]["library"], target, options, least, way=way)


def _claims_of_ascend(target: str, options: dict[str, str]) -> AscendClaims:
    """The provider for Ascend devices.

    An unsuitable machine, chip or option is rejected here, not in a session.
    """
    onnxruntime = onnxruntime_module()

    new = ASCEND not in _registered
    if new:
        path = str(get_library_path(kind="ascend"))
        try:
            onnxruntime.register_execution_provider_library(ASCEND, path)
        except Exception as e:
            raise _refusal(str(e)) from None
        _registered[ASCEND] = {"library": load_library(path)}
    try:
        device = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == ASCEND)
        check_chip(target, device.ep_metadata["soc_version"], options)
    except BaseException:
        if new:
            unregister(ASCEND)
        raise
    return AscendClaims(_registered[ASCEND]["library"], target, options)


def _refusal(text: str) -> Exception:
    """The library's message from its registration: `occ: OCC0406: ...; what to do`."""
    if "1.24 or later" in text:
        return ImportError(text.rpartition("occ: ")[2])
    _, found, told = text.partition("occ: OCC")
    if not found:
        return error("OCC0406", f"onnxruntime does not take the provider: {text}")
    code, _, rest = told.partition(": ")
    message, _, help_ = rest.rpartition("; ")
    return error(f"OCC{code}", message or help_, help=help_ if message else "")


def unregister(name: str = "") -> None:
    """Remove the execution providers from onnxruntime, or the one with that name; their sessions must be gone."""
    onnxruntime = onnxruntime_module()

    for known in [name] if name else list(_registered):
        if known in _registered:
            _registered[known]["library"].occ_ep_ask(None)
            onnxruntime.unregister_execution_provider_library(known)
            del _registered[known]
            _last[:] = [n for n in _last if n != known]


def session_options(options: Any = None, **settings: Any) -> Any:
    """`onnxruntime.SessionOptions` with the most recently registered provider, for every version from 1.23 on.

    Args:
        options: options to extend; new ones if None.
        settings: for the CPU, `pool="occ"` uses occ's threads instead of onnxruntime's, and `threads=4` their number;
            for Ascend devices, the options of onnxruntime's provider for CANN, such as `device_id=1` or
            `precision_mode="force_fp16"`.

    Raises:
        CompileError: OCC0407 there is no Ascend device of this `device_id`.
        ValueError: there is no such setting of the CPU, or it cannot have this value.
    """
    onnxruntime = onnxruntime_module()

    name = _last[0] if _last else register()
    if name == NAME:
        check_settings(settings)
    made = options or onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
    if name == ASCEND:
        number = str(settings.get("device_id", _registered[name]["claims"].options.get("device_id", 0)))
        devices = [d for d in devices if d.ep_metadata["device_id"] == number]
        if not devices:
            raise error(
                "OCC0407",
                f"`device_id` is {number}, and there is no such device",
                help="`npu-smi info` lists the devices",
            )
    made.add_provider_for_devices(devices, {k: str(v) for k, v in settings.items()})
    return made


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what the library would pass over.

    Raises:
        ValueError: as `session_options`.
    """
    if unknown := [n for n in settings if n not in ("pool", "threads")]:
        raise ValueError(
            f'there is no setting {unknown[0]!r}: pool="occ" and threads=4 are settings; intra_op_num_threads is '
            "onnxruntime's own"
        )
    if settings.get("pool", "occ") != "occ":
        raise ValueError(f'pool is {settings["pool"]!r}; it is "occ", or left out for the threads of onnxruntime')
    if not str(settings.get("threads", 1)).isdecimal() or str(settings.get("threads", 1)) == "0":
        raise ValueError(f"threads is {settings['threads']!r}; it is a whole number of at least 1")


def claimed() -> list[Claimed]:
    """The groups that sessions have assigned to occ since `register`."""
    return list(_registered[_last[0]]["claims"].taken) if _last else []


def refused() -> list[str]:
    """Why groups, or with Ascend devices nodes, have been left to onnxruntime since `register`."""
    if not _last:
        return []
    found = _registered[_last[0]]["claims"].refused
    return list(found) if _last[0] == ASCEND else list(found.values())
