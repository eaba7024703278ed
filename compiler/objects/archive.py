"""Native code before linking: object files, a C header, a static library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from occ.compiler.ir.te.function import TeFunc
from occ.compiler.objects import elf, wasm
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class NativeCode:
    """The native code of a model, as a native target compiles it.

    Attributes:
        objects: object files by file name.
        header: C declarations of the kernels.
    """

    objects: Mapping[str, bytes]
    header: str

    @property
    def is_whole(self) -> bool:
        """Whether the plan is in it too; without a compiler for the machine, there are only kernels."""
        return "entry.o" in self.objects

    @property
    def archive(self) -> bytes:
        """The objects as a static library."""
        return archive(self.objects)


_HEAD = """// Kernels of a model compiled by occ. A tensor is a halide_buffer_t (HalideRuntime.h), innermost dimension first; `args` holds
// pointers: to a buffer for each tensor that is read, to an int32_t for each size, to a buffer for each tensor that is
// written. A kernel gives 0, or an error code.
#pragma once
#include <stdint.h>
struct halide_buffer_t;
#ifdef __cplusplus
extern "C" {
#endif
"""
_TAIL = """#ifdef __cplusplus
}
#endif
"""


def header(functions: Iterable[TeFunc], *, ranged: bool) -> str:
    """C declarations of kernels.

    Args:
        functions: te functions; their names are the symbols.
        ranged: whether kernels leave their parallel loop to the caller and compute a range of it.
    """
    lines = [_HEAD]
    for f in functions:
        reads = ", ".join(f"{p.name}: {p.type}" for p in f.params)
        writes = ", ".join(f"{r.name}: {r.type}" for r in f.results)
        lines.append(f"// ({reads}){''.join(f', {d}' for d in f.dims)} -> ({writes})")
        if ranged:
            lines.append(f"int {f.name}(void **args, int begin, int end);\n")
            continue
        tensor = "struct halide_buffer_t *{}".format
        formals = [*(tensor(p.name) for p in f.params), *(f"int32_t {d}" for d in f.dims)]
        formals += [tensor(r.name) for r in f.results]
        lines.append(f"int {f.name}({', '.join(formals)});\nint {f.name}_argv(void **args);\n")
    return "\n".join([*lines, _TAIL])


def archive(objects: Mapping[str, bytes]) -> bytes:
    """A static library in the format of GNU ar, with a symbol index; equal objects produce equal bytes.

    Objects other than ELF and WebAssembly are not indexed; their own `ranlib` can do that.
    """
    symbols = {name: _exported(data) for name, data in objects.items()}
    listed = [(symbol, name) for name, found in symbols.items() for symbol in found]
    text = b"".join(s.encode() + b"\0" for s, _ in listed)
    names, long_names = {}, b""
    for name in objects:
        names[name] = f"/{len(long_names)}"
        long_names += name.encode() + b"/\n"
    index_size = 4 + 4 * len(listed) + len(text)
    at = 8 + _padded(index_size) + _padded(len(long_names))
    offsets: dict[str, int] = {}
    for name, data in objects.items():
        offsets[name] = at
        at += _padded(len(data))
    index = len(listed).to_bytes(4, "big") + b"".join(offsets[n].to_bytes(4, "big") for _, n in listed) + text
    members = [("/", index), ("//", long_names), *((names[n], data) for n, data in objects.items())]
    return b"!<arch>\n" + b"".join(_member(name, data) for name, data in members)


def _exported(data: bytes) -> list[str]:
    if data.startswith(wasm.MAGIC):
        return wasm.exported(data)
    try:
        return elf.exported(data)
    except elf.LinkError:
        return []


def _padded(size: int) -> int:
    """Bytes of a member with its header."""
    return 60 + size + size % 2


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(data):<10}`\n"
    return head.encode() + data + b"\n" * (len(data) % 2)
