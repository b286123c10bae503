"""Public names that are imported when they are first used."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "lazy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from ggmodel.imports import lazily\n"
        "here = 1\n"
        "__getattr__, __dir__ = lazily(__name__, {'home': 'a b', 'lost': 'c'})\n"
    )
    (folder / "home.py").write_text("a = []\nb = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    import lazy_package  # type: ignore[import-not-found]

    yield lazy_package
    for name in [n for n in sys.modules if n.partition(".")[0] == "lazy_package"]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_used(package: ModuleType):
    assert "lazy_package.home" not in sys.modules
    assert package.a is package.a == []
    assert vars(package)["a"] is package.a
    assert "lazy_package.home" in sys.modules


def test_all_names_are_listed(package: ModuleType):
    assert {"a", "b", "c", "here"} <= set(dir(package))


def test_other_names(package: ModuleType):
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'nothing'"):
        _ = package.nothing
    with pytest.raises(ModuleNotFoundError):
        _ = package.c


@pytest.mark.parametrize("name", ["names", "chat", "nn"])
def test_no_module_takes_the_place_of_a_name(name: str):
    """A module of a package becomes its attribute once it is imported."""
    package = importlib.import_module(f"ggmodel.{name}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"ggmodel.{name}.{module.name}")
    for public in package.__all__:
        assert not isinstance(getattr(package, public), ModuleType), public
