"""`ggmodel run`."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import ggmodel
from ggmodel.cli import app
from ggmodel.cli.requests import print_answer
from ggmodel.cli.run import run as run_command
from ggmodel.runner import Stream

from .test_bad_input import refused

ASSETS = Path(__file__).parents[2] / "examples" / "assets"
STORIES = Path(__file__).parents[2] / "examples" / "assets" / "stories.gguf"
RATES = r"prompt: \d+ tokens, [\d.]+ tokens/s; answer: \d+ tokens, [\d.]+ tokens/s"

WARNED = r"warning: --context-length is 100,000, but the model was trained with 128 positions: .*"


@pytest.fixture(scope="module")
def answer(model_path: Path) -> str:
    """The library's answer at temperature 0."""
    with ggmodel.load(model_path) as model:
        return str(model.generate("abc the", max_tokens=20, temperature=0))


def test_it_says_what_the_library_says(program, model_path: Path, answer: str):
    ran = program("run", model_path, "abc the", "--temperature", 0, "-n", 20)
    assert ran.returncode == 0
    assert ran.stdout == f"abc the{answer}\n"
    assert re.fullmatch(RATES + "\n", ran.stderr)  # nothing else: no bar, no colours


def test_a_draft_model_changes_no_answer(program, model_path: Path, answer: str):
    flags = ("--draft", model_path, "--draft-tokens", 4, "--temperature", 0, "-n", 20)
    ran = program("run", model_path, "abc the", *flags)
    assert ran.stdout == f"abc the{answer}\n" and ran.returncode == 0
    ran = program("run", model_path, "abc the", "--draft", "own")
    assert ran.returncode == 1 and "has no head for multi-token prediction" in ran.stderr
    ran = program("run", model_path, "abc the", "--draft", STORIES)
    assert ran.returncode == 1 and "because their vocabularies differ" in ran.stderr


def test_without_the_prompt(program, model_path: Path, answer: str):
    ran = program("run", model_path, "abc the", "--no-echo", "--temperature", "0", "-n20")
    assert ran.stdout == answer + "\n"


def test_a_seed_repeats(program, model_path: Path):
    args = ("run", model_path, "abc", "--temperature", 1.5, "--max-tokens", 30, "--seed")
    first, again, other = (program(*args, seed).stdout for seed in (7, 7, 8))
    assert first == again != other


def test_the_prompt_from_standard_input(program, model_path: Path, answer: str):
    ran = program("run", model_path, "-", "--temperature", 0, "-n", 20, stdin="abc the\n")
    assert ran.stdout == f"abc the{answer}\n"


def test_stop_strings(program, model_path: Path, answer: str):
    first, second = answer[5:7], answer[3:5]
    args = ("run", model_path, "abc the", "--no-echo", "--temperature", 0, "-n", 20)
    ran = program(*args, "--stop", first, "--stop", second, "--stop", "never")
    assert ran.stdout == answer[: min(answer.index(first), answer.index(second))] + "\n"


def test_a_full_context_is_mentioned(program, model_path: Path):
    ran = program("run", model_path, "abc", "--temperature", 0, "--context-length", 16)
    assert ran.returncode == 0
    assert "the context is full (see --context-length)" in ran.stderr


def test_a_model_with_a_chat_template_is_asked(program: Any):
    args = ("--temperature", 0, "-n", 4)
    question = [{"role": "user", "content": "Tell me a story."}]
    ran = program("run", STORIES, "Tell me a story.", *args)
    with ggmodel.load(STORIES) as model:
        answer = str(model.chat(question, max_tokens=4, temperature=0))
        spelled = model.detokenize(model.chat_prompt(question))
        continued = model.generate("Tell me a story.", max_tokens=4, temperature=0)
    assert ran.stdout == f"{answer}\n"
    assert re.fullmatch(RATES + "\n", ran.stderr)
    raw = program("run", STORIES, "Tell me a story.", "--raw", *args)
    assert raw.stdout == f"Tell me a story.{continued}\n"
    by_hand = program("run", STORIES, spelled, "--no-echo", *args)
    assert by_hand.stdout.strip() == answer.strip()


