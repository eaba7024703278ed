"""Compiler and linker flags for Linux and WebAssembly."""

from __future__ import annotations

import re
from collections.abc import Mapping

from occ.compiler.objects.processors import Arch
from occ.runtime.dataclass import dataclass

_STACK = 1 << 20  # bytes: kernels keep tiles there, and wasm-ld reserves 64 KiB


@dataclass(frozen=True)
class System:
    """How C++ becomes programs.

    Attributes:
        suffixes: of the files that `--emit` writes, by its kinds.
        flags: of the compiler, in addition to common ones.
        libraries: appended to the command line.
        c: the C compiler in link lines, for `{arch}`.
        constant: directives that define a constant NAME with the {size} bytes of a {file}.
    """

    suffixes: Mapping[str, str]
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    c: str
    constant: tuple[str, ...]


LINUX = System(
    {"static": ".a", "shared": ".so", "object": ".o"},
    ("-fPIC",),
    ("-ldl", "-lpthread", "-lm"),  # parts of libc, by name for C libraries older than glibc 2.34
    "{arch}-gcc",
    (".section .rodata", ".balign 64", "{name}:", '.incbin "{file}"', ".previous"),
)
# The stack comes first, so that overflowing it ends the program, instead of overwriting its data.
WASI = System(
    {"static": ".a", "shared": ".wasm", "object": ".o"},
    (),
    ("-lm", f"-Wl,-z,stack-size={_STACK}", "-Wl,--stack-first"),
    "clang --target={arch}",
    (
        ".type {name},@object",
        '.section .rodata.{name},"",@',
        ".p2align 6",
        "{name}:",
        '.incbin "{file}"',
        ".size {name}, {size}",
        ".text",
    ),
)


def constant(system: System, name: str, file: str, size: int) -> str:
    """A C++ statement that links a file in."""
    text = "\\n".join(system.constant).format(name=name, file=file, size=size).replace('"', '\\"')
    return f'asm("{text}");'


def system_of(arch: Arch | None) -> System:
    """The system of a kind of machine; this machine's for None."""
    return WASI if arch is not None and arch.system == "wasi" else LINUX


def module_flags(name: str, counts: list[str], public_header: str) -> list[str]:
    """The wasm-ld options for a module that a host calls, instead of a program with `main`.

    Args:
        name: of the model.
        counts: functions that report the element counts of its outputs.
        public_header: the text of occ.h.
    """
    functions = re.findall(r"^OCC_API [^(]*?\b(occ_\w+)\(", public_header, re.MULTILINE)
    exported = ["malloc", "free", *functions, f"{name}_open", f"{name}_open_memory", f"{name}_run", *counts]
    return [
        "-mexec-model=reactor",
        "-nostdlib++",
        "-Wl,--strip-debug",
        *(f"-Wl,--export-if-defined={n}" for n in exported),
    ]
