"""Device parts in the manifest of an artifact."""

from __future__ import annotations

from dataclasses import field

from occ.runtime.dataclass import dataclass
from occ.runtime.dims import DimExpr


@dataclass(frozen=True)
class PartTensor:
    """An input or output of a device part.

    Attributes:
        name: of the graph input, or of the node that computes the output.
        format: `ND`, `NCHW` or `NCDHW`.
    """

    name: str
    dtype: str
    shape: list[DimExpr]
    format: str = "ND"


@dataclass(frozen=True)
class DevicePart:
    """A part of the model that an accelerator runs.

    Attributes:
        name: as in `Step.name`.
        air: member with the GE graph, in the folder `device/`.
        om: member with the compiled graph; empty until a toolkit has compiled it. For a part with a program, the name
            prefix of its compiled operators.
        weight_files: members with the weights of the compiled graph that `atc --external_weight` left outside of it.
        files: further members that the graph refers to (weights beyond what one protobuf message can hold).
        soc: exact version of the chip, as `aclrtGetSocName` spells it.
        precision: value of `precision_mode_v2` that the graph is compiled with (`origin`, `fp16`, ...).
        command: arguments of the toolkit's compiler, from the folder of the member.
        inputs, outputs: in the order of the graph.
        gears: sets of extents that the compiled graph supports, by symbol; empty if all extents are constant.
        ranges: minimum, maximum (-1 for none) and step of supported sizes, by symbol; empty without ranges.
        sums: fixed relations of these sizes, another size plus a number: `{"total": ["past", 1]}`.
        weights: bytes of constants.
        workspace: maximum bytes of intermediate values alive at once.
        program: member with the operators one by one, if they are not compiled as one graph; see
            `occ.runtime.acl.singleop`.
        toolkit: the CANN release that compiled `om`, if known.
    """

    name: str
    air: str
    soc: str
    precision: str
    inputs: list[PartTensor]
    outputs: list[PartTensor]
    om: str = ""
    weight_files: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    gears: list[dict[str, int]] = field(default_factory=list)
    ranges: dict[str, list[int]] = field(default_factory=dict)
    sums: dict[str, tuple[str, int]] = field(default_factory=dict)
    weights: int = 0
    workspace: int = 0
    toolkit: str = ""
    program: str = ""

    @property
    def beside(self) -> str:
        """The member where an artifact's script puts the compiled graph, if `om` does not name one."""
        return self.air.removesuffix(".air") + ".om"

    @property
    def constants(self) -> str:
        """The member with the constants of a program."""
        return self.air.removesuffix(".air") + ".constants"

    @property
    def memory(self) -> int:
        """Bytes of device memory that the part needs in addition to its inputs and outputs."""
        return self.weights + self.workspace
