"""Texts and artifacts that a fuzzer of files damaged: each is refused when it is read, and says why."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from building import model_of

from occ.compiler.codegen_interp import TEXT
from occ.compiler.diagnostics import CompileError
from occ.compiler.driver.compilation import Compilation
from occ.compiler.driver.sessions import open_session
from occ.compiler.driver.settings import Settings
from occ.compiler.driver.source import parsed
from occ.compiler.frontend.text import parse
from occ.compiler.ir.te.bounds_check import out_of_bounds_read
from occ.runtime.artifact import LIBRARY, Artifact
from occ.runtime.errors import RunError

COMPRESSED = """module @m {stage="lowered", target="cpu-jit"} {
  dim _u0 "?"
  func @main(%x: i32[2,3], %c: bool[3]) -> i32[2,_u0] as "y" {
    %y = alloc() {host=true} : i32[2,_u0]
    host(%x, %c, %y) {axis=AXIS, n_results=1, routine="Compress", writes=1}
    return %y
  }
}
"""
SCANNED = """g (float[2,3] x, float[3] s) => (float[3] last, float[2,3] all) {
    last, all = Scan<num_scan_inputs=1, body = step (float[3] a, float[3] b) => (float[3] c, float[3] d) {
        c = Add(a, b)  d = Identity(c)
    }>(s, x)
}"""


def test_axis_of_a_step_that_its_operand_lacks_is_refused() -> None:
    """Native code for it was an internal error: nothing had looked at the attributes of steps of the runtime."""
    good = Compilation(parsed(COMPRESSED.replace("AXIS", "1")), Settings("cpu-jit", cache=False)).artifact()
    feeds = {"x": np.arange(6, dtype=np.int32).reshape(2, 3), "c": np.array([True, False, True])}
    assert open_session(good, 1).run(feeds)["y"].tolist() == [[0, 2], [3, 5]]
    with pytest.raises(CompileError, match="does not fit `Compress`") as e:
        parsed(COMPRESSED.replace("AXIS", "2"))
    assert e.value.diagnostics[0].code == "OCC0601"


def damaged(artifact: Artifact, old: str, new: str) -> Artifact:
    """An artifact of `interp` with another text, and its digest."""
    text = artifact.files[TEXT].decode()
    assert old in text
    changed = text.replace(old, new, 1).encode()
    artifact.files = {**artifact.files, TEXT: changed}
    artifact.manifest.digests[TEXT] = hashlib.sha256(changed).hexdigest()
    return artifact


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("body=@", "other=@", "runs no function as `body`"),
        (": (f32[3], f32[2,3])", ": (f32[3], f32[-7,3])", "has a result of -7 elements along an axis"),
    ],
)
def test_scan_without_a_function_or_with_less_than_nothing_is_refused(old: str, new: str, why: str) -> None:
    """Each ended a run with a KeyError or a ValueError."""
    whole = Compilation(model_of(SCANNED), Settings("interp", cache=False)).artifact()
    with pytest.raises(CompileError) as e:
        open_session(damaged(whole, old, new), 1)
    assert why in str(e.value)


def reads(stage: str, extent: str = "4") -> str:
    """Errors in a function of four elements that reads another way."""
    text = f"""module @m {{stage="scheduled", target="cpu-jit"}} {{
      func @main(%x: f32[4]) -> f32[4] as "y" {{
        %y = call(%x) {{te="k"}} : f32[{extent}]
        return %y
      }}
      te @k[](%p: f32[4]) -> (r: f32[{extent}]) {{
        r[i<{extent}] = {stage}
      }}
    }}
    """
    (f,) = parse(text).te.values()
    return out_of_bounds_read(f, {})


def test_reductions_over_more_than_64_bits_count() -> None:
    """numpy cannot lay out positions along such an axis."""
    assert reads(f"sum[k<{2**70}](%p[i])") == ""
    assert "reads p at" in reads(f"sum[k<{2**70}](%p[k])")
    assert "reads p at" in reads(f"sum[k<{2**62}](%p[i + k])")


def test_positions_beyond_64_bits_lie_outside() -> None:
    """They counted as unknown, like those that data decide, which native code clamps."""
    assert reads("%p[i]") == ""
    assert "reads p at" in reads(f"%p[i + i * {2**63 - 1}]")


def test_memory_that_overflows_at_small_sizes_is_refused() -> None:
    """Its bytes wrapped to few, and kernels wrote beyond them: what a size of 0 takes had been looked at."""
    text = """module @m {stage="lowered", target="cpu-jit"} {
      dim N "N"
      func @main(%x: f32[N]) -> f32[N] as "y" {
        %a = alloc() {first=0, last=1} : f32[N,N + EXTRA]
        kernel(%x, %a) {dims=[dim<N>], te="k", writes=1}
        %y = alloc() {output=0} : f32[N]
        kernel(%x, %y) {dims=[dim<N>], te="k", writes=1}
        return %y
      }
      te @k[D](%p: f32[D]) -> (r: f32[D]) {
        r[i<D] = %p[i]
      }
    }
    """
    parsed(text.replace("EXTRA", "6"))
    with pytest.raises(CompileError, match="more bytes than native code can count"):
        parsed(text.replace("EXTRA", str(2**62)))


def test_nothing_of_more_than_memory_has_along_an_axis_is_refused() -> None:
    """numpy lays out no such array, though it has no elements: a ValueError."""
    text = """module @m {stage="lowered", target="cpu-jit"} {
      func @main(%x: f32[0,2]) -> f32[0,2] as "y" {
        %y = alloc() {output=0} : f32[0,9223372036854775807]
        kernel(%x, %y) {te="k", writes=1}
        return %y
      }
      te @k[](%p: f32[0,2]) -> (r: f32[0,2]) {
        r[i<0, j<2] = %p[i, j]
      }
    }
    """
    parsed(text.replace("9223372036854775807", "2"))
    with pytest.raises(CompileError, match="more bytes than native code can count"):
        parsed(text)


def test_an_empty_library_is_refused(tmp_path) -> None:
    """It counted as none, so its digest was not requested."""
    made = Compilation(model_of("g (float[n] x) => (float[n] y) { y = Exp(x) }"), Settings("cpu-jit")).artifact()
    folder = made.save(tmp_path / "m", folder=True)
    (folder / LIBRARY).write_bytes(b"")
    with pytest.raises(RunError, match="does not match its digest"):
        Artifact.load(folder)


KERNEL = """module @m {stage="fused", target="cpu-jit"} {
  dim _u0 "?"
  func @main(%x: f32[4]) -> i64[1,_u0] as "y" {
    %y = fuse(%x) {kind="abs"} : i64[1,_u0]
      do (%a: f32[4]) {
        %b = Abs(%a) : f32[4]
        %c = NonZero(%b) : i64[1,_u0]
        yield %c
      }
    return %y
  }
}
"""


def test_step_of_the_runtime_in_a_kernel_is_refused() -> None:
    """It was an internal error where kernels are lowered."""
    with pytest.raises(CompileError) as e:
        parsed(KERNEL)
    assert any("which computes no `NonZero`" in note for d in e.value.diagnostics for note in d.notes)


@pytest.mark.parametrize("depth", [3, 1 << 32])
def test_scatter_that_indexes_more_axes_than_there_are(depth: int) -> None:
    """An index was made for each of them: 2^32 took more than minutes."""
    model = model_of(f"g (float[2,3] x, int64[1,{depth}] i, float[1] u) => (float[2,3] y) {{ y = ScatterND(x, i, u) }}")
    with pytest.raises(CompileError, match=rf"`ScatterND`.*\b{depth}\b.* 2"):
        Compilation(model, Settings("interp", cache=False)).advance("inferred")
