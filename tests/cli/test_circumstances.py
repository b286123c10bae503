"""Every command, under circumstances that shells rarely make: a line on standard error at most, an
exit status that tells, and never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ggmodel.cli import COMMANDS as REGISTERED
from ggmodel.convert import convert
from tests.audio.sounds import pcm, tones
from tests.convert.folders import write_golden

ROOT = Path(__file__).parents[2]
Answer = tuple[int, str, str]
Asked = Callable[..., Answer]

# MODEL, FOLDER (a checkpoint), TEXT (a file) and OUT (a folder) are put in.
COMMANDS: dict[str, str] = {
    "--help": "",
    "--version": "",
    "run": "MODEL abc -n 2 --context-length 64",
    "chat": "MODEL abc -n 2 --context-length 64 --template TEMPLATE",
    "ps": "--server http://127.0.0.1:9",
    "stop": "model --server http://127.0.0.1:9",
    "replay": "TEXT",
    "embed": "MODEL abc",
    "rerank": "MODEL abc def",
    "classify": "MODEL abc",
    "steer": "show TEXT",
    "adapter": f"show {ROOT}/examples/assets/shout",
    "tokenize": "MODEL abc",
    "transcribe": "MODEL SOUND",
    "list": "--json",
    "pull": "MODEL",
    "create": "new -f absent/Modelfile",
    "cp": "nobody/nothing other",
    "rm": "nobody/nothing --yes",
    "convert": "FOLDER OUT/c.gguf --force",
    "quantize": "MODEL OUT/q.gguf q8_0 --force",
    "imatrix": "MODEL TEXT OUT/i.gguf --context-length 32 --force",
    "estimate": "MODEL",
    "devices": "",
    "ggml": "show",
    "worker": "--port 99999",
    "runner": "MODEL --port 99999",
    "serve": "MODEL --port 99999",
    "batch": "TEXT OUT/b.jsonl --model MODEL",
    "show": "MODEL",
    "check": "MODEL",
    "certify": "CONVERTED --against FOLDER",
    "bench": "MODEL -p 4 -n 2 -r 1",
    "perplexity": "MODEL TEXT --context-length 32",
    "compare": "MODEL MODEL TEXT --context-length 32",
    "eval": "MODEL TASKS --context-length 64",
    "profile": "MODEL -r 1",
    "trace": "MODEL --tokens 1,2",
    "graph": "MODEL",
    "new": "NAME --into OUT/new",
    "port": "FOLDER --into OUT/port",
    "diff": "MODEL FOLDER",
    "golden": f"llama --goldens {ROOT}/tests/golden --case tied",
}
# No such port or server, no receipt, no vector, no requests, no reranker, no Whisper, a path, no
# such file or model; no torch has a status of its own.
FAIL: dict[str, int] = dict.fromkeys(
    (
        *("worker", "runner", "serve", "batch", "rerank", "classify", "transcribe"),
        *("pull", "create", "cp", "rm", "ps", "stop", "replay", "steer"),
    ),
    1,
)
FAIL["diff"] = FAIL["port"] = 69
NAMED = [c for c, text in COMMANDS.items() if text.startswith(("MODEL", "FOLDER"))]
READERS = {
    "run": "MODEL -",
    "chat": "MODEL --template TEMPLATE",
    "imatrix": "MODEL - OUT/j.gguf",
    "perplexity": "MODEL -",
    "compare": "MODEL MODEL -",
    "tokenize": "MODEL -",
}


@pytest.fixture(scope="module")
def asked(model_path: Path, tmp_path_factory: Any, environment: dict[str, str]) -> Iterator[Asked]:
    """`asked("run", stdout="/dev/full", …)` runs a command under a circumstance."""
    out: Path = tmp_path_factory.mktemp("circumstances")
    (out / "text").write_text("abc the " * 100)
    (out / "tasks").write_text('{"prompt": "ab", "choices": ["c", "de"], "answer": 0}\n')
    (out / "template").write_text("{{ messages[-1].content }}")
    folder, _ = write_golden(out / "folder", "llama", "plain_gqa")
    values = {"MODEL": model_path, "FOLDER": folder, "TEXT": out / "text", "OUT": out}
    values["TASKS"] = out / "tasks"
    convert(folder, values.setdefault("CONVERTED", out / "converted.gguf"))
    values["TEMPLATE"], values["SOUND"] = out / "template", out / "sound.wav"
    values["SOUND"].write_bytes(pcm(tones(0.1)))
    made = 0
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.circumstances"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(command: str, text: str | None = None, **how: Any) -> Answer:
        nonlocal made
        made += 1
        text = COMMANDS[command] if text is None else text
        arguments = [command, *text.replace("NAME", f"new-{made}").split()]
        for name, value in values.items():
            arguments = [a.replace(name, str(value)) for a in arguments]
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps([how, arguments]), file=process.stdin, flush=True)
        status, printed, errors = json.loads(process.stdout.readline())
        assert "Traceback" not in errors and "Exception ignored" not in errors, errors
        return status, printed, errors

    try:
        yield ask
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def refused(answer: Answer, reason: str, expected: int = 1) -> None:
    """One line says why, behind notes and warnings at most."""
    status, _, errors = answer
    assert status == expected, errors
    *_, last = errors.splitlines()
    assert last.startswith("error: ") and reason in last
    assert errors.count("error: ") == 1


def test_no_command_is_missing():
    assert set(REGISTERED) == {name for name in COMMANDS if name.isalpha()}


@pytest.mark.parametrize("command", COMMANDS)
class TestStreams:
    def test_as_usual(self, asked: Asked, command: str):
        status, printed, errors = asked(command)
        assert status == FAIL.get(command, 0), errors
        assert bool(printed) == (command not in FAIL)

    @pytest.mark.parametrize(
        ("stdout", "reason"),
        [("/dev/full", "No space left on device"), ("closed", "Bad file descriptor")],
    )
    def test_output_that_cannot_be_written(
        self, asked: Asked, command: str, stdout: str, reason: str
    ):
        failed = command in FAIL
        answer = asked(command, stdout=stdout)
        refused(answer, "" if failed else f"standard output: {reason}", FAIL.get(command, 1))

    def test_a_reader_that_has_gone(self, asked: Asked, command: str):
        status, _, errors = asked(command, stdout="gone")
        assert status == FAIL.get(command, 141)
        assert "error: " not in errors or command in FAIL

    def test_errors_that_cannot_be_written(self, asked: Asked, command: str):
        for stderr in ("/dev/full", "closed"):
            status, printed, _ = asked(command, stderr=stderr)
            assert status == FAIL.get(command, 0), stderr
            assert bool(printed) == (command not in FAIL), stderr

    def test_no_stream_at_all(self, asked: Asked, command: str):
        status, _, _ = asked(command, stdin="closed", stdout="closed", stderr="closed")
        assert status == FAIL.get(command, 1)

    @pytest.mark.parametrize(
        ("number", "status", "said"), [(2, 130, "interrupted"), (15, 143, "terminated")]
    )
    def test_signals(self, asked: Asked, command: str, number: int, status: int, said: str):
        """At two points of the command, chosen at random."""
        for seed in range(2):
            found, _, errors = asked(command, signal=number, seed=seed)
            if found == -number:  # all was done, and the process about to end
                continue
            assert found == status, (seed, errors)
            assert errors.endswith(f"{said}\n"), (seed, errors)
            # A command that fails anyway may have said so before.
            assert command in FAIL or "error: " not in errors, (seed, errors)


@pytest.mark.parametrize("command", NAMED)
@pytest.mark.parametrize("name", ["x" * 5000, "/" + "y/" * 2500, "\udcff\udcfe.gguf", "a\x1b[31m"])
def test_names_of_files(asked: Asked, command: str, name: str):
    _, *others = COMMANDS[command].split(" ", 1)
    answer = asked(command, " ".join(["MODEL", *others]).replace("MODEL", name, 1))
    refused(answer, "")
    assert "\x1b" not in answer[2]


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if "OUT/" in COMMANDS[c] and c not in ("new", "port")]
)
@pytest.mark.parametrize("name", ["x" * 5000, "OUT", "OUT/no/a", "OUT/text/a"])
def test_names_of_files_to_write(asked: Asked, command: str, name: str):
    arguments = [name if "OUT/" in a else a for a in COMMANDS[command].split()]
    refused(asked(command, " ".join(arguments)), "cannot write")


@pytest.mark.parametrize("command", READERS)
class TestInput:
    def test_that_has_no_end(self, asked: Asked, command: str):
        limit = "input_line_bytes" if command == "chat" else "input_bytes"
        refused(asked(command, READERS[command], stdin="/dev/zero"), f"ggmodel.limits.{limit}")

    def test_that_is_closed(self, asked: Asked, command: str):
        refused(asked(command, READERS[command], stdin="closed"), "Bad file descriptor")

    def test_that_is_not_utf_8(self, asked: Asked, command: str, tmp_path: Path):
        (tmp_path / "bytes").write_bytes(b"hi\xff\xfe\n\0\n")
        answer = asked(command, READERS[command], stdin=str(tmp_path / "bytes"))
        refused(answer, "standard input is not UTF-8 (byte 2")


def test_a_prompt_that_is_not_utf_8(asked: Asked):
    refused(asked("run", "MODEL \udcff -n 1"), "the prompt is not UTF-8 (byte 0)")


@pytest.mark.parametrize(
    "changed",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii:strict", "TERM": "dumb"},
        {"LC_ALL": "no_SUCH.locale", "TERM": ""},
    ],
)
def test_languages_and_terminals(program: Any, model_path: Path, changed: dict[str, str]):
    for arguments in (("show", model_path), ("run", model_path, "é", "-n", 1)):
        ran = program(*arguments, env=changed)
        assert "Traceback" not in ran.stderr
        assert ran.returncode == (0 if arguments[0] == "show" else ran.returncode)


def test_a_limit_that_is_none(program: Any):
    ran = program("devices", env={"GGMODEL_LIMIT_INPUT_BYTES": "many"})
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1)
    assert ran.stderr.startswith("error: GGMODEL_LIMIT_INPUT_BYTES must be a positive number")


def test_ctrl_c_while_the_commands_are_imported():
    code = (
        "import runpy, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "runpy.run_module('ggmodel', run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("name", "end"), [("SIGTERM", (143, "terminated\n")), ("SIGINT", (130, "interrupted\n"))]
)
def test_a_signal_within_a_finalizer(name: str, end: tuple[int, str]):
    """Python prints what is raised there, and goes on."""
    code = (
        "import signal, time\n"
        "from ggmodel.cli import ending\n"
        "class Finalized:\n"
        "    def __del__(self):\n"
        f"        signal.raise_signal(signal.{name})\n"
        "def command():\n"
        "    Finalized()\n"
        "    time.sleep(30)\n"
        "ending.prepare()\n"
        "ending.finish(command)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stderr) == end


def test_bugs_are_told_in_a_line():
    """An error that no part of ggmodel expects is one of ours."""
    code = (
        "import sys\n"
        "import ggmodel.gguf_file, ggmodel.cli\n"
        "def broken(*_, **__):\n"
        "    {}\n"
        "ggmodel.gguf_file.open_gguf = broken\n"
        "sys.argv = ['ggmodel', 'show', '/dev/null']\n"
        "ggmodel.cli.main()"
    )

    def shown(statement: str, **environment: str) -> Answer:
        ran = subprocess.run(
            [sys.executable, "-c", code.format(statement)],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return ran.returncode, ran.stdout, ran.stderr

    status, _, errors = shown("raise KeyError('x' * 10_000 + '\\n' + 'y' * 10_000)")
    assert status == 70
    assert errors.startswith("error: KeyError: 'xxx") and len(errors) < 1000
    assert errors.count("\n") == 1 and "GGMODEL_DEBUG=1" in errors
    status, _, errors = shown("raise KeyError('x')", GGMODEL_DEBUG="1")
    assert status == 70 and errors.startswith("Traceback") and errors.endswith("KeyError: 'x'\n")
    status, _, errors = shown("raise MemoryError()")
    assert (status, errors.count("\n")) == (1, 1) and "not enough memory" in errors
    # Ctrl-C, hidden by what it led to.
    status, _, errors = shown("try: raise KeyboardInterrupt\n    finally: raise KeyError('x')")
    assert (status, errors) == (130, "interrupted\n")
    status, _, errors = shown("raise PermissionError(13, 'Permission denied', '/some/file')")
    assert (status, errors) == (1, "error: /some/file: Permission denied\n")
