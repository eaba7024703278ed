"""`occ build --emit ort`: an ONNX model for onnxruntime, with what occ compiled inside."""

from __future__ import annotations

import click

from occ.cli import options
from occ.cli.build_outputs import Output
from occ.cli.build_summary import in_bytes
from occ.cli.console import json_line, say
from occ.cli.option_values import bounds_of, shapes_of, sizes_in_turn


def emit_ort(model: str, target: str, how: Output, flags: options.Flags, *, as_json: bool) -> None:
    """Write an ONNX model of EPContext nodes.

    Raises:
        click.UsageError: the model is not ONNX, or has options that such models do not support.
    """
    from occ.compiler.driver.outputs import check_out
    from occ.compiler.targets.registry import on_device
    from occ.onnxruntime.emit import emit

    if how.outputs:
        raise click.UsageError("--emit ort keeps the signature of the model: leave --outputs out")
    if not model.endswith(".onnx"):
        raise click.UsageError("--emit ort takes an .onnx file: nodes that occ does not compile stay unchanged")
    if how.out is not None and how.out.suffix == ".occ":
        raise click.UsageError(f"--emit ort writes an ONNX model: -o {how.out.with_suffix('.onnx')}")
    if bounds_of(flags.dims) or len(sizes_in_turn(flags.shapes, flags.dims)) > 1:
        raise click.UsageError("--emit ort takes one size for each input and dim, not bounds")
    shapes, given = shapes_of(flags.shapes), flags.target_options
    place = check_out(how.path(model, flags), [model])
    made = emit(model, place, target, embed=how.weights == "embed", dims=flags.sizes, shapes=shapes, options=given)
    facts = {
        "out": str(made.out),
        "groups": list(made.groups),
        "left": made.left,
        "reasons": list(made.reasons),
        "files": [str(f) for f in made.files],
    }
    if as_json:
        click.echo(json_line(facts))
        return
    say(f"wrote    {made.out} ({in_bytes(made.out.stat().st_size)})" + "".join(f", {f}" for f in made.files))
    say(f"groups   {len(made.groups)} of {sum(made.groups)} nodes; {made.left} nodes stay with onnxruntime")
    for reason in made.reasons:
        say(f"left     {reason}")
    library, page = ("--ep-ascend", "ascend-onnxruntime") if on_device(target) else ("--ep", "onnxruntime")
    say(f"next     onnxruntime with the library that `occ config {library}` prints; docs/{page}.md")
