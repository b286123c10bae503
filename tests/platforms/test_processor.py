"""Instructions of processors, under ggml's names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ggmodel.platforms import processor

X86 = """processor\t: 0
flags\t\t: fpu pni ssse3 avx f16c fma avx2 bmi2 avx512f avx512cd avx512vl avx512dq avx512bw \
avx512_vnni amx_int8 avx_vnni

processor\t: 1
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd asimdhp asimddp i8mm sve
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(processor.sys, "platform", "linux")
    processor.kernels.cache_clear()
    yield
    processor.kernels.cache_clear()


def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")


def test_x86(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cpuinfo(tmp_path, monkeypatch, X86)
    # AMX needs tiles, too.
    plain = ["SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2"]
    assert processor.kernels() == {*plain, "AVX_VNNI", "AVX512", "AVX512_VNNI"}
    assert processor.missing([*plain, "REPACK"]) == ["AVX_VNNI", "AVX512", "AVX512_VNNI"]
    assert processor.missing([*plain, "AVX512", "AVX512_VNNI"]) == []
    assert processor.lacking([*plain, "AVX512_BF16", "REPACK", "OPENMP"]) == ["AVX512_BF16"]


def test_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cpuinfo(tmp_path, monkeypatch, ARM)
    assert processor.missing(["NEON", "ARM_FMA"]) == ["FP16_VA", "DOTPROD", "MATMUL_INT8", "SVE"]
    assert processor.lacking(["NEON", "ARM_FMA", "SME", "SVE_CNT"]) == ["SME"]


@pytest.mark.parametrize("text", ["", "processor : 0\n\n", "flags"])
def test_without_flags_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    cpuinfo(tmp_path, monkeypatch, text)
    assert not processor.missing([]) and not (processor.kernels() and text == "")


def test_without_proc_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    assert processor.kernels() is None
    assert processor.missing(["AVX"]) == processor.lacking(["AVX512"]) == []


@pytest.mark.parametrize(("platform", "way"), [("darwin", "_darwin"), ("win32", "_windows")])
def test_other_systems(monkeypatch: pytest.MonkeyPatch, platform: str, way: str):
    monkeypatch.setattr(processor.sys, "platform", platform)
    answers = [("NEON", True), ("DOTPROD", True), ("SME", False)]
    monkeypatch.setattr(processor, way, lambda: answers)
    assert processor.missing(["NEON"]) == ["DOTPROD"]
    # Windows cannot tell whether there is SME.
    assert processor.lacking(["NEON", "SME"]) == (["SME"] if platform == "darwin" else [])


def test_a_system_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processor.sys, "platform", "win32")  # ctypes has no windll here
    assert processor.kernels() is None