def test_a_prompt_may_come_from_a_pipe(program: Any):
    args = ("--temperature", 0, "-n", 4)
    piped = program("run", STORIES, *args, stdin="Tell me a story.\n")
    assert piped.stdout == program("run", STORIES, "Tell me a story.", *args).stdout


def test_ends_can_be_ruled_out(program: Any):
    args = ("run", ASSETS / "shapes.gguf", "what is in the picture?", "--temperature", 0)
    shown = ("--image", ASSETS / "scene.png", "-n", 20)
    short, long = (program(*args, *shown, *more).stderr for more in ((), ("--ignore-eos",)))
    assert "answer: 20 tokens" in long and "answer: 20 tokens" not in short


@pytest.mark.parametrize(
    ("flag", "value", "pattern"),
    [
        ("--json-schema", '{"enum": ["fox", "bear"]}', '"(fox|bear)"'),
        ("--json-schema", "{file}", '"(fox|bear)"'),
        ("--regex", "[0-9]{4}", "[0-9]{4}"),
        ("--grammar", "{file}", "(ab){1,2}c"),
    ],
)
def test_answers_in_a_grammar(program: Any, tmp_path: Path, flag: str, value: str, pattern: str):
    file = tmp_path / "grammar"
    file.write_text(
        '{"enum": ["fox", "bear"]}' if "json" in flag else 'start: "ab" "ab"? "c"', "utf-8"
    )
    given = (flag, str(file) if value == "{file}" else value)
    ran = program("run", STORIES, "Who?", "--raw", "--no-echo", "--seed", 1, "-n", 40, *given)
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(pattern + "\n", ran.stdout)
    chatted = program("chat", STORIES, "Who?", "--seed", 1, "-n", 40, *given)
    assert re.fullmatch(pattern + "\n", chatted.stdout)


def test_what_is_no_grammar(program: Any, model_path: Path):
    refused(program("run", model_path, "abc", "--json-schema", '{"type": 3}'), "JSON schema")
    refused(program("run", model_path, "abc", "--grammar", "none.lark"), "--grammar none.lark: No")
    both = ("--regex", "a", "--json-schema", "{}")
    refused(program("run", model_path, "abc", *both), "give one of --json-schema, --regex and")


def test_a_context_can_be_shifted_and_a_prompt_truncated(program: Any, model_path: Path):
    args = ("run", model_path, "abc " * 20, "--no-echo", "--temperature", 0, "-n", 60)
    small = ("--context-length", 64)
    refused(program(*args, *small), "; --truncate leaves out its middle")
    ran = program(*args, *small, "--truncate")
    assert "answer: 16 tokens" in ran.stderr
    ran = program(*args, *small, "--truncate", "--context-shift", "--num-keep", 2)
    assert "answer: 60 tokens" in ran.stderr


def test_penalties_change_the_answer(program: Any, model_path: Path, answer: str):
    args = ("run", model_path, "abc the", "--no-echo", "--temperature", 0, "-n", 20)
    for penalty in (("--repeat-penalty", 5), ("--presence-penalty", 9), ("--frequency-penalty", 9)):
        ran = program(*args, *penalty)
        assert ran.returncode == 0
        assert ran.stdout != f"{answer}\n"


@pytest.mark.parametrize("flags", [(), ("--type", "q8_0"), ("--top-p", "9"), ("--rpc", "x")])
def test_a_missing_file_is_said_first(program: Any, flags: tuple[str, ...]):
    for command in (("run", "none.gguf", "abc"), ("chat", "none.gguf")):
        refused(program(*command, *flags), "none.gguf does not exist")


