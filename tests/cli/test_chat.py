"""`ggmodel chat`."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len, set_cell_size

import ggmodel
from ggmodel.cli.chat import Wrapping
from ggmodel.cli.chat import chat as chat_command
from ggmodel.cli.run import run as run_command

from .test_bad_input import refused

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role[0] }} {{ m.content }}.{% endfor %}"


@pytest.fixture(scope="module")
def path(write_gguf: Any, vary: Any, source: Any, tmp_path_factory: Any) -> Path:
    """A model with a chat template, which answers at random until the context is full."""
    talking = vary(source, metadata={"tokenizer.chat_template": TEMPLATE})
    return write_gguf(tmp_path_factory.mktemp("chat") / "chat.gguf", talking)


@pytest.fixture(scope="module")
def reply(path: Path) -> Iterator[Callable[..., str]]:
    """The library's answers at temperature 0 to texts that are said in turn."""
    with ggmodel.load(path) as model:

        def answer(*texts: str, system: str | None = None) -> str:
            messages = [] if system is None else [{"role": "system", "content": system}]
            roles = ("user", "assistant") * len(texts)
            messages += [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
            return str(model.chat(messages, temperature=0, max_tokens=8))

        yield answer


ARGS = ("--temperature", 0, "-n", 8)


def test_answers_to_lines(program: Any, path: Path, reply: Callable[..., str]):
    ran = program("chat", path, *ARGS, stdin="abc the\n\ntwo\\\nlines")
    first = reply("abc the")
    second = reply("abc the", first, "two\nlines")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{first}\n{second}\n"
    assert ran.stderr == ""


def test_commands(program: Any, path: Path, reply: Callable[..., str]):
    said = "/system be kind\nabc\n/clear\nabc\n/system\n/clear\nabc\n/help\n/nothing\n/exit\nabc\n"
    ran = program("chat", path, *ARGS, stdin=said)
    kind = reply("abc", system="be kind")
    assert ran.stdout == f"{kind}\n{kind}\n{reply('abc')}\n"
    assert "/clear" in ran.stderr
    assert "there is no /nothing; /help lists commands" in ran.stderr


def test_answers_again_and_turns_taken_back(program: Any, path: Path, reply: Callable[..., str]):
    said = "abc\n/regen\nlmn\n/undo\nxyz\n/undo\n/undo\n"
    ran = program("chat", path, *ARGS, stdin=said)
    first = reply("abc")
    answers = [first, first, reply("abc", first, "lmn"), reply("abc", first, "xyz")]
    assert ran.stdout.splitlines() == answers
    assert ran.stderr == "dropped: lmn\ndropped: xyz\ndropped: abc\n"
    refused(program("chat", path, stdin="/undo\n"), "nothing was said yet")


def test_options_are_set(program: Any, path: Path, reply: Callable[..., str]):
    said = "/set max-tokens 8\n/set parameter temperature 0\n/set system be kind\nabc\n/show\n"
    ran = program("chat", path, stdin=said)
    assert ran.stdout == reply("abc", system="be kind") + "\n"
    assert '"max_tokens": 8, "temperature": 0}' in ran.stderr
    assert "1 turns" in ran.stderr and "be kind" in ran.stderr
    spoken = program("chat", path, *ARGS, stdin="/set verbose\nabc\n/set quiet\nabc\n").stderr
    assert spoken.count("tokens/s; answer: 8 tokens") == 1
    for wrong, part in (("top_p 2", "top-p is 2"), ("colour red", "give /set NAME VALUE")):
        refused(program("chat", path, stdin=f"/set {wrong}\n"), part)


def test_conversations_are_saved_and_read(
    program: Any, path: Path, reply: Callable[..., str], tmp_path: Path
):
    file = tmp_path / "talk.json"
    ran = program("chat", path, *ARGS, stdin=f"/system be kind\nabc\n/save {file}\n")
    assert ran.stderr == f"1 turns are in {file}\n"
    first = reply("abc", system="be kind")
    assert json.loads(file.read_text()) == {
        "system": "be kind",
        "options": {"temperature": 0, "max_tokens": 8},
        "messages": [
            {"role": "user", "content": "abc"},
            {"role": "assistant", "content": first},
        ],
    }
    ran = program("chat", path, stdin=f"/load {file}\nlmn\n")
    assert ran.stdout == reply("abc", first, "lmn", system="be kind") + "\n"
    for broken in ("[]", "{}", '{"system": 3, "options": {}, "messages": []}', '{"a"'):
        file.write_text(broken)
        refused(program("chat", path, stdin=f"/load {file}\n"), str(file))
    refused(program("chat", path, stdin="/load none.json\n"), "/load none.json")


def test_a_text_between_quotes_has_lines(program: Any, path: Path, reply: Callable[..., str]):
    for said in ('"""two\nlines"""\n', '"""\ntwo\nlines\n"""\n'):
        assert program("chat", path, *ARGS, stdin=said).stdout == reply("two\nlines") + "\n"


def test_lines_break_between_words():
    def screen(text: str, width: int) -> list[str]:
        """The lines that a terminal shows."""
        wrapping, lines = Wrapping(width), [""]
        for printed in re.findall(r"\x1b\[\d*[DK]|.|\n", "".join(map(wrapping.add, text)), re.S):
            if printed.endswith("D") and len(printed) > 1:
                back = cell_len(lines[-1]) - int(printed[2:-1])
                lines[-1] = set_cell_size(lines[-1], back)
            elif printed == "\n":
                lines.append("")
            elif printed != "\x1b[K":
                lines[-1] += printed
        return lines

    assert screen("the quick brown fox\njumps", 11) == ["the quick ", "brown fox", "jumps"]
    assert screen("abcdefghijklmno p", 6) == ["abcde", "fghij", "klmno", "p"]
    assert screen("ab 漢字 c", 6) == ["ab ", "漢字 ", "c"]


def test_a_question_may_begin_with_a_slash(program: Any, path: Path, reply: Callable[..., str]):
    ran = program("chat", path, *ARGS, stdin="/abc def\n")
    assert ran.stdout == reply("/abc def") + "\n"


def test_system_and_template(program: Any, path: Path, reply: Callable[..., str], tmp_path: Path):
    ran = program("chat", path, *ARGS, "--system", "be kind", stdin="abc")
    assert ran.stdout == reply("abc", system="be kind") + "\n"
    (tmp_path / "t.jinja").write_text("{{ bos_token }}{{ messages[-1].content }}", "utf-8")
    ran = program("chat", path, *ARGS, "--template", tmp_path / "t.jinja", stdin="abc the")
    with ggmodel.load(path) as model:
        assert ran.stdout == str(model.generate("abc the", temperature=0, max_tokens=8)) + "\n"


def test_the_oldest_turns_are_forgotten(program: Any, path: Path, reply: Callable[..., str]):
    args = ("chat", path, *ARGS, "--context-length", 64, "--system", "s")
    long = "abc " * 9 + "abc"
    ran = program(*args, stdin=f"{long}\nlmn\nxyz\n")
    second = reply("lmn", system="s")
    third = reply("lmn", second, "xyz", system="s")
    assert ran.stdout == f"{reply(long, system='s')}\n{second}\n{third}\n"
    assert ran.stderr == (
        "the conversation no longer fits the context: its oldest turns are dropped\n"
    )


def test_a_full_context_is_mentioned(program: Any, path: Path):
    ran = program("chat", path, "--context-length", 32, stdin="abc")
    assert ran.returncode == 0
    assert ran.stderr == "the context is full (see --context-length)\n"


def test_one_question(program: Any, path: Path, reply: Callable[..., str]):
    ran = program("chat", path, "abc the", *ARGS, "--system", "be kind", stdin="xyz\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == reply("abc the", system="be kind") + "\n"
    piped = program("chat", path, "-", *ARGS, stdin="two\nlines\n")
    assert piped.stdout == reply("two\nlines") + "\n"


@pytest.mark.parametrize(
    ("stdin", "args", "part"),
    [
        ("abc\n" + "x " * 500 + "\nabc", (), "the prompt has"),
        (b"abc\xff\n", (), "not UTF-8 (byte 3 of a line)"),
        ("abc", ("--template", "missing.jinja"), "--template missing.jinja"),
        ("abc", ("--top-p", "2"), "--top-p is 2"),
    ],
)
def test_errors_end_a_pipe(program: Any, path: Path, stdin: Any, args: tuple[str, ...], part: str):
    refused(program("chat", path, *ARGS, "--context-length", 128, *args, stdin=stdin), part)


def test_templates_that_refuse_end_a_pipe(program: Any, path: Path, tmp_path: Path):
    (tmp_path / "t.jinja").write_text("{{ raise_exception('not today') }}", "utf-8")
    ran = program("chat", path, "--template", tmp_path / "t.jinja", stdin="abc")
    refused(ran, "refuses these messages: not today")


def test_a_file_without_a_template(program: Any, model_path: Path):
    refused(program("chat", model_path, stdin="abc"), "the file has no chat template")


def test_all_options_of_run_that_make_sense():
    options = inspect.signature(chat_command).parameters
    for name, option in inspect.signature(run_command).parameters.items():
        if name not in ("prompt", "chat", "echo", "parallel", "receipt"):
            assert options[name].default == option.default, name


class Terminal:
    """A program on a pseudo-terminal, which it is controlled by."""

    def __init__(self, environment: dict[str, str], *args: object):
        import fcntl
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ggmodel", "chat", *map(str, args)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode("utf-8", "surrogateescape"))

    def until(self, pattern: str, seconds: float = 60) -> str:
        """The output up to the pattern; later calls begin after it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self._seen)):
            if not select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(self._seen)
            self._seen += self._read()
        before, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return before

    def interrupt(self) -> None:
        """Ctrl-C, and on to the next prompt."""
        self._signalled(lambda: self.type("\x03"), "\n> ")

    def terminate(self) -> None:
        """SIGTERM, and on to its message."""
        self._signalled(self._process.terminate, "terminated\n")

    def _signalled(self, send: Callable[[], None], pattern: str) -> None:
        """Sends a signal until the pattern is there: readline notices one that comes between two of
        its waits only with the next key or signal."""
        for _ in range(10):
            send()
            with contextlib.suppress(TimeoutError):
                self.until(pattern, seconds=3)
                return
        raise TimeoutError(self._seen)

    def end(self) -> int:
        """The exit status, after the rest was read."""
        with contextlib.suppress(OSError):  # as Linux reports the end
            while piece := self._read():
                self._seen += piece
        return self._process.wait(60)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def _read(self) -> str:
        return re.sub(
            r"\x1b\[\?2004[hl]|\r", "", os.read(self._ours, 4096).decode("utf-8", "replace")
        )


Start = Callable[..., Terminal]


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    started: list[Terminal] = []

    def begin(*args: object) -> Terminal:
        started.append(Terminal(environment, *args))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.close()


windows = pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")


@windows
def test_on_a_terminal(start: Start, path: Path, reply: Callable[..., str]):
    terminal = start(path, *ARGS)
    assert (
        "\x1b[2m/help lists commands, Ctrl-C stops an answer, Ctrl-D ends\x1b[22m\n"
        in terminal.until("> ")
    )
    first = reply("abc the")
    terminal.type("abc the\n")
    assert f"\n{first}\n" in terminal.until("\n> ")
    terminal.type("two\\\n")
    terminal.until(r"\n\.\.\. ")
    terminal.type("lines\n")
    assert reply("abc the", first, "two\nlines") in terminal.until("\n> ")
    terminal.type("/help\n")
    assert "\x1b[2m/clear" in terminal.until("\n> ")
    terminal.type("\x04")
    assert terminal.end() == 0


@windows
def test_lines_are_recalled_and_paths_completed(
    environment: dict[str, str], path: Path, reply: Callable[..., str], tmp_path: Path
):
    home = {**environment, "XDG_DATA_HOME": str(tmp_path), "GGMODEL_NO_HISTORY": ""}
    talks = tmp_path / "ggmodel"
    for typed in ("abc the\n", "\x1b[A\x1b[A\n"):  # the second goes two lines up, beyond /exit
        terminal = Terminal(home, path, *ARGS)
        terminal.until("> ")
        terminal.type(typed)
        assert f"\n{reply('abc the')}\n" in terminal.until("\n> ")
        terminal.type("/ex\t\n")
        assert terminal.end() == 0
        terminal.close()
    assert "abc the\n" in (talks / "chat_history").read_text()
    assert (talks / "chat_history").stat().st_mode & 0o777 == 0o600
    terminal = Terminal(home, path, *ARGS)
    terminal.until("> ")
    terminal.type(f"/load {talks}/chat_his\t\n")
    assert "chat_history is no conversation that /save wrote" in terminal.until("\n> ")
    terminal.type("/exit\n")
    assert terminal.end() == 0
    terminal.close()


@windows
def test_ctrl_c_at_the_prompt_clears_the_line(start: Start, path: Path, reply: Callable[..., str]):
    terminal = start(path, *ARGS)
    terminal.until("> ")
    for typed in ("some", "some\\\nmore"):
        terminal.type(typed)
        terminal.until(typed[-4:])
        terminal.interrupt()
    terminal.type("abc the\n")
    assert f"\n{reply('abc the')}\n" in terminal.until("\n> ")
    terminal.type("/exit\n")
    assert terminal.end() == 0


@windows
def test_bytes_that_are_typed_and_no_utf_8(start: Start, path: Path, reply: Callable[..., str]):
    terminal = start(path, *ARGS)
    terminal.until("> ")
    terminal.type("abc \udcff\udcfe\n")
    said = terminal.until(r"\n> ")
    assert "error: standard input is not UTF-8 (byte 4 of a line); convert it" in said
    terminal.type("abc the\n")
    assert f"\n{reply('abc the')}\n" in terminal.until("\n> ")
    terminal.type("/exit\n")
    assert terminal.end() == 0


@pytest.mark.slow
@windows
def test_sigterm_at_the_prompt_ends_it(start: Start, path: Path):
    terminal = start(path, *ARGS)
    terminal.until("> ")
    terminal.terminate()
    assert terminal.end() == 143


@windows
def test_ctrl_c_stops_an_answer_which_is_remembered(start: Start, path: Path, tmp_path: Path):
    # Prints what it was told, so that the history can be seen in what it refuses.
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% if messages[-1].content == 'tell' %}"
        "{{ raise_exception(messages[:-1] | tojson) }}{% endif %}" + TEMPLATE,
        "utf-8",
    )
    args = ("--temperature", 0, "--context-length", 100_000, "--template", template)
    terminal = start(path, *args)
    terminal.until("> ")
    terminal.type("abc\n")
    terminal.until("abc\n")
    answer = terminal.until(".{40}").removeprefix("\n")
    terminal.interrupt()
    terminal.type("tell\n")
    told = terminal.until("\n> ")
    found = re.search(r"refuses these messages: (\[.*?\]);", told.replace("\n", ""))
    assert found is not None, told
    question, remembered = json.loads(found[1])
    assert question == {"role": "user", "content": "abc"}
    assert remembered["role"] == "assistant"
    assert remembered["content"].startswith(answer.strip()[:20])
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_ends_a_pipe(path: Path, environment: dict[str, str]):
    command = [sys.executable, "-m", "ggmodel", "chat", str(path), "--context-length", "100000"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"abc\n")
        process.stdin.flush()
        process.stdout.read(30)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from ggmodel.cli import app\n"
        "try: app(['chat', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'cffi', 'jinja2', 'tokenizers', 'ggmodel.chat', 'ggmodel.ml'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


ASSETS = Path(__file__).parents[2] / "examples" / "assets"


@pytest.mark.slow
def test_pictures(program: Any, tmp_path: Path):
    question = "what is in the picture?"
    said = f"/image {ASSETS / 'scene.png'}\n{question}\nhow many shapes are there?\n"
    ran = program("chat", ASSETS / "shapes.gguf", "--temperature", 0, stdin=said)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "a red circle and a blue square.\ntwo.\n"
    scene = ("--image", ASSETS / "scene.png", "--temperature", 0)
    ran = program("chat", ASSETS / "shapes.gguf", question, *scene)
    assert ran.stdout == "a red circle and a blue square.\n"
    ran = program("chat", ASSETS / "shapes.gguf", *scene, stdin=f"{question}\n")
    assert ran.stdout == "a red circle and a blue square.\n"
    refused(program("chat", ASSETS / "shapes.gguf", stdin="/image none.png\n"), "none.png")
    refused(program("chat", ASSETS / "shapes.gguf", stdin="/image\n"), "give /image FILE")
