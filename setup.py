"""Compiles the binding to the pinned ggml; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SDK = Path(__file__).parent / "sdk"

# The code that compiles is part of the package, but importing the package would load ggml (and
# numpy, which a build environment lacks): only the modules named here are run.
for name in ("ggmodel", "ggmodel.native"):
    package = ModuleType(name)
    package.__path__ = [str(SDK.joinpath(*name.split(".")))]
    sys.modules[name] = package
build = importlib.import_module("ggmodel.native.build")
prefix = importlib.import_module("ggmodel.native.install").find()


class BuildBinding(build_ext):
    """Builds the extension with the code that also binds other builds of ggml at run time."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if not target.is_file():
            build.compile_module(prefix, target.absolute())


module = f"ggmodel.native.{build.module_name(prefix)}"
setup(
    ext_modules=[Extension(module, sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildBinding},
    # One wheel for every Python: the extension uses the stable interface only.
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
