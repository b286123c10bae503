"""Write docs/goldens.md: the error of each golden against transformers.

python -m tests.golden.table
"""

from __future__ import annotations

from pathlib import Path

from ggmodel.workbench.golden import Outcome, check
from ggmodel.workbench.golden.changes import FOLLOWS
from tests.golden.files import HERE
from tests.model.test_size import LIMITS, files_of, lines_of

TARGET = Path(__file__).parents[2] / "docs" / "goldens.md"
HEAD = """\
# Models against transformers

Check here how closely every architecture follows transformers. Each case is a tiny model, with
weights derived from the tensors' names, compared with the results of transformers for the same
checkpoint: float32, whole prompt. transformers lacks RWKV-7 and Ling 2.0, which are compared with
the package rwkv and with the class that its authors published. The error is the normalized mean
square error of the logits of all positions, or of the rows that the vision graph makes of an image.
Errors of 1e-7 instead of 1e-13 come from ggml's GELU, which reads a table in F16, on processors
without kernels of our own: rows of GELU by tanh are of such a one.
"Greedy" counts equal tokens of the continuation. `ggmodel golden NAME` runs the same for one
architecture.

Every prompt is also computed in other ways:

- In batches of 1, 2, 3 and 7 tokens, token by token behind the first half, and with a shared
  prefix: a second sequence takes over the first half and goes on with other tokens, in the same
  batches. Compared with the golden, and the second text with itself as one batch. The bound is that
  of the case (1e-8, or 1e-6 with ggml's table): only sums are in another order.
- After a context shift: the first tokens are removed, all others move down. Compared with the
  shortened text computed from its start, in each layer alone, for there both are the same. The same
  bound: keys are rotated twice, in float32. Recurrent states cannot be shifted.
- By numpy in float64, without ggml's table, images included. The bound is 1e-10: only the reference
  rounds. Small faults show here, such as another epsilon, or GELU by erf for tanh.
- The choices of its routers, in that run, by the numbers by which they are made: behind sigmoid,
  selection bias and limits of groups. Each expert that the reference chose must lie above all that
  it has below that one, unless both are nearer than float32 rounds. The runs above and those with
  rounded weights compute with the reference's choices, so that a prompt may come near to a tie;
  with other numbers, and from files, the model chooses for itself.
- With other numbers in config.json, in float64 again: each number that moves the reference's
  results (1.37, 10 or 1000 times as much; of a whole one, one more, about twice or half; the
  opposite of a bool), against the last logits that transformers computes with it. A key's second
  use that is forgotten shows here, though its value is neutral in the case.
- With weights in F16 and Q8_0, compared with the golden's logits of such weights, and in BF16,
  compared with the same weights in F32. The bound is four times the distance that these weights
  have from the logits of exact ones in transformers; for BF16, 64 times that of F16, since it has 3
  bits less. ggml rounds activations, too, at the same
  products and to as many bits, which moves the logits 0.3 to 2.4 times as far here.

The column "split" has the worst of the first item. An embedding model computes each text alone
there, and compares all rounded weights with the same weights in F32, by four times the distance
that those move the model itself. Types of tensors are those of
`ggmodel convert`: norms, routers and vision towers stay F32.

A golden proves only the numbers that move its results. So each hyperparameter that a case's file
has and each weight is changed in turn (numbers as above, weights by up to half), and everything
computed again in float64. A case sees the
change if a result leaves the golden by more than 1e-10, or the file is refused. A factor of exactly
1 counts as unseen: it proves nothing, even of a forward that multiplies by it. `ggmodel golden`
names all that no case of the folder sees, and `--update` refuses such a folder:

```
residual_multiplier = 1.0: no case can see it; add one with another value
```

Where no case can, cases.py says why: `UNSEEN = {{"blk.*.attn_k.bias": "softmax removes it"}}`, by
the names of hyperparameters and tensors, or patterns of them.
`UNFOLLOWED = {{"windows.rope_theta": "…"}}` names numbers of a case, by their path in
config.json, to which a model that is right does not follow transformers. Texts, such as an
activation's name, are not changed; nor is the preparation of images and sounds. A model that
differs from a golden is not judged. Hyperparameters that no forward reads at all are named by
`ggmodel check`.

Pictures and sounds of the table are given as pixels and spectra. Beside them a case has files,
whose preparation is compared from their bytes on: PNGs of noise and WAVs, which follow from their
sizes, and are narrow, wide, below the least pixels, beyond the most. `prepared/CASE.npz` has what
the processor of transformers makes of each within a prompt: pixels or spectrum, token ids, the
logits of the last token. Pixels are equal within 1e-6 of the largest, for float32 steps round so;
no level may differ, since both resize bytes with integers. Spectra are equal within 1e-5,
Whisper's with transformers' computation in float64. The step in which they part is named, and the
logits are compared only where all are equal:

```
images, file wide: preparation, resampling or padding: preprocess makes other pixels …
```

The processors are the usual ones, on torchvision; Idefics3's and SmolVLM's are those on Pillow,
whose Lanczos the models follow. Voxtral's tokens are its parts put together, for its processor
needs mistral-common. Videos have no files here. More sizes are tested apart
([images.md](images.md#pixels), [audio.md](audio.md#opened-and-prepared)).

Tests hold all this, fused attention, and files by llama.cpp's converter. The references come from
{versions}. `python -m tests.golden.table` writes this page.

"""
KINDS = {"shift": ("context shift",), "float64": ("float64", FOLLOWS)}
KINDS |= {name: (name,) for name in ("F16", "BF16", "Q8_0")}


def row_of(architecture: str, outcome: Outcome) -> str:
    """A case as a row of the table."""
    apart = {name for names in KINDS.values() for name in names}
    runs = [run for run in outcome.runs if not run.note]  # a note says that it is none
    columns = [[run for run in runs if run.name not in apart]]
    columns += [[run for run in runs if run.name in names] for names in KINDS.values()]
    worst = (f"{max(run.nmse for run in column):.0e}" if column else "" for column in columns)
    greedy = "" if outcome.greedy is None else "{} of {}".format(*outcome.greedy)
    cells = [f"{architecture}: {outcome.case}", str(outcome.rows), f"{outcome.nmse:.0e}", greedy]
    return f"| {' | '.join([*cells, *worst])} |\n"


def lines_table() -> str:
    """The architectures and their lines of code."""
    text = "| architecture | lines of code |\n|---|---|\n"
    for arch in LIMITS:
        text += f"| {arch} | {sum(lines_of(f.read_text()) for f in files_of(arch))} |\n"
    return text


def main() -> None:
    text = lines_table()
    text += f"\n| case | rows | error | greedy | split | {' | '.join(KINDS)} |\n"
    text += "|---" * (5 + len(KINDS)) + "|\n"
    versions = set[str]()
    for folder in sorted(f.parent for f in HERE.glob("*/cases.py")):
        for outcome in check(folder):
            if ", file " in outcome.case:  # equal, or the tests fail
                continue
            row = row_of(folder.name, outcome)
            text += row
            print(row, end="")
            made = outcome.versions
            versions.add(f"transformers {made['transformers']} with torch {made['torch']}")
    text = HEAD.format(versions=" and ".join(sorted(versions))) + text
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
