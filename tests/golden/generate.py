"""Make the golden files with transformers.

    python -m tests.golden.generate [ARCH] [--case NAME] [--check]

Run it from the root of the repository, in an environment of its own; the tests need none of this:

    pip install torch==2.13.0 transformers==5.23.0 safetensors gguf numpy
    (torch for CPU alone: --extra-index-url https://download.pytorch.org/whl/cpu)

An architecture is a folder with `cases.py`: CASES (name -> config.json), PROMPT and LENGTHS (of
prompts). Each case is written out as a real checkpoint, with its names on disk and
`weight(name, shape)` for values, and loaded with from_pretrained: whatever transformers does to a
checkpoint (fusing experts, tying) happens here too. `--check` recomputes the committed files, on
their prompts, and compares.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, dequantize, quantize
from numpy.typing import NDArray
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from tests.golden import files
from tests.golden.files import GREEDY, HERE, Golden
from tests.golden.weights import weight

Array = NDArray[np.float32]

MARGIN = 0.1  # least distance of the top two logits in the greedy continuation
DISTINCT = 4  # least number of different tokens in it: repetition proves little
ROUTER_MARGIN = 0.05  # least distance of the last chosen expert's logit from the next, anywhere
ATTEMPTS = 5000  # prompts to try
TOLERANCE = 1e-12  # --check: NMSE between two machines or torch versions


def through(kind: GGMLQuantizationType) -> Callable[[Array], Array]:
    return lambda values: dequantize(quantize(values, kind), kind).astype(np.float32)


# Field of Golden -> what happens to a `lossy` tensor before the run.
RUNS: dict[str, Callable[[Array], Array]] = {
    "logits": lambda values: values,
    "logits_f16": through(GGMLQuantizationType.F16),
    "logits_q8_0": through(GGMLQuantizationType.Q8_0),
}


class Reference:
    """A transformers model loaded from a checkpoint with `weight(name, shape)` in it."""

    def __init__(
        self, config: dict[str, Any], tensors: dict[str, tuple[int, ...]], run: str
    ) -> None:
        weights = {}
        for name, shape in tensors.items():
            weights[name] = weight(name, shape)
            if files.lossy(name, shape):
                weights[name] = RUNS[run](weights[name])
        with tempfile.TemporaryDirectory() as folder:
            files.checkpoint(Path(folder), config, weights)
            self.model, info = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
            )
        wrong = {key: found for key, found in info.items() if found}
        if wrong:
            raise SystemExit(f"transformers did not load the checkpoint as it is: {wrong}")
        self.model.eval()

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Array:
        return self.model(torch.tensor([ids]), use_cache=False).logits[0].numpy()

    def greedy(self, prompt: list[int]) -> tuple[list[int], list[float]] | None:
        """The continuation and its margins; None when one is too small.

        Each step recomputes everything, so there is no cache to trust.
        """
        ids, margins = list(prompt), []
        for _ in range(GREEDY):
            last = self.logits(ids)[-1]
            second, first = np.sort(last)[-2:]
            margins.append(float(first - second))
            if margins[-1] < MARGIN:
                return None
            ids.append(int(np.argmax(last)))
        return ids[len(prompt) :], margins

    @torch.no_grad()
    def router_margin(self, ids: list[int]) -> float:
        """Least distance of a chosen expert's logit from one not chosen; inf without experts."""
        if not hasattr(self.model.config, "num_experts_per_tok"):
            return float("inf")
        output = self.model(torch.tensor([ids]), use_cache=False, output_router_logits=True)
        chosen = self.model.config.num_experts_per_tok
        ordered = [torch.sort(layer, descending=True).values for layer in output.router_logits]
        return min(float((rows[:, chosen - 1] - rows[:, chosen]).min()) for rows in ordered)


