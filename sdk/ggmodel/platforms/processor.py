"""The instructions of this processor, under the names that ggml has for its kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

# ggml's name: the flags of Linux, one word for all that ggml's kernels use together.
_X86 = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX_VNNI": "avx_vnni",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f avx512cd avx512vl avx512dq avx512bw",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_tile amx_int8",
}
_ARM = {
    "NEON": "asimd",
    "FP16_VA": "asimdhp",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
    "SME": "sme",
}
_LINUX = {**_X86, **_ARM}

# macOS: names below hw.optional.
_DARWIN = {
    "NEON": "neon",
    "FP16_VA": "arm.FEAT_FP16",
    "DOTPROD": "arm.FEAT_DotProd",
    "MATMUL_INT8": "arm.FEAT_I8MM",
    "SME": "arm.FEAT_SME",
    "SSE3": "sse3",
    "SSSE3": "supplementalsse3",
    "AVX": "avx1_0",
    "AVX2": "avx2_0",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512vnni",
    "AVX512_BF16": "avx512bf16",
}

# Windows: numbers of IsProcessorFeaturePresent, which knows few.
_WINDOWS = {"SSE3": 13, "SSSE3": 36, "AVX": 39, "AVX2": 40, "AVX512": 41, "DOTPROD": 43}


@cache
def kernels() -> frozenset[str] | None:
    """ggml's names of the instructions that this processor has, of those that can be told on this
    system; None where nothing can be."""
    with suppress(Exception):  # a system may lack any of these ways
        if sys.platform == "darwin":
            return _present(_darwin()) or None
        if sys.platform == "win32":
            return _present(_windows()) or None
        return _linux(CPUINFO)
    return None


def missing(features: Iterable[str]) -> list[str]:
    """Instructions of this processor that a build of ggml with these features does not use."""
    own, built = kernels() or frozenset(), frozenset(features)
    if "AVX512_VNNI" in built:  # the same products, on wider vectors
        own -= {"AVX_VNNI"}
    return [name for name in _LINUX if name in own - built]


def lacking(features: Iterable[str]) -> list[str]:
    """Instructions that a build of ggml with these features uses and this processor has not, of
    those that can be told."""
    own = kernels()
    if own is None:
        return []
    named = {"linux": _LINUX, "darwin": _DARWIN, "win32": _WINDOWS}.get(sys.platform, _LINUX)
    return [name for name in features if name in named and name not in own]


def _linux(path: Path) -> frozenset[str] | None:
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:  # the first processor stands for all
            label, _, text = line.partition(":")
            if label.strip() in ("flags", "Features"):
                flags = set(text.split())
                return frozenset(
                    name for name, need in _LINUX.items() if flags.issuperset(need.split())
                )
            if not line.strip():
                return None
    return None


def _present(present: Iterable[tuple[str, bool]]) -> frozenset[str]:
    return frozenset(name for name, there in present if there)


def _darwin() -> Iterable[tuple[str, bool]]:
    import ctypes

    ask = ctypes.CDLL(None).sysctlbyname
    for name, key in _DARWIN.items():
        value, size = ctypes.c_int64(), ctypes.c_size_t(8)
        code = ask(f"hw.optional.{key}".encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
        yield name, code == 0 and value.value != 0


def _windows() -> Iterable[tuple[str, bool]]:
    import ctypes

    ask = ctypes.windll.kernel32.IsProcessorFeaturePresent  # type: ignore[attr-defined]
    for name, number in _WINDOWS.items():
        yield name, bool(ask(number))
