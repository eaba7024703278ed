"""What Halide targets consist of: `arch-bits-os-feature-..` in any order, or `host-feature-..`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from occ.compiler.diagnostics import closest, error

# Of Halide 21: the first three parts, and the features that may follow in any order.
_ARCHES = ("arm", "hexagon", "powerpc", "riscv", "wasm", "x86")
_BITS = ("32", "64")
_SYSTEMS = ("android", "fuchsia", "ios", "linux", "noos", "osx", "qurt", "wasmrt", "windows")
_FEATURES = """
    arm_dot_prod arm_fp16 armv7s armv81a armv82a armv83a armv84a armv85a armv86a armv87a armv88a armv89a armv8a asan
    avx avx10_1 avx2 avx512 avx512_cannonlake avx512_knl avx512_sapphirerapids avx512_skylake avx512_zen4 avx512_zen5
    avxvnni c_plus_plus_name_mangling check_unsafe_promises cl_atomics64 cl_doubles cl_half cuda cuda_capability_30
    cuda_capability_32 cuda_capability_35 cuda_capability_50 cuda_capability_61 cuda_capability_70 cuda_capability_75
    cuda_capability_80 cuda_capability_86 d3d12compute debug egl embed_bitcode enable_backtraces enable_llvm_loop_opt
    f16c fma fma4 fuzz_float_stores hexagon_dma hvx hvx_128 hvx_v62 hvx_v65 hvx_v66 hvx_v68 jit large_buffers
    llvm_large_code_model metal msan no_asserts no_bounds_query no_neon no_runtime opencl power_arch_2_07 profile
    profile_by_timer rvv sanitizer_coverage semihosting simulator soft_float_abi spirv sse41 strict_float sve sve2
    trace_all trace_loads trace_pipeline trace_realizations trace_stores tsan user_context vk_float16 vk_float64
    vk_int16 vk_int64 vk_int8 vk_v10 vk_v12 vk_v13 vsx vulkan wasm_bulk_memory wasm_mvponly wasm_simd128 wasm_threads
    webgpu x86apx tune_amdfam10 tune_bdver1 tune_bdver2 tune_bdver3 tune_bdver4 tune_btver1 tune_btver2 tune_generic
    tune_k8 tune_k8_sse3 tune_znver1 tune_znver2 tune_znver3 tune_znver4 tune_znver5
"""
FEATURES = tuple(_FEATURES.split())
_WIDTH = re.compile("vector_bits_[1-9][0-9]{0,3}")


def in_order(name: str) -> str:
    """A Halide target with its machine first, as arch-bits-os: Halide accepts its parts in any order.

    Raises:
        CompileError: OCC0603 Halide does not know it, which is said before a kernel is compiled for it.
    """
    parts = name.split("-")
    machine = parts[:1] if parts[0] == "host" else [_one_of(known, parts) for known in (_ARCHES, _BITS, _SYSTEMS)]
    if "" in machine:
        meant = "`host`, or arch-bits-os such as x86-64-linux; then features, such as x86-64-linux-avx2-fma"
        raise error("OCC0603", f"option `halide.target` is `{name:.80}`, which does not name a machine", help=meant)
    features = list(parts)
    for part in machine:
        features.remove(part)
    if odd := [p for p in features if p not in FEATURES and not _WIDTH.fullmatch(p)]:
        raise error("OCC0603", f"option `halide.target` has no feature `{odd[0]:.80}`", help=closest(odd[0], FEATURES))
    return "-".join([*machine, *features])


def _one_of(known: Sequence[str], parts: Sequence[str]) -> str:
    """The first part that is known; empty if none is."""
    return next((p for p in parts if p in known), "")
