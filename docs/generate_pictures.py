"""Draws docs/diff.svg and docs/demo.svg: terminals with what commands really print.

    python docs/generate_pictures.py    after a change of what `diff`, or the demo, prints

Commands run in a pseudo-terminal; their lines and colours are drawn by rich, with fonts of the
reader's machine. The diff is that of the llama fixture with a fault: scores of attention are not
scaled by 1/√d. The demo moves: its lines are typed one after another, once, at a speed that is no
measurement; readers who want no motion see all at once.
"""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

import ggmodel

ROOT = Path(__file__).parents[1]
COLUMNS = 120
TYPED, ANSWERED = 40, 160  # characters a second, of a command and of what it prints
FAULTY = """class Attention(nn.PermutedAttention):
    def attend(self, q, k, v, cache):
        return self.out(nn.attention(q, k, v, cache, scale=1.0))


"""
LINKS = {
    "model.gguf": "tests/fixtures/llama-converter-llama3-f32.gguf",
    "reference.npz": "tests/workbench/references/converted.npz",
    **{
        name: f"examples/assets/{name}"
        for name in ("stories.gguf", "shapes.gguf", "tones.gguf", "scene.png", "tones.wav")
    },
}
DIFF = ("ggmodel diff model.gguf --reference reference.npz --models mine",)
DEMO = (
    'ggmodel run stories.gguf "Once upon a time" --raw --temperature 0.7 --seed 3 -n 60',
    'ggmodel run shapes.gguf "what is in the picture?" --image scene.png --temperature 0',
    'ggmodel run tones.gguf "what do you hear?" --audio tones.wav --temperature 0',
)
# rich's own page takes fonts from a server.
_PAGE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
 aria-label="TITLE">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed(command: str, folder: Path) -> str:
    """The output of a command in a terminal, with its colours and without notes, which have speeds
    that are others each time.

    Args:
        folder: runs there; its own path is left out of the output, as that of the repository is.
    """
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    program = [sys.executable, "-m", *shlex.split(command)]
    with subprocess.Popen(
        program, cwd=folder, stdout=theirs, stderr=subprocess.DEVNULL, env=environment
    ):
        os.close(theirs)
        pieces: list[bytes] = []
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 1 << 16):
                pieces.append(piece)
    os.close(ours)
    text = b"".join(pieces).decode().replace("\r\n", "\n")
    for own in (f"{folder}/", f"{Path(ggmodel.__file__).parents[1]}/"):
        text = text.replace(own, "")
    return text.strip()


def motion(lines: Sequence[str]) -> str:
    """The style with which the lines of a terminal appear from left to right, one by one."""
    begin, rules = 0.0, ["@media (prefers-reduced-motion: no-preference) {"]
    for i, line in enumerate(lines):
        if line:
            speed = TYPED if line.startswith("$") else ANSWERED
            rules.append(
                f"#terminal-line-{i} rect {{ animation: appear {COLUMNS / speed}s "
                f"steps({COLUMNS}) {begin:.2f}s backwards }}"
            )
            begin += len(line) / speed + 0.3
    return "\n".join([*rules, "@keyframes appear { from { width: 0 } }", "}"])


def draw(commands: Sequence[str], folder: Path, title: str, moves: bool = False) -> str:
    """A picture of a terminal in which commands ran.

    Args:
        moves: its lines appear one after another.
    """
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for command in commands:
        console.print(Text(f"$ {command}", style="bold cyan"))
        console.print(Text.from_ansi(printed(command, folder)))
        console.print()
    page = _PAGE.replace("TITLE", title)
    if moves:
        style = motion(console.export_text(clear=False).splitlines())
        style = style.replace("{", "{{").replace("}", "}}")
        page = page.replace("</style>", f"{style}\n</style>")
    drawn = console.export_svg(title=title, code_format=page, unique_id="terminal")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def pictures() -> dict[str, str]:
    """Name of a file → its content."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for name, path in LINKS.items():
            (folder / name).symlink_to(ROOT / path)
        source = (ROOT / "models" / "llama" / "model.py").read_text("utf-8")
        source = source.replace("class Layer(", f"{FAULTY}class Layer(")
        (folder / "mine").mkdir()
        path = folder / "mine" / "llama.py"
        path.write_text(source.replace("attn: nn.PermutedAttention", "attn: Attention"), "utf-8")
        return {
            "diff.svg": draw(DIFF, folder, "ggmodel diff names the module that is wrong"),
            "demo.svg": draw(DEMO, folder, "models of the repository, on the command line", True),
        }


if __name__ == "__main__":
    for name, content in pictures().items():
        Path(__file__).with_name(name).write_text(content, encoding="utf-8")