def layout(config: dict[str, Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Names and shapes as save_pretrained puts them on disk, and the config.json it writes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(folder)
        AutoModelForCausalLM.from_config(parsed).save_pretrained(folder)
        saved = json.loads(Path(folder, "config.json").read_text())
        with safe_open(Path(folder, "model.safetensors"), "np") as file:
            tensors = {
                name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())
            }
    return tensors, saved


def draw_prompt(case: str, attempt: int, length: int, vocab: int) -> list[int]:
    """BOS, then token ids from SHAKE-256 of the case's name."""
    seed = hashlib.shake_256(f"prompt {case} {attempt}".encode()).digest(4 * length)
    ids = np.frombuffer(seed, dtype="<u4") % (vocab - 3) + 3
    return [1, *(int(i) for i in ids[1:])]


def continuation(
    models: list[Reference], prompt: list[int]
) -> tuple[list[int], list[float]] | None:
    """Greedy tokens that no small error can change, and their margins; None if it could."""
    if models[0].router_margin(prompt) < ROUTER_MARGIN:
        return None
    tokens: list[int] = []
    smallest = [float("inf")] * GREEDY
    for model in models:
        result = model.greedy(prompt)
        if result is None or len(set(result[0])) < DISTINCT or (tokens and result[0] != tokens):
            return None
        tokens, margins = result
        if model.router_margin(prompt + tokens) < ROUTER_MARGIN:
            return None
        smallest = [min(pair) for pair in zip(smallest, margins, strict=True)]
    return tokens, smallest


def compute(config: dict[str, Any], prompts: Iterable[list[int]]) -> Golden:
    """The golden of the first prompt with a robust continuation."""
    tensors, saved = layout(config)
    models = {run: Reference(config, tensors, run) for run in RUNS}
    for prompt in prompts:
        result = continuation(list(models.values()), prompt)
        if result is None:
            continue
        tokens, margins = result
        return Golden(
            config=config,
            saved_config=saved,
            versions={
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "numpy": np.__version__,
            },
            tensors=tensors,
            prompt=np.array(prompt, dtype=np.int32),
            **{run: model.logits(prompt) for run, model in models.items()},
            greedy=np.array(tokens, dtype=np.int32),
            greedy_margins=np.array(margins, dtype=np.float32),
        )
    raise SystemExit("no prompt has margins wide enough")


def nmse(got: Array, want: Array) -> float:
    difference = got.astype(np.float64) - want
    return float(np.sum(difference**2) / np.sum(want.astype(np.float64) ** 2))


def compare(got: Golden, want: Golden) -> list[str]:
    """What is wrong with the committed golden `want`; empty if nothing."""
    wrong = [name for name in ("config", "tensors") if getattr(got, name) != getattr(want, name)]
    wrong += [name for name in RUNS if nmse(getattr(got, name), getattr(want, name)) > TOLERANCE]
    return wrong if np.array_equal(got.greedy, want.greedy) else [*wrong, "greedy"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("arch", nargs="?", help="one architecture; all by default")
    parser.add_argument("--case", help="one case; all by default")
    parser.add_argument("--check", action="store_true", help="recompute and compare; write nothing")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = False
    everything = sorted(file.parent.name for file in HERE.glob("*/cases.py"))
    for arch in [options.arch] if options.arch else everything:
        module = import_module(f"tests.golden.{arch}.cases")
        for case, config in module.CASES.items():
            if options.case not in (None, case):
                continue
            if options.check:
                want = Golden.load(arch, case)
                golden = compute(config, [want.prompt.tolist()])
                wrong = compare(golden, want)
                failed |= bool(wrong)
                outcome = f"differs in {', '.join(wrong)}" if wrong else "matches"
            else:
                length = module.LENGTHS.get(case, module.PROMPT)
                vocab = config["vocab_size"]
                golden = compute(
                    config, (draw_prompt(case, i, length, vocab) for i in range(ATTEMPTS))
                )
                golden.save(arch, case)
                outcome = f"{files.path(arch, case).stat().st_size} bytes"
            print(
                f"{arch}/{case}: {outcome}; margin {golden.greedy_margins.min():.3f}, "
                f"logits std {golden.logits.std():.2f}, "
                f"f16 {nmse(golden.logits_f16, golden.logits):.1e}, "
                f"q8_0 {nmse(golden.logits_q8_0, golden.logits):.1e}",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
