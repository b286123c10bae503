"""The ggml that a wheel brings: damage is noticed, and so is a processor that none of it fits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggmodel import native
from ggmodel.errors import NativeError
from ggmodel.native import contents, install, loader
from ggmodel.platforms import machine


def list_files(prefix: Path, **instructions: list[str]) -> None:
    """Write the list of a prefix, as tools/wheel.py does."""
    files = {str(p.relative_to(prefix)): p.stat().st_size for p in prefix.rglob("*") if p.is_file()}
    needed = {f"libggml-cpu-{name}.so": names for name, names in instructions.items()}
    text = json.dumps({"files": files, "instructions": needed})
    (prefix / contents.NAME).write_text(text)


def use_the_installed_one(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Neither the environment nor the user chooses another."""
    monkeypatch.delenv("GGMODEL_GGML", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ggml beside the binding, as in a wheel, with headers and a version but empty libraries."""
    prefix = tmp_path / "ggml"
    for path in native.prefix.rglob("*"):
        if path.suffix in (".h", ".cmake"):
            copy = prefix / path.relative_to(native.prefix)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    [stated] = prefix.rglob("ggml-config-version.cmake")
    for name in ("ggml-base", "ggml-cpu-haswell"):
        (stated.parents[2] / machine.file_name(name)).write_bytes(b"a library")
    list_files(prefix)
    monkeypatch.setattr(install, "BUNDLED", prefix)
    use_the_installed_one(monkeypatch, tmp_path)
    return prefix


def test_the_ggml_of_the_wheel_comes_before_the_package(bundled: Path) -> None:
    assert install.find().path == bundled


def test_the_environment_variable_comes_before_the_ggml_of_the_wheel(
    bundled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGMODEL_GGML", str(native.prefix))
    assert install.find().path == native.prefix


def test_an_installation_from_source_uses_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_the_installed_one(monkeypatch, tmp_path)
    assert not install.BUNDLED.exists()
    assert install.find().path.name == "libggml"


@pytest.mark.parametrize(
    "pattern", ["include/ggml.h", "lib*/libggml-cpu-haswell*", "contents.json"]
)
def test_a_missing_file_is_named(bundled: Path, pattern: str) -> None:
    [path] = bundled.glob(pattern)
    path.unlink()
    with pytest.raises(NativeError, match=r"damaged: .* cannot be read: No such file") as caught:
        install.find()
    assert str(path) in str(caught.value)
    assert "pip install --force-reinstall ggmodel" in str(caught.value)


def test_a_file_that_was_cut_short_is_named(bundled: Path) -> None:
    [path] = bundled.glob("lib*/libggml-cpu-haswell*")
    path.write_bytes(b"a lib")
    with pytest.raises(NativeError, match=f"{path} has 5 bytes instead of 9; install it again"):
        install.find()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 1}', '{"files": {}}', "\udcff"])
def test_a_damaged_list_is_named(bundled: Path, text: str) -> None:
    (bundled / contents.NAME).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(NativeError, match=r"contents\.json is no list of files; install it again"):
        install.find()


def test_no_ggml_at_all_asks_for_another_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_the_installed_one(monkeypatch, tmp_path)
    monkeypatch.setattr(install, "BUNDLED", tmp_path / "ggml")
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NativeError, match=r"not installed; install it again: pip install"):
        install.packaged()


class TestProcessors:
    """A ggml that chooses one of several libraries of the CPU's functions."""

    @pytest.fixture
    def prefix(self, tmp_path: Path) -> install.Prefix:
        """A ggml with two such libraries: one cannot be loaded, one can."""
        (tmp_path / "libggml-cpu-damaged.so").write_bytes(b"a library")
        source = tmp_path / "fine.c"
        source.write_text("int ggml_backend_score(void) { return 0; }")
        fine = str(tmp_path / "libggml-cpu-fine.so")
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", fine], check=True)
        return install.Prefix(tmp_path, tmp_path, tmp_path, "1.2.3")

    @staticmethod
    def without_cpu(loaded: list[bytes]) -> Any:
        """A binding whose ggml finds nothing in the folders that it is told to look in."""
        return SimpleNamespace(
            lib=SimpleNamespace(
                GGML_BACKEND_DEVICE_TYPE_CPU=0,
                ggml_backend_reg_count=lambda: 0,
                ggml_backend_load_all_from_path=loaded.append,
                ggml_backend_dev_by_type=lambda kind: None,
            )
        )

    def test_backends_are_looked_for_in_its_folder_only(self, prefix: install.Prefix) -> None:
        looked: list[bytes] = []
        with pytest.raises(NativeError):
            loader._find_backends(self.without_cpu(looked), prefix)
        assert looked == [str(prefix.libraries).encode()]

    def test_the_instructions_that_it_needs_are_named(self, prefix: install.Prefix) -> None:
        list_files(prefix.path, fine=["AVX512", "AVX512_BF16"])
        with pytest.raises(NativeError, match="fits this processor") as caught:
            loader._find_backends(self.without_cpu([]), prefix)
        message = str(caught.value)
        assert "libggml-cpu-fine.so needs AVX512, AVX512_BF16" in message
        assert "libggml-cpu-damaged.so cannot be loaded" in message
        assert "`ggmodel ggml build`" in message

    def test_without_a_list_its_libraries_are_named(self, prefix: install.Prefix) -> None:
        with pytest.raises(NativeError, match=r"libggml-cpu-fine\.so needs instructions that"):
            loader._find_backends(self.without_cpu([]), prefix)

    def test_a_ggml_without_such_libraries_has_none(self, tmp_path: Path) -> None:
        empty = install.Prefix(tmp_path, tmp_path, tmp_path, "1.2.3")
        with pytest.raises(NativeError, match="fits this processor: it has none"):
            loader._find_backends(self.without_cpu([]), empty)
