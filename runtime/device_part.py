"""Device parts in the manifest of an artifact."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        om: member with the compiled graph; empty until a toolkit has compiled it. Of a part with a program, what the
            names of its compiled operators begin with.
        weight_files: members with the weights of the compiled graph that `atc --external_weight` left outside of it.
        files: further members that the graph refers to (weights beyond what one protobuf message can hold).
        soc: exact version of the chip, as `aclrtGetSocName` spells it.
        precision: value of `precision_mode_v2` that the graph is compiled with (`origin`, `fp16`, ...).
        command: arguments of the toolkit's compiler, from the folder of the member.
        inputs, outputs: in the order of the graph.
        gears: sets of extents that the compiled graph takes, by symbol; empty where all extents are constant.
        ranges: least, most (-1 without an end) and step of the sizes that it takes, by symbol; empty without ranges.
        sums: what some of these sizes always are, another size and a number: `{"total": ["past", 1]}`.
        weights: bytes of constants.
        workspace: bytes of intermediate values that are alive at once, at most.
        program: member with the operators one by one, where they are not compiled as one graph; see
            `occ.runtime.acl.singleop`.
        toolkit: release of CANN that compiled `om`, as far as it is known.
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
        """The member where the script of an artifact leaves the compiled graph, when `om` does not name one."""
        return self.air.removesuffix(".air") + ".om"

    @property
    def constants(self) -> str:
        """The member with the constants of a program."""
        return self.air.removesuffix(".air") + ".constants"

    @property
    def memory(self) -> int:
        """Bytes of device memory that the part needs besides its inputs and outputs."""
        return self.weights + self.workspace
