"""Write docs/goldens.md: the error of each golden against transformers.

python -m tests.golden.table
"""

from __future__ import annotations

from pathlib import Path

from ggmodel.workbench.golden import check
from tests.golden.files import HERE
from tests.model.test_size import LIMITS, files_of, lines_of

TARGET = Path(__file__).parents[2] / "docs" / "goldens.md"
HEAD = """\
# Models against transformers

Check here how closely every architecture follows transformers. Each case is a tiny model, with
weights derived from the tensors' names, compared with the results of transformers for the same
checkpoint: float32, whole prompt. The error is the normalized mean square error of the logits of
all positions, or of the rows that the vision graph makes of an image. Errors of 1e-7 instead of
1e-13 come from ggml's GELU, which reads a table in F16. "Greedy" counts equal tokens of the
continuation. Tests hold all this, and batch splits, F16 and Q8_0 weights, and files by llama.cpp's
converter.

`python -m tests.golden.table` writes this page.

"""


def main() -> None:
    text = HEAD + "| architecture | lines of code |\n|---|---|\n"
    for arch in LIMITS:
        text += f"| {arch} | {sum(lines_of(f.read_text()) for f in files_of(arch))} |\n"
    text += "\n| case | rows | error | greedy |\n|---|---|---|---|\n"
    for folder in sorted(f.parent for f in HERE.glob("*/cases.py")):
        for outcome in check(folder):
            row = f"| {folder.name}: {outcome.case} | {outcome.rows} | {outcome.nmse:.0e} | "
            greedy = "" if outcome.greedy is None else "{} of {}".format(*outcome.greedy)
            text += f"{row}{greedy} |\n"
            print(text.splitlines()[-1])
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
