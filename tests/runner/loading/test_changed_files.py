"""A model whose file changes refuses to go on; the process and other models live.

Each case runs in a process of its own, which a bus error would end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

_STORIES = ROOT / "examples" / "assets" / "stories.gguf"
_TIMEOUT = 120

_GENERATE = """
import os, shutil, sys
import ggmodel
from ggmodel.errors import FormatError

path, other = sys.argv[1:3]

def change(how):
    size = os.path.getsize(path)
    if how == "overwrite":
        with open(path, "r+b") as file:
            file.seek(size // 2)
            file.write(bytes(size // 4))
    elif how == "copy":
        with open(path, "wb") as file:  # as cp does
            file.write(b"GGUF")
    else:
        os.truncate(path, int(size * float(how)))

def refusal(call):
    try:
        call()
    except FormatError as error:
        assert f"{path} has changed on disk while it was loaded" in str(error), error
        return str(error)
    raise AssertionError("no error")

for how in sys.argv[3:]:
    shutil.copy(other, path)
    options = {"threads": 2, "context_length": 128}
    with ggmodel.load(path, **options) as model, ggmodel.load(other, **options) as second:
        text = second.generate("A bear", max_tokens=3, temperature=0)
        assert model.generate("A bear", max_tokens=3, temperature=0) == text
        os.utime(path)  # as people do against purging
        stream = model.stream("A fox", max_tokens=50)
        next(stream)
        os.utime(path)
        assert next(stream)
        change(how)
        prompt = "Once upon a time there was a bear and a fox "
        first = refusal(lambda: list(stream))
        assert refusal(lambda: model.generate(prompt)) == first
        assert refusal(lambda: model.logits(prompt)) == first
        assert refusal(lambda: model.stream(prompt)) == first
        assert second.generate("A bear", max_tokens=3, temperature=0) == text
print("alive")
"""

_LOAD = """
import os, shutil, sys
import ggmodel
from ggmodel.errors import FormatError
from ggmodel.gguf_file import GGUF

path, other = sys.argv[1:3]
for share in sys.argv[3:]:
    shutil.copy(other, path)
    source = GGUF(path)
    os.truncate(path, int(os.path.getsize(path) * float(share)))
    try:
        ggmodel.load(source)
        raise AssertionError("loaded")
    except FormatError as error:
        assert f"{path} has changed" in str(error), error
    def cut(done):
        os.truncate(path, 40_000)
    shutil.copy(other, path)
    try:
        ggmodel.load(path, progress=cut)
        raise AssertionError("loaded")
    except FormatError as error:
        assert f"{path} has changed" in str(error), error
print("alive")
"""

_PROCESS = """
import os, shutil, sys
import ggmodel
from ggmodel.errors import FormatError
from ggmodel.ml.process import RunnerProcess

path, other = sys.argv[1:3]
from ggmodel.gguf_file import GGUF
from ggmodel.ml import BackendParams, new_backend
shutil.copy(other, path)
with RunnerProcess() as runner, GGUF(path) as source:
    with new_backend(source, BackendParams(num_threads=2), "ggml", runner=runner) as backend:
        table = backend.get("token_embd.weight")
        with backend.new_context() as ctx, ctx.trace():
            row = table.rows(ctx.input().from_ints([1]))
            ctx.forward(row)
            graph = backend.compile(ctx.graph, (row,))
            backend.load()
            graph.run()
            os.truncate(path, 1000)
            for _ in range(2):
                try:
                    graph.run()
                    raise AssertionError("computed")
                except FormatError as error:
                    assert f"{path} has changed" in str(error), error
            runner.devices()
print("alive")
"""

_WRITE = """
import os, shutil, sys
import ggmodel
from ggmodel.errors import FormatError
from ggmodel.convert.quantize import quantize
from ggmodel.gguf_file import open_gguf

path, other = sys.argv[1:3]
for kind in ("q8_0", "q5_0"):
    for size in (5000, 300_000):
        shutil.copy(other, path)
        with open_gguf(path) as source:
            try:
                cut = lambda done: os.truncate(path, size)
                quantize(source, path + ".out", kind, allow_requantize=True, progress=cut)
                raise AssertionError("quantised")
            except FormatError as error:
                assert f"{path} has changed" in str(error), error
        assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
print("alive")
"""


def run(program: str, path: Path, *arguments: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", program, str(path), str(_STORIES)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stdout + done.stderr


@pytest.mark.parametrize("how", [("copy", "overwrite"), ("0.01", "0.6")])
def test_a_loaded_model(tmp_path: Path, how: tuple[str, ...]):
    run(_GENERATE, tmp_path / "model.gguf", *how)


def test_a_model_that_is_being_loaded(tmp_path: Path):
    run(_LOAD, tmp_path / "model.gguf", "0", "0.1", "0.5", "0.9")


def test_a_model_in_another_process(tmp_path: Path):
    run(_PROCESS, tmp_path / "model.gguf")


@pytest.mark.slow
def test_a_file_that_is_being_converted(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    run(_WRITE, tmp_path / "folder" / "model.gguf")
