"""`occ config`: compiler flags for programs that use libocc."""

from __future__ import annotations

import shlex
from dataclasses import fields

import click

from occ.cli import options
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class _Wanted:
    """What to print: a flag for each option, in the order in which the error lists them."""

    cflags: bool
    libs: bool
    cmake: bool
    pkg_config: bool
    prefix: bool
    onnxifi: bool
    ep: bool
    ep_ascend: bool

    @property
    def any(self) -> bool:
        """Whether anything is requested."""
        return any(vars(self).values())

    @property
    def libocc(self) -> bool:
        """Whether anything about libocc is requested."""
        return self.cflags or self.libs or self.cmake or self.pkg_config or self.prefix


@click.command("config")
@click.option("--cflags", is_flag=True, help="Flags for compiling a program that includes occ.h.")
@click.option("--libs", is_flag=True, help="Flags for linking it with libocc.a.")
@click.option("--shared", is_flag=True, help="With --libs: flags for linking with libocc.so, which must not be moved.")
@click.option("--cmake", is_flag=True, help="The folder for CMAKE_PREFIX_PATH; then `find_package(occ)`.")
@click.option("--pkg-config", "pkg_config", is_flag=True, help="The folder for PKG_CONFIG_PATH; then `pkg-config occ`.")
@click.option("--prefix", is_flag=True, help="The folder with all files, which can be copied elsewhere.")
@click.option("--ep", is_flag=True, help="The path of the execution provider for onnxruntime; docs/onnxruntime.md.")
@click.option(
    "--ep-ascend",
    is_flag=True,
    help="The path of the execution provider for Ascend devices, which needs no model compiler there.",
)
@click.option("--onnxifi", is_flag=True, help="The path of libonnxifi-occ.so; onnxifi.h is next to it.")
@options.as_record(_Wanted, "wanted")
def command(shared: bool, wanted: _Wanted) -> None:
    """Print where libocc is, the library that runs artifacts without Python. It is built first if need be."""
    from occ.compiler.cache.cache import Cache
    from occ.compiler.onnxifi.library import onnxifi_library
    from occ.compiler.standalone.libocc import SYSTEM, libocc

    if not wanted.any:
        *names, last = [f"--{f.name.replace('_', '-')}" for f in fields(wanted)]
        raise click.UsageError(f"choose what to print: {', '.join(names)} or {last}")
    if wanted.ep or wanted.ep_ascend:
        from occ.onnxruntime.library import get_library_path

        for kind in ("cpu",) * wanted.ep + ("ascend",) * wanted.ep_ascend:
            click.echo(get_library_path(kind=kind))
    if wanted.onnxifi:
        click.echo(onnxifi_library(Cache()))
    if not wanted.libocc:
        return
    place = libocc(Cache())
    flags = [f"-I{place / 'include'}"] if wanted.cflags else []
    if wanted.libs and shared:
        flags += [f"-L{place / 'lib'}", f"-Wl,-rpath,{place / 'lib'}", "-locc"]
    elif wanted.libs:
        flags += [str(place / "lib/libocc.a"), *SYSTEM]
    lines = [shlex.join(flags)] if flags else []
    lines += [str(place)] * (wanted.cmake + wanted.prefix)
    lines += [str(place / "lib/pkgconfig")] * wanted.pkg_config
    click.echo("\n".join(lines))
