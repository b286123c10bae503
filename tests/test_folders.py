"""Where ggmodel keeps things of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggmodel import storage
from ggmodel.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("platform", "data", "cache"),
    [
        ("linux", ".local/share", ".cache"),
        ("darwin", ".local/share", "Library/Caches"),
        ("win32", "local", "local"),
    ],
)
def test_the_usual_places(
    home: Path, monkeypatch: pytest.MonkeyPatch, platform: str, data: str, cache: str
):
    monkeypatch.setattr(storage.sys, "platform", platform)
    monkeypatch.setenv("LOCALAPPDATA", str(home / "local"))
    assert storage.data_folder() == home / data / "ggmodel"
    assert storage.cache_folder() == home / cache / "ggmodel"


def test_variables_come_first(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/some/data")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert storage.data_folder() == Path("/some/data/ggmodel")
    assert storage.cache_folder() == Path("/some/cache/ggmodel")


def test_a_user_without_a_home_is_told_the_variable(homeless: None):
    with pytest.raises(ConfigError, match="no home folder; set XDG_DATA_HOME"):
        storage.data_folder()
