"""`ggmodel convert`, `ggmodel quantize`, and folders in the place of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ggmodel.gguf_file import open_gguf
from tests.cli.conftest import Program
from tests.convert.folders import write_golden, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden(tmp_path_factory.mktemp("hf") / "tiny", "llama", "plain_gqa", shards=2)[0]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_golden(tmp_path_factory.mktemp("hf") / "sees", "gemma3", "images")[0]


@pytest.mark.slow
def test_a_folder_becomes_a_file_that_runs(program: Program, folder: Path, tmp_path: Path):
    out = tmp_path / "a.gguf"
    done = program("convert", folder, out, "--type", "q8_0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{out}: ")
    done = program("run", out, "AB", "-n", "3", "--temperature", "0")
    same = program("run", folder, "AB", "-n", "3", "--temperature", "0", "--type", "q8_0")
    assert done.returncode == same.returncode == 0
    assert done.stdout == same.stdout


def test_a_model_that_sees_becomes_two_files(program: Program, seeing: Path, tmp_path: Path):
    out, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    done = program("convert", seeing, out, "--mmproj", mmproj)
    assert done.returncode == 0
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [str(out), str(mmproj)]
    done = program("check", out, "--mmproj", mmproj, "--json")
    assert done.returncode == 0
    assert {t["status"] for t in json.loads(done.stdout)["tensors"]} == {"used"}


@pytest.mark.slow
def test_a_file_is_quantised(program: Program, folder: Path, tmp_path: Path):
    program("convert", folder, tmp_path / "a.gguf")
    done = program("quantize", tmp_path / "a.gguf", tmp_path / "b.gguf", "q4_0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'b.gguf'}: ") and " of " in done.stdout
    with open_gguf(tmp_path / "b.gguf") as made:
        assert made.metadata["general.file_type"] == 2
    done = program("quantize", tmp_path / "b.gguf", tmp_path / "c.gguf", "q5_0")
    assert done.returncode == 1
    assert "--allow-requantize" in done.stderr
    done = program(
        "quantize", tmp_path / "b.gguf", tmp_path / "c.gguf", "q5_0", "--allow-requantize"
    )
    assert done.returncode == 0


@pytest.mark.slow
def test_what_llama_cpp_makes_of_a_file_is_told(program: Program, tmp_path: Path):
    local, out = write_golden(tmp_path / "local", "mistral", "window")[0], tmp_path / "a.gguf"
    done = program("convert", local, out)
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, str(out))
    assert done.stderr == "llama.cpp refuses this file: it has no architecture 'mistral'\n"
    done = program("convert", local, tmp_path / "b.gguf", "--for", "llama.cpp")
    assert done.returncode == 0
    assert "attention.sliding_window is 8, and it computes without: right up to 8" in done.stderr
    other = write_golden(tmp_path / "other", "qwen2", "odd_head_dim")[0]
    done = program("convert", other, tmp_path / "c.gguf", "--for", "llama.cpp")
    assert done.returncode == 1 and not (tmp_path / "c.gguf").exists()
    assert "llama.cpp would refuse the file: attention.key_length is 24, not 16" in done.stderr
    done = program("convert", other, tmp_path / "c.gguf", "--for", "ollama")
    assert done.returncode == 1 and "--for is 'ollama'" in done.stderr


@pytest.mark.slow
def test_what_matters_is_computed(program: Program, folder: Path, tmp_path: Path):
    text, matrix, out = (tmp_path / name for name in ("text.txt", "m.gguf", "a.gguf"))
    text.write_text("ABBA " * 40)
    small = ("--context-length", "16", "--chunks", "2")
    done = program("imatrix", folder, text, matrix, *small)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{matrix}: ") and "tensors, 2 chunks of 16" in done.stdout
    again = program("imatrix", folder, text, matrix, *small)
    assert again.returncode == 1 and "exists; --force" in again.stderr
    done = program("convert", folder, out, "--type", "iq2_xs", "--imatrix", matrix)
    assert (done.returncode, done.stderr) == (0, "")
    with open_gguf(out) as made:
        assert made.metadata["quantize.imatrix.file"] == str(matrix)
    done = program("quantize", out, tmp_path / "b.gguf", "iq2_xs", "--imatrix", text)
    assert done.returncode == 1 and "is no importance matrix" in done.stderr


@pytest.mark.parametrize("command", ["show", "check", "estimate"])
def test_commands_take_a_folder(program: Program, folder: Path, command: str):
    done = program(command, folder)
    assert done.returncode == 0, done.stderr
    assert "llama" in done.stdout if command != "check" else "attn_q" in done.stdout


@pytest.mark.slow
def test_a_folder_is_measured(program: Program, folder: Path):
    done = program("bench", folder, "-p", "8", "-n", "4", "-r", "1", "--type", "q8_0")
    assert done.returncode == 0, done.stderr
    assert "pp8" in done.stdout


@pytest.mark.slow
def test_a_folder_answers(program: Program, folder: Path):
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    done = program("chat", folder, "-n", "2", "--temperature", "0", stdin="AB\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "{folder}", "{out}", "--type", "q9"), "no type 'q9'"),
        (
            ("convert", "{folder}", "{out}", "--imatrix", "m.gguf"),
            "for quantised types only; give a",
        ),
        (("convert", "{folder}/nothing", "{out}"), "is no folder; give one with config.json"),
        (("convert", "{folder}/config.json", "{out}"), "is no folder"),
        (("convert", "{out}", "{out}/a.gguf"), "the folder {out} does not exist"),
        (("convert", "{folder}", "{folder}"), "is a folder; give the path of the file to write"),
        (("convert", "{folder}", "{folder}/config.json"), "exists; --force"),
        (("convert", "{folder}", "{out}", "--mmproj", "{out}2"), "has no vision tensors"),
        (("convert", "{folder}", "{out}", "--models", "{out}"), "is no folder"),
        (("convert", "{folder}", "{out}", "--pre", "none"), "'none' is unknown"),
        (("quantize", "{folder}", "{out}", "q4_0"), "is a directory"),
        (("quantize", "{folder}/config.json", "{out}", "q4_0"), "config.json"),
        (("run", "{folder}", "A", "--type", "q9"), "no type 'q9'"),
        (("run", "{folder}", "A", "--mmproj", "x.gguf"), "is a folder, which has all of its model"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    program: Program, folder: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
):
    places = {"folder": folder, "out": tmp_path / "a.gguf"}
    done = program(*(a.format(**places) for a in arguments))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and message.format(**places) in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_by_force(program: Program, folder: Path, tmp_path: Path):
    (tmp_path / "a.gguf").write_text("x")
    assert program("convert", folder, tmp_path / "a.gguf").returncode == 1
    assert program("convert", folder, tmp_path / "a.gguf", "--force").returncode == 0
    with open_gguf(tmp_path / "a.gguf") as made:
        assert made.tensors


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(folder: Path, tmp_path: Path, environment: dict[str, str]):
    config = json.loads((folder / "config.json").read_text())
    big = {**config, "vocab_size": 200_000, "tie_word_embeddings": True}
    with np.load(Path(__file__).parents[1] / "golden" / "llama" / "plain_gqa.npz") as golden:
        shapes = json.loads(str(golden["tensors"]))
    weights: dict[str, np.ndarray] = {
        n: np.ones(s, np.float32) for n, s in shapes.items() if n != "lm_head.weight"
    }
    weights["model.embed_tokens.weight"] = np.ones((200_000, 64), np.float32)
    model = write_model(tmp_path / "big", big, weights)
    (model / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    out = tmp_path / "out"
    out.mkdir()
    command = [
        sys.executable,
        "-m",
        "ggmodel",
        "convert",
        model,
        out / "a.gguf",
        "--type",
        "q4_K_M",
    ]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not list(out.iterdir()) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert list(out.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_sees_a_bar_and_a_pipe_does_not(
    program: Program, folder: Path, tmp_path: Path, environment: dict[str, str]
):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ggmodel", "convert", folder, tmp_path / "a.gguf"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    process.communicate(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0 and "writing" in shown