def test_odd_options_are_said_once(program: Any, model_path: Path):
    ran = program(
        *("run", model_path, "abc", "-n", 2, "--context-length", 200, "--gpu-layers", 9),
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert ran.returncode == 0
    assert ran.stderr.count("warning: --context-length is 200, but the model was trained") == 1
    assert ran.stderr.count("warning: --gpu-layers is 9, but there is no GPU") == 1


def test_all_flags_of_load_and_of_the_sampler():
    options = inspect.signature(run_command).parameters
    for function, left_out in (
        (ggmodel.load, {"source", "progress", "cache_ram"}),
        (ggmodel.Sampler, {"logit_bias"}),
    ):
        for name, parameter in inspect.signature(function).parameters.items():
            if name in left_out or name == "prompt":
                continue
            default = None if parameter.default == () else parameter.default
            assert options[name].default == default, name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpu-layers", "CUDA9=4"), "there is no device 'CUDA9'"),
        (("--gpu-layers", "many"), "--gpu-layers is 'many'"),
        (("--override-tensor", "ffn"), "give PATTERN=DEVICE"),
        (("--rpc", "host"), "host:port"),
        (("--mmproj", "x.gguf"), "x.gguf"),
        (("--image", "x.png"), "takes no images"),
        (("--backend", "none"), "there is no backend 'none'"),
        (("--kv-type", "q3"), "--kv-type 'q3' is not supported"),
        (("--flash-attention", "maybe"), "--flash-attention is 'auto', 'on' or 'off'"),
        (("--batch-size", "0"), "--batch-size is 0"),
        (("--parallel", "0"), "--parallel is 0"),
        (("--threads", "-1"), "--threads is -1"),
        (("--top-p", "2"), "--top-p is 2"),
        (("--max-tokens", "-1"), "--max-tokens is -1"),
    ],
)
def test_flags_reach_the_library(
    model_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
):
    with pytest.raises(SystemExit) as exit:
        app(["run", str(model_path), "abc", *flags])
    assert exit.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_on_a_terminal(model_path: Path, environment: dict[str, str]):
    import os
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "ggmodel", "run", str(model_path), "abc", "-n", "5"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        # Linux reports the end of a pseudo-terminal as an error.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                seen += piece
    os.close(ours)
    assert process.returncode == 0
    assert b"loading" in seen
    assert b"\x1b[2mabc\x1b[22m" in seen


def start(model_path: Path, environment: dict[str, str], *args: str) -> subprocess.Popen[bytes]:
    """A run that goes on for long."""
    command = [sys.executable, "-m", "ggmodel", "run", str(model_path), "abc", "--temperature", "0"]
    return subprocess.Popen(
        [*command, "--context-length", "100000", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment | {"PYTHONUNBUFFERED": ""},
        bufsize=0,  # communicate() does not see what a buffer here has read
    )


def test_it_streams_and_ctrl_c_ends_it(model_path: Path, environment: dict[str, str]):
    with start(model_path, environment) as process:
        assert process.stdout is not None
        early = b""
        while len(early) < 30:  # long before the end, and so before any flush at exit
            early += process.stdout.read(30 - len(early))
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    text = (early + rest).decode()
    assert text.startswith("abc")
    assert text.endswith("\n")
    assert re.fullmatch(f"{WARNED}\n{RATES}\ninterrupted\n", errors.decode())


def test_ctrl_c_before_the_end_of_a_line_is_printed(monkeypatch: pytest.MonkeyPatch):
    class Screen(io.StringIO):
        interrupted = False

        def write(self, text: str) -> int:
            if text == "\n" and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            return super().write(text)

    class Pieces(contextlib.nullcontext):
        def __iter__(self) -> Iterator[str]:
            yield from ("d", "\n", "e")

    screen, text, stream = Screen(), ["abc"], Pieces()
    monkeypatch.setattr(sys, "stdout", screen)
    with pytest.raises(KeyboardInterrupt):
        print_answer(cast(Stream, stream), text)
    assert (screen.getvalue(), text) == ("d\n", ["abc", "d"])


def test_a_reader_that_goes_away(model_path: Path, environment: dict[str, str]):
    with start(model_path, environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(60)
    assert process.returncode == 141
    assert re.fullmatch(f"{WARNED}\n({RATES}\n)?", errors.decode())


def test_a_picture(program: Any):
    ran = program(
        *("run", ASSETS / "shapes.gguf", "what is in the picture?"),
        *("--image", ASSETS / "scene.png", "--temperature", 0),
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "a red circle and a blue square.\n"


def test_no_picture(program: Any, tmp_path: Path):
    broken = tmp_path / "broken.png"
    broken.write_bytes((ASSETS / "scene.png").read_bytes()[:200])
    for image, message in ((tmp_path / "none.png", "none.png"), (broken, "broken.png")):
        ran = program("run", ASSETS / "shapes.gguf", "what is it?", "--image", image)
        refused(ran, message)
