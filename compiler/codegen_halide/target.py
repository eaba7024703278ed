"""The target `cpu`: te functions through Halide, the plan itself through LLVM."""

from __future__ import annotations

from collections.abc import Sequence

from occ.compiler.codegen_halide import build as halide
from occ.compiler.codegen_halide.compile_kernels import to_compile
from occ.compiler.codegen_halide.emit import generator
from occ.compiler.codegen_halide.options import CpuOptions
from occ.compiler.codegen_halide.pipeline import cpu
from occ.compiler.codegen_halide.programs import prepare
from occ.compiler.ir.module import Module, nodes_of
from occ.compiler.objects.archive import NativeCode, header
from occ.compiler.plan.plan import cpu_manifest
from occ.compiler.plan.specialised_plans import planned
from occ.compiler.targets.target import KERNEL_TYPES, Build, Generated, Target, Text
from occ.runtime.artifact import Artifact
from occ.runtime.machine import TILES, with_feature


def _generate(c: Build, m: Module) -> Generated:
    from occ.compiler.native_entry.build import entry_code  # LLVM takes most of a second to load

    setup, _ = halide.setup_for(c.options.halide_target, c.cache, c.options.sanitize)
    modules = [m, *c.specialised_modules()]
    machine = _needed(modules, setup.target)
    p = planned(modules, lambda m: cpu_manifest(m, machine))
    entry = entry_code(p.manifest, c.cache)
    built = halide.build(p.functions, p.nodes, setup, c.cache, jobs=c.jobs, entry=entry, tell=c.progress)
    objects = {name: path.read_bytes() for name, path in built.objects.items()}
    sources = {f"src/{name}": data for name, data in built.sources.items()}
    artifact = Artifact(p.manifest, p.weights, built.code, sources, _variants(c, machine))
    return Generated(artifact, NativeCode(objects, header(p.functions, ranged=False)), built.took)


def _needed(modules: Sequence[Module], target: str) -> str:
    """The machine that kernels need: a Halide target, and tiles (AMX) where one uses them."""
    uses = any(d.call == "in_tiles" for m in modules for f in m.te.values() for d in f.schedule)
    return with_feature(target, TILES) if uses else target


def _missing(c: Build, m: Module) -> int:
    """The number of kernels that a build would have to compile."""
    setup, _ = halide.setup_for(c.options.halide_target, c.cache, c.options.sanitize)
    nodes = nodes_of(m)
    return len(to_compile([setup.kernel(f, nodes.get(f.name, ())) for f in m.te.values()], setup, c.cache))


def _variants(c: Build, machine: str) -> list[Artifact]:
    """The model compiled for the other processors that the options name.

    Human-readable files are only in the first.
    """
    made: list[Artifact] = []
    for other in dict.fromkeys(c.options.others):
        c.progress(f"compiling for {other}")
        variant = c.artifact_with({"halide.target": other, "also": ""})
        variant.files = {n: data for n, data in variant.files.items() if not n.startswith(("src/", "ir/"))}
        if variant.manifest.machine not in (machine, *(v.manifest.machine for v in made)):
            made.append(variant)
    return made


def _generators(_: Build, m: Module, _format: str) -> str:
    nodes = nodes_of(m)
    return "\n".join(generator(f, nodes.get(f.name, ())) for f in m.te.values())


CPU = Target(
    name="cpu",
    doc="native CPU code through Halide; needs a C++ compiler",
    pipeline=cpu,
    generate=_generate,
    options=CpuOptions(),
    texts={"halide": Text(_generators)},
    dtypes=KERNEL_TYPES,
    prepare=prepare,
    missing=_missing,
    sooner="cpu-jit",
    special=True,
)
