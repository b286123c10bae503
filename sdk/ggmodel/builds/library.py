"""The ggml in use, and builds of others: made, tested and chosen.

ggml is loaded in child processes only, so that a broken one ends none but them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import concurrency, storage
from .. import ggml_choice as choice
from ..errors import NativeError
from ..platforms import processor
from . import builder, requirements
from .builder import STAMP, Progress

GAIN = (
    "the prebuilt ggml 0.20.2 decodes Q8_0 at 0.58 × of llama.cpp's speed and reads prompts at "
    "0.62 to 0.71 ×, where no kernel of our own serves; one that is built here at 0.9 × and more"
)
"""The figures of docs/performance.md."""
_PREBUILT = "0.20.2"
_OTHER = "one that is built here uses those, too, and reads prompts faster"

VARIABLE = "GGMODEL_GGML"

_PATIENCE = 300.0  # seconds; a new ggml's binding is compiled first
_COMPILING = (
    1800.0  # seconds; a GPU's driver compiles kernels for minutes, on a busy machine for more
)
_DESCRIBE = """
import json, sys
from ggmodel.errors import Error
try:
    from ggmodel.native import describe
    print(json.dumps(describe()))
except Error as error:
    sys.exit(str(error))
"""


@dataclass(frozen=True)
class InUse:
    """The ggml that this environment uses.

    Attributes:
        origin: the way it was found.
        about: see `native.describe`; empty if it cannot be used.
        problem: the reason, or "".
        unused: instructions of this processor that its CPU backend does not use.
    """

    origin: str
    about: dict[str, Any]
    problem: str
    unused: list[str]

    @property
    def gain(self) -> str:
        """The advantage of a better build, or ""."""
        if not self.unused or choice.is_native(Path(self.about["prefix"])):
            return ""
        return GAIN if self.about["version"] == _PREBUILT else _OTHER


@dataclass(frozen=True)
class Kept:
    """A build in the user's data folder.

    Attributes:
        version: of its source. options: of cmake. finished: False after an interruption.
        chosen: it is the default.
    """

    name: str
    path: str
    version: str = ""
    options: list[str] = field(default_factory=list)
    finished: bool = True
    chosen: bool = False


def in_use() -> InUse:
    """The ggml that models run on now."""
    try:
        about, problem = described(), ""
    except NativeError as error:
        about, problem = {}, str(error)
    return InUse(_origin(), about, problem, processor.missing(about["features"]) if about else [])


def builds() -> list[Kept]:
    """The builds in the user's data folder, by name."""
    complete = builder.build_names()
    listed = [
        Kept(name, str(builder.path_of(name)), finished=False)
        for name in builder.unfinished()
        if name not in complete
    ]
    for name in complete:
        path = builder.path_of(name)
        about = choice.read_stamp(path) or choice.Stamp("")
        chosen = choice.is_chosen(path)
        listed.append(Kept(name, str(path), about.version, about.options, chosen=chosen))
    return sorted(listed, key=lambda one: one.name)


def build(
    name: str,
    parts: Sequence[str],
    options: Sequence[str],
    *,
    unpacked: Path | None = None,
    progress: Progress,
) -> dict[str, Any] | None:
    """Builds a ggml for this machine, tests it, and makes it the default.

    Args:
        parts: names of `kits.KITS`.
        options: of cmake.
        unpacked: the source package, if it is not to be downloaded.

    Returns:
        The result of its self-test; None if there is a build with the same options.

    Raises:
        NativeError: it cannot be built, or computes wrongly; the default stays what it was.
    """
    path = builder.path_of(name)
    builder.refuse_others(path)
    options = [*requirements.options(parts), *options]
    requested = builder.requested(options)
    existing = choice.read_stamp(path)
    if existing and (path / STAMP).exists() and existing.options == requested:
        return None
    requirements.need_compilers()
    requirements.need_python_headers()
    progress(0.0, "downloading the source")
    root = builder.source_folder(storage.cache_folder() / "source", unpacked)
    result: dict[str, Any] = {}

    def check(done: Path) -> None:
        result.update(_child(["-m", "ggmodel.workbench.selftest"], done, _COMPILING))
        builder.write_stamp(done, options=requested, features=result["features"])

    builder.build_ggml(path, options, root=root, progress=progress, check=check)
    choice.choose(path)
    return result


def use(name: str) -> InUse:
    """Makes a ggml the default, once it was loaded.

    Args:
        name: of a build, "default" for the installed one, or the path of a folder.

    Raises:
        NativeError: there is none, or it cannot be loaded; the default stays what it was.
    """
    if name == choice.INSTALLED:
        choice.choose(None)
        return in_use()
    if "/" in name or os.sep in name or name.startswith(("~", ".")):
        path = Path(name).expanduser().absolute()
    else:
        path = builder.path_of(name)
        if name not in builder.build_names():
            names = ", ".join([choice.INSTALLED, *builder.build_names()])
            raise NativeError(f"no build is called {name!r}; there are: {names}; or give a path")
    choice.need_processor(path)
    described(path)
    choice.choose(path)
    return in_use()


def described(prefix: Path | None = None) -> dict[str, Any]:
    """`native.describe` of the ggml in a folder, or of the one in use.

    Raises:
        NativeError: it cannot be loaded.
    """
    return _child(["-c", _DESCRIBE], prefix)


def _origin() -> str:
    if os.environ.get(VARIABLE):
        return f"named by {VARIABLE}"
    try:
        chosen = choice.chosen()
    except NativeError:
        return "chosen by `ggmodel ggml use`"
    return "installed with ggmodel" if chosen is None else "chosen by `ggmodel ggml use`"


def _child(
    arguments: Sequence[str], prefix: Path | None, patience: float = _PATIENCE
) -> dict[str, Any]:
    """The JSON that a child process prints within `patience` seconds."""
    variables = {} if prefix is None else {VARIABLE: str(prefix)}
    streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    try:
        process = concurrency.start_python(
            arguments, variables, stdin=subprocess.DEVNULL, **streams
        )
    except OSError as error:
        raise NativeError(f"ggml cannot be tried in a process of its own: {error}") from error
    with process:
        try:
            printed, errors = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NativeError(f"ggml did not answer in {patience:g} s; it may be broken") from None
        except BaseException:
            process.kill()
            raise
    message = errors.decode(errors="replace").strip()
    if process.returncode == 1 and message:
        raise NativeError(message[-4000:])
    if process.returncode:
        how = concurrency.ending(process.returncode, message.rpartition("\n")[2])
        raise NativeError(f"the process that tried this ggml {how}")
    return json.loads(printed.decode().strip().rpartition("\n")[2])
