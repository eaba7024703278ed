"""Status codes of AscendCL, with remedies.

From acl_base.h, ge_error_codes.h and rt_error_codes.h.
"""

from __future__ import annotations

NO_DEVICE = "check the driver with `npu-smi info`, and that this user may open /dev/davinci*"
MEMORY = "raise `npu_mem_limit`, run fewer sessions on the device, or use smaller gears"
KERNEL = "the device log has the cause: `ASCEND_SLOG_PRINT_TO_STDOUT=1 ASCEND_GLOBAL_LOG_LEVEL=1`"

HOST_MEMORY = 200000

# Our diagnostic code for a status; OCC0512 for any other.
NO_DEVICE_STATUSES = frozenset({107001, 200002, 207004, 207006, 500004, 507033, 507899})
MEMORY_STATUSES = frozenset({HOST_MEMORY, 207001, 207018, 245000, 300000})
SOC_STATUSES = frozenset({507008})

RESOURCE_STATUSES = frozenset({207005, 207007, 207008, 207009, 207010, 207011})  # streams, events and the like

REPEAT_INITIALIZE = 100002
CONTEXT_NULL = 107002

NAMES: dict[int, str] = {
    100000: "invalid parameter", 100001: "AscendCL is not initialised", 100002: "initialised twice",
    100003: "invalid file", 100004: "file cannot be written", 100005: "invalid file size",
    100006: "file cannot be parsed",
    100007: "the file lacks an attribute", 100008: "the file has an invalid attribute",
    100009: "invalid dump configuration",
    100010: "invalid profiling configuration", 100011: "invalid model id", 100012: "the model cannot be deserialised",
    100013: "the model cannot be parsed", 100014: "the model cannot be read", 100015: "invalid model size",
    100016: "the model lacks an attribute", 100017: "inputs do not match the model",
    100018: "outputs do not match the model",
    100019: "the model is not dynamic", 100020: "operator type does not match", 100021: "operator inputs do not match",
    100022: "operator outputs do not match", 100023: "operator attributes do not match", 100024: "operator not found",
    100025: "operator not loaded", 100026: "unsupported data type", 100027: "format does not match",
    100029: "kernel not found",
    100037: "finalised twice", 100039: "this is the stub library of the toolkit", 100042: "the profiler runs already",
    100043: "the profiler does not run", 148049: "invalid operator package path",
    148050: "operator has no dynamic form",
    148051: "resources are still in use", 200000: "host memory exhausted", 200001: "call not supported",
    200002: "invalid device", 200003: "address not aligned", 200004: "resources do not match",
    200005: "invalid handle", 200006: "feature not supported", 200007: "the profiler lacks modules",
    300000: "storage limit exceeded", 500000: "internal error", 500001: "failure", 500002: "graph engine failed",
    500003: "runtime failed", 500004: "driver failed", 500005: "profiler failed",
    107000: "invalid parameter", 107001: "invalid device id", 107002: "this thread has no context",
    107003: "the stream belongs to another context", 107017: "invalid handle", 107019: "wait timed out",
    107020: "task timed out", 107022: "the device aborted the task", 207000: "feature not supported",
    207001: "device memory exhausted", 207003: "arithmetic overflow", 207004: "no device", 207005: "resource exhausted",
    207006: "no permission", 207007: "no event left", 207008: "no stream left", 207009: "no notification left",
    207010: "no model resource left", 207011: "no queue left", 207018: "device memory exhausted",
    507000: "internal error",
    507008: "wrong SoC", 507011: "execution failed", 507014: "AI Core timed out", 507015: "AI Core exception",
    507017: "AI CPU timed out", 507018: "AI CPU exception", 507033: "the device does not start",
    507034: "vector core timed out", 507035: "vector core exception", 507046: "waiting for the stream timed out",
    507053: "memory access of the device failed", 507899: "driver error",
    145000: "invalid parameter", 145001: "executor not initialised", 145002: "invalid model path",
    145003: "invalid model id",
    145006: "invalid model size", 145007: "invalid model address", 145009: "model loaded twice",
    145011: "invalid address of a dynamic input", 145012: "invalid length of a dynamic input", 145013: "no such gear",
    145016: "invalid AIPP mode", 145020: "invalid format", 145021: "invalid shape", 145022: "invalid data type",
    245000: "device memory exhausted", 245001: "memory operation failed", 245002: "device memory operation failed",
    345102: "the device is unhealthy", 545000: "internal error", 545001: "the model cannot be loaded",
    545002: "the model's partition cannot be loaded", 545003: "the model's weights cannot be loaded",
    545004: "the model's tasks cannot be loaded", 545005: "the model's kernels cannot be loaded",
    545008: "no such tensor", 545009: "the model cannot be unloaded", 545601: "execution timed out",
}  # fmt: skip

HELPS: dict[int, str] = {
    100002: "another library of this process initialised AscendCL; initialise it before occ",
    100039: "set LD_LIBRARY_PATH by the toolkit's `set_env.sh`, so that the real library is found",
    148049: "source the toolkit's `set_env.sh`: it sets ASCEND_OPP_PATH",
    145013: "the shapes must match one of the gears that the model was compiled for",
    507008: "build for this device: `-C soc_version=...`; `npu-smi info` shows its name",
    545001: "an `.om` runs on the SoC it was built for, on the same or a newer CANN",
    545005: "install the operator package of this SoC, or build the `.om` again with this CANN",
} | dict.fromkeys(NO_DEVICE_STATUSES, NO_DEVICE) | dict.fromkeys(MEMORY_STATUSES, MEMORY) | dict.fromkeys(
    (507011, 507014, 507015, 507017, 507018, 507034, 507035, 507053), KERNEL
)  # fmt: skip


def diagnostic_code(status: int) -> str:
    """The diagnostic code for a status."""
    if status in NO_DEVICE_STATUSES:
        return "OCC0407"
    if status in MEMORY_STATUSES:
        return "OCC0511"
    return "OCC0510" if status in SOC_STATUSES else "OCC0512"
