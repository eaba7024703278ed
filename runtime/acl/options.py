"""Options of a device session, as in onnxruntime's CANN provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from occ.runtime.acl.arena import POWER_OF_TWO, STRATEGIES
from occ.runtime.dataclass import dataclass
from occ.runtime.errors import RunError


def _device(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("a number from 0")
    return int(text)


def _limit(text: str) -> int | None:
    """Bytes, or 0 for no limit, like the provider's SIZE_MAX."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("a number of bytes")
    value = int(text)
    return value if 0 < value < 2**63 else None


def _strategy(text: str) -> str:
    if text not in STRATEGIES:
        raise ValueError(" or ".join(STRATEGIES))
    return text


def _folder(text: str) -> str:
    return text


@dataclass(frozen=True)
class Options:
    """How a session uses the device.

    Attributes:
        device_id: which device.
        npu_mem_limit: bytes of device memory for weights, work space, inputs and outputs; None for no limit.
        arena_extend_strategy: how the session's memory grows, see `Arena`.
        profile: folder for the device's profiler, or empty.
    """

    device_id: int = field(default=0, metadata={"read": _device})
    npu_mem_limit: int | None = field(default=None, metadata={"read": _limit})
    arena_extend_strategy: str = field(default=POWER_OF_TWO, metadata={"read": _strategy})
    profile: str = field(default="", metadata={"read": _folder})

    @classmethod
    def read(cls, *sources: Mapping[str, Any]) -> Options:
        """Options from mappings, with later ones taking precedence; the build's own come first.

        Raises:
            RunError: OCC0501 an unknown key, or a bad value; the message lists valid ones.
        """
        made: dict[str, Any] = {}
        for key, value in ((k, v) for s in sources for k, v in s.items()):
            if key not in cls.__dataclass_fields__:
                known = ", ".join(f"`{k}`" for k in cls.__dataclass_fields__)
                raise RunError("OCC0501", f"a session has no option `{key}`", f"options: {known}")
            reader: Callable[[str], Any] = cls.__dataclass_fields__[key].metadata["read"]
            try:
                made[key] = reader(str(value))
            except ValueError as e:
                raise RunError("OCC0501", f"option `{key}` cannot be `{value}`", f"it takes {e}") from None
        return cls(**made)
