"""Small programs that are compiled against the libraries of llama.cpp."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
_HEADERS = ("include", "ggml/include", "common", "tools/mtmd")


def compiled(name: str, llama_cpp: Path, libraries: Path, folder: Path) -> Path:
    """A program of a source here, NAME.cpp.

    Args:
        llama_cpp: the folder of its source.
        libraries: that of its build.
        folder: takes the program, and may have headers for it.
    """
    command = ["g++", "-std=c++17", "-DLLAMA_SHARED", "-DGGML_SHARED", HERE / f"{name}.cpp"]
    command += ["-o", folder / name, f"-L{libraries}", f"-Wl,-rpath,{libraries}", f"-I{folder}"]
    command += [f"-I{llama_cpp / header}" for header in _HEADERS]
    command += [f"-l{library}" for library in ("mtmd", "llama", "ggml", "ggml-base")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / name


class Answers:
    """The program `answers`: greedy answers of llama.cpp.

    Args:
        folder: takes the program.
    """

    def __init__(self, llama_cpp: Path, libraries: Path, folder: Path):
        source = (llama_cpp / "common" / "common.cpp").read_text("utf-8")
        start = source.index("static common_control_vector_data common_control_vector_load_one(")
        last = source.index("\ncommon_control_vector_data common_control_vector_load(", start)
        end = source.index("\n}\n", last) + 3
        (folder / "control_vectors.inc").write_text(source[start:end], "utf-8")
        self._program = compiled("answers", llama_cpp, libraries, folder)

    def ask(self, file: Path, prompt: str, count: int, *vectors: str | Path) -> str:
        """The answer.

        Args:
            count: of tokens, at most.
            vectors: a file of control vectors, and their strength.
        """
        command = [self._program, file, prompt, str(count), *vectors]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.decode()
