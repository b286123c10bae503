"""Backends that a build may have, and machines that lack what they need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ggmodel.builds import builder, requirements
from ggmodel.errors import NativeError

Notes = Callable[[], list[str]]


def test_options_of_cmake(tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch):
    nvcc = tmp_path / "tools" / "nvcc"
    assert requirements.options([]) == []
    assert requirements.options(["vulkan"]) == ["-DGGML_VULKAN=ON"]
    assert requirements.options(["cuda"]) == ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    monkeypatch.setenv("CUDACXX", "/opt/nvcc")  # cmake reads it itself
    assert requirements.options(["cuda"]) == ["-DGGML_CUDA=ON"]
    monkeypatch.setattr(requirements.sys, "platform", "darwin")
    assert requirements.options(["metal"]) == ["-DGGML_METAL=ON"]


@pytest.mark.parametrize(
    ("part", "compiler", "advice"),
    [("cuda", "nvcc", "CUDA toolkit"), ("vulkan", "glslc", "apt-get install glslc libvulkan-dev")],
)
def test_a_missing_compiler_of_kernels_is_named(
    tmp_path: Path, notes: Notes, part: str, compiler: str, advice: str
):
    (tmp_path / "tools" / compiler).unlink()
    with pytest.raises(
        NativeError, match=f"--{part} needs {compiler}, which is missing: .*{advice}"
    ):
        requirements.options([part])


@pytest.mark.parametrize(
    ("said", "needed"),
    [
        ("  Could NOT find Vulkan (missing: Vulkan_LIBRARY) (found\n  version)", "Vulkan"),
        (
            '  Could not find a package configuration file provided by "SPIRV-Headers"\n  with any',
            "SPIRV-Headers",
        ),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path,
    unpacked: Path,
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    needed: str,
):
    """The sentences are those of cmake 4.4."""
    monkeypatch.setenv("BREAKS", "--fresh")
    monkeypatch.setenv("SAYS", f"CMake Error at CMakeLists.txt:9 (find_package):\n{said}")
    llama = builder.source_folder(tmp_path, unpacked)
    with pytest.raises(NativeError, match=rf"^--vulkan needs {needed}, which .* libvulkan-dev"):
        builder.build_ggml(tmp_path / "ggml", ["-DGGML_VULKAN=ON"], root=llama)


def test_metal_is_for_macs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requirements.sys, "platform", "linux")
    with pytest.raises(NativeError, match="leave out --metal"):
        requirements.options(["metal"])


class TestVulkanHeaders:
    """Old ones would fail after minutes."""

    @pytest.fixture
    def build(self, tmp_path: Path, unpacked: Path, notes: Notes) -> Callable[[], None]:
        """Configured with headers in a folder."""
        work = tmp_path / "ggml.building"
        work.mkdir()
        headers = tmp_path / "headers" / "vulkan"
        headers.mkdir(parents=True)
        (headers / "vulkan.hpp").write_text("namespace vk {}")
        (work / "CMakeCache.txt").write_text(
            f"GGML_VULKAN:BOOL=ON\nVulkan_INCLUDE_DIR:PATH={headers.parent}\n"
        )
        llama = builder.source_folder(tmp_path, unpacked)
        return lambda: builder.build_ggml(tmp_path / "ggml", ["-DGGML_VULKAN=ON"], root=llama)

    def test_old_ones_are_refused_before_compiling(
        self, tmp_path: Path, notes: Notes, build: Callable[[], None]
    ):
        with pytest.raises(NativeError, match=r"lack LayerSettingTypeEXT.*Vulkan_INCLUDE_DIR="):
            build()
        assert len(notes()) == 1  # configured

    def test_new_ones_are_compiled(self, tmp_path: Path, build: Callable[[], None]):
        enums = tmp_path / "headers" / "vulkan" / "vulkan_enums.hpp"
        enums.write_text("enum class LayerSettingTypeEXT {};")
        build()
        assert (tmp_path / "ggml" / "include").is_dir()
