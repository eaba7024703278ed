"""Maps diagnostic codes of occ to ONNXIFI status codes."""

from __future__ import annotations

from enum import IntEnum

from occ.compiler.diagnostics import CompileError
from occ.runtime.acl.library import AclError
from occ.runtime.acl.statuses import HOST_MEMORY, RESOURCE_STATUSES
from occ.runtime.errors import RunError


class Status(IntEnum):
    """Numbers of onnxifi.h, without their prefix."""

    SUCCESS = 0
    INVALID_PROTOBUF = 0x104
    INVALID_MODEL = 0x105
    INVALID_NAME = 0x10A
    UNSUPPORTED_VERSION = 0x202
    UNSUPPORTED_OPERATOR = 0x203
    UNSUPPORTED_ATTRIBUTE = 0x204
    UNSUPPORTED_SHAPE = 0x205
    UNSUPPORTED_DATATYPE = 0x206
    MISMATCHING_SHAPE = 0x302
    MISMATCHING_DATATYPE = 0x303
    NO_SYSTEM_MEMORY = 0x401
    NO_DEVICE_MEMORY = 0x402
    NO_SYSTEM_RESOURCES = 0x403
    NO_DEVICE_RESOURCES = 0x404
    BACKEND_UNAVAILABLE = 0x405
    INTERNAL_ERROR = 0x406


# By diagnostic code; the first prefix that fits.
_OF_CODES = {
    "OCC0102": Status.INVALID_PROTOBUF,
    "OCC0103": Status.UNSUPPORTED_VERSION,
    "OCC0104": Status.UNSUPPORTED_OPERATOR,
    "OCC01": Status.INVALID_MODEL,
    "OCC0201": Status.INVALID_MODEL,
    "OCC0202": Status.INVALID_MODEL,
    "OCC02": Status.UNSUPPORTED_SHAPE,
    "OCC0302": Status.UNSUPPORTED_DATATYPE,
    "OCC0305": Status.UNSUPPORTED_SHAPE,
    "OCC03": Status.UNSUPPORTED_OPERATOR,
    "OCC04": Status.BACKEND_UNAVAILABLE,
    "OCC0501": Status.UNSUPPORTED_SHAPE,
    "OCC0503": Status.UNSUPPORTED_SHAPE,
    "OCC0511": Status.NO_DEVICE_MEMORY,
}


class Refused(Exception):
    """A rejected request, with the status that the library returns."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


def _status_of_code(code: str) -> Status:
    return next((s for prefix, s in _OF_CODES.items() if code.startswith(prefix)), Status.INTERNAL_ERROR)


def status_of_run(e: RunError) -> Status:
    """The status for a runtime failure; a device's driver reports what is missing."""
    if isinstance(e, AclError) and e.status in RESOURCE_STATUSES:
        return Status.NO_DEVICE_RESOURCES
    if isinstance(e, AclError) and e.status == HOST_MEMORY:
        return Status.NO_SYSTEM_MEMORY
    return _status_of_code(e.code)


def status_of(e: CompileError) -> Status:
    """The status of the first error; operators that need Python are unsupported, whatever else is wrong."""
    return _status_of_code(e.diagnostics[0].code)
