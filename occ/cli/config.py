"""`occ config`: compiler flags for programs that use libocc."""

from __future__ import annotations

import shlex

import click


@click.command("config")
@click.option("--cflags", is_flag=True, help="Flags for compiling a program that includes occ.h.")
@click.option("--libs", is_flag=True, help="Flags for linking it with libocc.a.")
@click.option(
    "--shared", is_flag=True, help="With --libs: flags for linking with libocc.so, which has to stay where it is."
)
@click.option("--cmake", is_flag=True, help="The folder for CMAKE_PREFIX_PATH; then `find_package(occ)`.")
@click.option("--pkg-config", "pkg_config", is_flag=True, help="The folder for PKG_CONFIG_PATH; then `pkg-config occ`.")
@click.option("--prefix", is_flag=True, help="The folder with all of it, which can be copied elsewhere.")
@click.option("--ep", is_flag=True, help="The path of the execution provider for onnxruntime; docs/onnxruntime.md.")
@click.option(
    "--ep-ascend", is_flag=True, help="The path of that for Ascend devices, which needs no compiler of models there."
)
@click.option("--onnxifi", is_flag=True, help="The path of libonnxifi-occ.so; onnxifi.h lies next to it.")
def command(
    cflags: bool, libs: bool, shared: bool, cmake: bool, pkg_config: bool, prefix: bool, onnxifi: bool, ep: bool,
    ep_ascend: bool,
) -> None:  # fmt: skip
    """Print where libocc is, the library that runs artifacts without Python. It is built first if need be."""
    from occ.compiler.cache.cache import Cache
    from occ.compiler.onnxifi.library import onnxifi_library
    from occ.compiler.standalone.libocc import SYSTEM, libocc

    if not (cflags or libs or cmake or pkg_config or prefix or onnxifi or ep or ep_ascend):
        raise click.UsageError(
            "say what to print: --cflags, --libs, --cmake, --pkg-config, --prefix, --onnxifi, --ep or --ep-ascend"
        )
    if ep or ep_ascend:
        from occ.onnxruntime.library import get_library_path

        for kind in ("cpu",) * ep + ("ascend",) * ep_ascend:
            click.echo(get_library_path(kind=kind))
    if onnxifi:
        click.echo(onnxifi_library(Cache()))
    if not (cflags or libs or cmake or pkg_config or prefix):
        return
    place = libocc(Cache())
    flags = [f"-I{place / 'include'}"] if cflags else []
    if libs and shared:
        flags += [f"-L{place / 'lib'}", f"-Wl,-rpath,{place / 'lib'}", "-locc"]
    elif libs:
        flags += [str(place / "lib/libocc.a"), *SYSTEM]
    lines = [shlex.join(flags)] if flags else []
    lines += [str(place)] * (cmake + prefix)
    lines += [str(place / "lib/pkgconfig")] * pkg_config
    click.echo("\n".join(lines))
