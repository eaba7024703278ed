"""The pass `generalize-sizes`: kernels of equal structure become one, for any sizes."""

from __future__ import annotations

from typing import Any, ClassVar

from occ.compiler.ir.module import Module
from occ.compiler.passes.base import Context, Pass
from occ.compiler.passes.lower.lower_te import kernel_name
from occ.compiler.passes.te.generalize import General, generalized
from occ.runtime.dataclass import dataclass


@dataclass(frozen=True)
class GeneralizeSizes(Pass):
    """Turns extents of scheduled te functions into dims, so that kernels of equal structure are shared.

        Facts that the schedules rely on are kept: a multiple of the tile, at least one. Calls pass the numbers, and
        functions that become equal are kept once.

        `te @f[](%x: f32[3136,64], ..)`, `te @g[](%x: f32[784,128], ..)` --> `te @f[D0, D1](%x: f32[4*D0,8*D1], ..)`
    The schedule was chosen for the actual sizes, so tiles and the order of sums are those of a kernel for these sizes
    alone. The outer loops of products take one form (te/uniform_loops.py), also in their variants for few rows: how
    long blocks of rows and columns are decides their order, and is a value of the call, as are how far apart rows are,
    the blocks of long rows of maps, the steps of windows of more than 8 terms, the starts of slices, and long borders
    before a row (te/index_values.py). The last vector of a row of a map or window overlaps the one before, so that no
    row need be a multiple of vectors. With that and tiles of 7 rows, 25 models have 717 kernels instead of 744.
    Extents that it unrolls or keeps in registers stay numbers: taps of windows, colour channels, tiles. So do those
    that pay to be known, measured on Sapphire Rapids as the time of a kernel for any such extent over one that knows
    it:
    - Planes up to 128 wide over which windows of depthwise convolutions, pools and first layers slide: 1.1 to 2.4,
      since most of their loops are at a border (MobileNet v2, ShuffleNet).
    - The channels of these, where they are the last axis: 1.06 to 1.16 (MobileNet v2), for 1 kernel more of 28.
    - The terms of products of two operands in rows, or the columns if these are fewer: 1.7 to 2.1 (`MatMul` of two
      inputs), since one of them is how far apart the rows of an operand are.
    - The width of the panels in which a kernel packs the columns of an operand: 3.6 (`MatMul` of two inputs of unknown
      sizes, Zen 4), since it divides indices.
    - Tables that have an element for each code of a byte: 1.5 (`QLinearSigmoid`).
    - The rows of borders up to 128 long (`Pad`): 1.8.
    - Parts of rows up to 128 long (`Slice`): 1.1 to 1.3 (Zen 4).
    - The lanes that a sum of products adds up apart, one vector: 4 (filters of 256 taps, Zen 4), in memory instead of a
      register.
    - The terms of products of up to 32: 1.04 to 1.1 (MobileNet v2), for 2 kernels more of 28. Up to 128 terms it is
      about 1.02, for 6 kernels more of 48 in a YOLOv8n.
    - The channels of Winograd convolutions that do not fill vectors: 1.2 to 2, 1.02 to 1.04 of models (Zen 4).
    - The planes of Winograd convolutions that tiles do not fill, or of fewer than 25 tiles, or of which 8 are
      multiplied together: 1.06 (a UNet, Zen 4). Others share a kernel (te/plane_sizes.py), which Halide takes 1.5 times
      as long to compile: a slider has 51 kernels instead of 57.

    Without schedules, as on `cpu-jit`, up to `rows` filters of a convolution or rows of a product are computed
    together: where they are a multiple of it, or of a half or a quarter, that is kept. Rows of sums up to 128 long stay
    numbers too, since the vectors in one decide how many rows that is.
    """

    rows: int = 1

    name: ClassVar[str] = "generalize-sizes"

    def run(self, m: Module, ctx: Context) -> bool:
        made: dict[str, tuple[str, General]] = {}  # old name -> new name and its arguments
        known = dict(m.te)
        names: dict[str, str] = {}
        for name, f in known.items():
            if f.halide:
                continue
            found = generalized(f, self.rows)
            ctx.hits[self.name] += found is not None
            shared = found or General(f, ())  # named by its schedule too: another one may become equal to it
            new, text = kernel_name(name.rpartition("_")[0], shared.function)
            made[name] = names.setdefault(text, new), shared
            del m.te[name]
            m.te.setdefault(made[name][0], shared.function.with_name(made[name][0]))
        if ctx.schedule_log is not None:
            ctx.schedule_log.kernels |= {old: new for old, (new, _) in made.items()}
        for op in m.walk():
            if op.name == "call" and op.attrs["te"] in made:
                name, shared = made[op.attrs["te"]]
                more: dict[str, Any] = {"te": name}
                if dims := shared.dims(op.attrs.get("dims", ())):
                    more["dims"] = dims
                op.attrs = {**op.attrs, **more}
        return any(old != new for old, (new, _) in made.items())
