"""Every error ends in one paragraph on stderr and exit status 1."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ggmodel.cli import app
from ggmodel.gguf_file import MemorySource
from ggmodel.runner.options import OF_LOADING
from ggmodel.runner.request_options import OF_REQUESTS

from .conftest import Ran


def refused(ran: Ran, *parts: str) -> None:
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.startswith("error: ")
    assert "Traceback" not in ran.stderr
    assert "\n\n" not in ran.stderr
    for part in parts:
        assert part in ran.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text.gguf", "text.gguf"),
        ("empty.gguf", "is empty"),
        ("missing.gguf", "does not exist"),
        (".", "is a directory"),
    ],
)
def test_files_that_are_none(program, tmp_path: Path, name: str, message: str):
    (tmp_path / "text.gguf").write_text("this is not a model, but long enough to be one")
    (tmp_path / "empty.gguf").touch()
    refused(program("run", tmp_path / name, "abc"), message)


@pytest.mark.parametrize("command", ["show", "check"])
def test_no_command_takes_them(program, tmp_path: Path, command: str):
    refused(program(command, tmp_path / "missing.gguf"), "does not exist")


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 0.999])
def test_truncated(program, model_path: Path, tmp_path: Path, share: float):
    whole = model_path.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    refused(program("run", cut, "abc"), "cut.gguf", "byte")


@pytest.mark.parametrize(
    ("metadata", "messages"),
    [
        ({"general.architecture": "lama"}, ("no architecture 'lama'", "Supported: ", "llama")),
        ({"general.architecture": None}, ("general.architecture",)),
        ({"llama.attention.head_count": None}, ("no metadata key 'llama.attention.head_count'",)),
        ({"llama.block_count": "two"}, ("'llama.block_count'", "integer")),
        ({"tokenizer.ggml.pre": "brand-new"}, ("brand-new", "tokenizer.ggml.pre")),
        ({"tokenizer.ggml.model": "no_vocab"}, ("no vocabulary",)),
    ],
)
def test_metadata(program, file: Callable[..., Path], metadata: dict, messages: tuple[str, ...]):
    refused(program("run", file(metadata=metadata), "abc"), *messages)


def test_prompts(program, model_path: Path, file: Callable[..., Path]):
    long = program("run", model_path, "abc " * 100, "--context-length", "64")
    refused(long, "the prompt has 401 tokens, the context 64")
    assert long.stdout == ""
    silent = file(metadata={"tokenizer.ggml.add_bos_token": False})
    refused(program("run", silent, ""), "the prompt is empty")
    refused(program("run", model_path, "-", stdin=b"abc\xff"), "not UTF-8 (byte 3)")


def test_a_weight_that_is_no_number(program, source: MemorySource, file: Callable[..., Path]):
    info = source.info("output.weight")
    broken = np.full(info.shape[::-1], np.nan, np.float32)
    ran = program("run", file(tensors={"output.weight": broken}), "abc")
    refused(ran, "nan", "ggmodel check")


def test_terminal_codes_in_a_file_stay_there(program, file: Callable[..., Path]):
    path = file(metadata={"general.architecture": "\x1b]0;gotcha\x07"})
    for command in (("run", path, "abc"), ("check", path), ("show", path)):
        ran = program(*command)
        assert "\\x1b]0;gotcha\\x07" in ran.stdout + ran.stderr
        assert "\x1b" not in ran.stdout + ran.stderr


def test_wrong_usage(program, model_path: Path):
    for args in (
        ("tokenize", model_path),
        ("sing",),
        ("run", model_path, "abc", "--top-k", "many"),
    ):
        ran = program(*args)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("args", "ours"),
    [
        (("run", "--temp", "0"), "--temperature"),
        (("run", "-ngl", "3"), "--gpu-layers"),
        (("run", "--ngl", "3"), "--gpu-layers"),
        (("chat", "-c", "512"), "--context-length"),
        (("chat", "--ctx-size=512"), "--context-length"),
        (("run", "-t", "2"), "--threads"),
        (("run", "--max-new-tokens", "2"), "--max-tokens"),
        (("run", "-ctk", "f16"), "--kv-type"),
        (("chat", "--system-prompt", "x"), "--system"),
        (("run", "--system-prompt", "x"), "--system"),
        (("serve", "--max-model-len", "64"), "--context-length"),
        (("serve", "--top-k", "40"), "--top-k of `ggmodel run` and `chat`, or top_k in requests"),
        (("show", "-c", "512"), "--context-length of commands that compute"),
    ],
)
def test_options_of_other_programs_name_ours(args: tuple[str, ...], ours: str):
    command, *options = args
    ran = CliRunner().invoke(app, [command, "model.gguf", *options])
    assert ran.exit_code == 2
    assert f"No such option: {options[0].partition('=')[0]}; use {ours}" in ran.output


@pytest.mark.parametrize("command", ["run", "serve"])
def test_options_of_other_programs_are_explained_without_python(command: str):
    for name in {*OF_LOADING, *OF_REQUESTS} - {"verbose"}:  # which a server has
        ran = CliRunner().invoke(app, [command, f"--{name.replace('_', '-')}"])
        error = ran.output.partition("Error: ")[2]
        assert not re.search(r"\(\w+\)|\b[a-z_]+=|ggmodel\.", error), error


def test_debugging_shows_where(program, tmp_path: Path):
    ran = program("show", tmp_path / "missing", env={"GGMODEL_DEBUG": "1"})
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr
    assert "MissingFile" in ran.stderr
