"""Write docs/goldens.md: how far each golden is from transformers.

python -m tests.golden.table
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import ggmodel
from tests.golden.files import GREEDY, HERE, Golden, cases
from tests.golden.laying import laid_out
from tests.model.test_size import LIMITS, files_of, lines_of

TARGET = Path(__file__).parents[2] / "docs" / "goldens.md"
HEAD = """\
# Models against transformers

Tiny models of every architecture, their weights derived from the tensors' names, against what
transformers computes with the same checkpoint: float32, whole prompt. The error is that of the
logits of all positions (of an image: of the rows that the vision graph makes of it), the mean
square of the difference relative to that of the logits. Where it is 1e-7 rather than 1e-13 ggml's
GELU goes through a table in F16. Greedy: how many of the next tokens are equal. Tests hold all
this, and more: batch splits, F16 and Q8_0 weights, files by llama.cpp's converter.

`python -m tests.golden.table` writes this page.

"""


def main() -> None:
    text = HEAD + "| architecture | lines of code |\n|---|---|\n"
    for arch in LIMITS:
        text += f"| {arch} | {sum(lines_of(f.read_text()) for f in files_of(arch))} |\n"
    text += "\n| case | tokens | error | greedy |\n|---|---|---|---|\n"
    for arch in sorted(f.parent.name for f in HERE.glob("*/cases.py")):
        for case in cases(arch):
            for row in rows_of(Golden.load(arch, case)):
                text += f"| {arch}: {case}{row}\n"
                print(text.splitlines()[-1])
    TARGET.write_text(text)


def rows_of(golden: Golden) -> list[str]:
    module: Any = import_module(f"tests.golden.test_{golden.arch}")
    if golden.prompts:
        model = module.load(golden)
    else:
        model = ggmodel.load(module.source_of(golden), kv_type="f32", flash_attention="off")
    with model:
        rows = [row("", model, golden.prompt.tolist(), golden)]
        for name, picture in golden.pictures.items():
            found = np.concatenate(
                [e.rows for e in model.encode_image(picture.pixels, **picture.data)]
            )
            rows.append(f", image {name} | {len(found)} | {error(found, picture.rows)} | |")
        for name, prompt in golden.prompts.items():
            rows.append(row(f", prompt {name}", model, laid_out(model, golden, prompt), prompt))
    return rows


def row(name: str, model: Any, prompt: list, want: Any) -> str:
    logits = model.logits(prompt)
    tokens = model.generate(prompt, max_tokens=GREEDY, temperature=0).tokens
    same = sum(a == b for a, b in zip(tokens, want.greedy.tolist(), strict=False))
    return f"{name} | {len(logits)} | {error(logits, want.logits)} | {same} of {len(want.greedy)} |"


def error(got: np.ndarray, want: np.ndarray) -> str:
    got, want = got.astype(np.float64), want.astype(np.float64)
    return f"{((got - want) ** 2).sum() / (want**2).sum():.0e}"


if __name__ == "__main__":
    main()
