"""Builds the newest ggml that a package carries as source, for this machine.

    python newest.py ggml FOLDER    headers and shared libraries, with RPC, for GGMODEL_GGML
    python newest.py peer FOLDER    llama.cpp's own programs, in FOLDER/bin, to compare with
    python newest.py mtmd FOLDER    its libraries alone, libmtmd among them, in half the time
    python newest.py ik FOLDER      ik_llama.cpp's, of the source that IK_SOURCE names

The source is downloaded once, beside FOLDER; GGMODEL_PEERS may name an unpacked package instead.
CMAKE_ARGS adds options, such as -DGGML_CUDA=ON. A successful build leaves FOLDER/built-VERSION; an
interrupted one resumes when it is started again. This needs Python's standard library, compilers,
and cmake and ninja from PyPI. Users of the package have `ggmodel ggml build`, which is the same.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sdk"))  # nothing may be installed yet

from ggmodel import builds
from ggmodel.builds import builder
from ggmodel.errors import Error

VERSION = builds.VERSION

_BENCHMARKS = ("llama-bench", "llama-batched-bench")
_PROGRAMS = (*_BENCHMARKS, "llama-completion", "llama-server")


def source(cache: Path) -> Path:
    """The folder of llama.cpp; the package is downloaded into `cache`, once."""
    folder = os.environ.get("GGMODEL_PEERS")
    return builder.source_folder(cache, Path(folder) if folder else None)


def build_ggml(folder: Path) -> None:
    """Build and install ggml into `folder`, which is replaced at the end."""
    builder.build_ggml(folder, root=source(folder.parent / "source"))


def build_peer(folder: Path) -> None:
    """Build llama.cpp's benchmarks and server with its own settings, in `folder`."""
    builder.build_programs(folder, _PROGRAMS, root=source(folder.parent / "source"))


def build_mtmd(folder: Path) -> None:
    """Build llama.cpp's libraries that programs for tests are linked to, in `folder`."""
    builder.build_programs(folder, ("mtmd",), root=source(folder.parent / "source"))


def build_ik(folder: Path) -> None:
    """Build the benchmarks of ik_llama.cpp, a second peer that no package carries, in `folder`."""
    root = os.environ.get("IK_SOURCE")
    if not root:
        sys.exit("say where ik_llama.cpp's source lies: IK_SOURCE=FOLDER")
    builder.build_programs(folder, _BENCHMARKS, root=Path(root).absolute())


if __name__ == "__main__":
    builders = {"ggml": build_ggml, "peer": build_peer, "mtmd": build_mtmd, "ik": build_ik}
    if len(sys.argv) != 3 or sys.argv[1] not in builders:
        sys.exit(__doc__)
    try:
        builders[sys.argv[1]](Path(sys.argv[2]).absolute())
    except Error as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
