"""Compiles the binding to ggml, and puts ggml itself into a wheel that brings its own.

Everything else is in pyproject.toml. GGMODEL_BUNDLE names the folder of the ggml to bring, as
tools/wheel.py builds it. Otherwise the package depends on the one of libggml-python.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SDK = ROOT / "sdk"

# The code that compiles is part of the package, but importing the package would load ggml (and
# numpy, which a build environment lacks): only the modules named here are run.
for name in ("ggmodel", "ggmodel.native"):
    package = ModuleType(name)
    package.__path__ = [str(SDK.joinpath(*name.split(".")))]
    sys.modules[name] = package
build = importlib.import_module("ggmodel.native.build")
install = importlib.import_module("ggmodel.native.install")

bundled = os.environ.get("GGMODEL_BUNDLE")
prefix = install.at(ROOT / bundled) if bundled else install.packaged()


class BuildPackage(build_py):
    """Adds the ggml that the wheel brings."""

    def run(self) -> None:
        if self.editable_mode:
            if bundled:
                sys.exit("GGMODEL_BUNDLE is for wheels; run from the sources with GGMODEL_GGML")
            return super().run()
        super().run()
        target = Path(self.build_lib, "ggmodel", "native", install.BUNDLED.name)
        shutil.rmtree(target, ignore_errors=True)  # of an earlier build
        if bundled:
            # The stamp of tools/wheel.py names folders of this machine.
            shutil.copytree(prefix.path, target, ignore=shutil.ignore_patterns("built-*"))


class BuildBinding(build_ext):
    """Builds the extension with the code that also binds other builds of ggml at run time."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if not target.is_file():
            build.compile_module(prefix, target.absolute())


# cffi and pycparser are needed at run time to bind another build of ggml (GGMODEL_GGML).
dependencies = [
    "numpy>=1.24",
    "cffi>=1.16",
    "pycparser>=2.21",
    "gguf>=0.17",
    "safetensors>=0.4",
    "jinja2>=3.1.6,<4",
    "tokenizers>=0.21",
    "pillow>=11",
    "rich>=13",
    "typer>=0.15,<0.28",  # later ones import pydantic, a tenth of a second for every command
    'psutil>=5.9; sys_platform != "linux"',  # memory and cores, where /proc does not tell them
]
if not bundled:
    dependencies.append("libggml-python==0.20.2.post1")

module = f"ggmodel.native.{build.module_name(prefix)}"
setup(
    install_requires=dependencies,
    ext_modules=[Extension(module, sources=[], py_limited_api=True)],
    cmdclass={"build_py": BuildPackage, "build_ext": BuildBinding},
    # One wheel for every Python: the extension uses the stable interface only.
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
