"""Make the golden files with transformers.

    python -m tests.golden.generate [ARCH] [--case NAME] [--check]

Run it from the root of the repository, in an environment of its own; the tests need none of this:

    pip install torch==2.13.0 transformers==5.23.0 safetensors gguf numpy

An architecture is a folder with `cases.py`: CASES (name -> config.json), PROMPT and LENGTHS (of
prompts). Each case is written out as a real checkpoint, with its names on disk and
`weight(name, shape)` for values, and loaded with from_pretrained by the class that its
`architectures` names: whatever transformers does to a checkpoint (fusing experts, tying) happens
here too. `--check` recomputes the committed files, on their prompts, and compares.

For cases with images `cases.py` has

    PICTURES    case -> {name: (shape of the pixels, data)}; see `files.Picture`
    PROMPTS     case -> {name: parts}, a part being a number of tokens to draw or a picture's name
    image_tokens(config, picture) -> list of ids: all that stands for it in what transformers reads
    model_inputs(config, ids, pictures) -> {keyword: array}: what the model takes beside input_ids,
                with a leading batch dim where it has one; pictures in the order of the prompt
    image_rows(model, inputs) -> torch tensor [rows, width], what the vision tower and the projector
                make of the one picture that the keywords `inputs` are of

and for embedding models

    EMBEDDINGS  case -> (config.json, {name: shape} of the layers behind it, lengths of texts)
    embed(states, layers) -> tensor: the vector of a text whose hidden states [n, width] these are

and where needed, for any case:

    TOKENS      case -> ids below this are drawn and may continue prompts; all by default
    MARGIN      least distance of the top two logits in continuations, if not the one here
    weight(name, shape), instead of the common rule
    router_logits(model, inputs) -> [tensor [n, experts], ...], one for each layer of experts
    adjust(model), called once a model is loaded
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType, dequantize, quantize
from numpy.typing import NDArray
from safetensors import safe_open
from transformers import AutoConfig

from tests.golden import files
from tests.golden.files import (
    ARRAYS,
    GREEDY,
    HERE,
    OF_A_PROMPT,
    Embeddings,
    Golden,
    Picture,
    Prompt,
)

Array = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]
Robust = tuple[list[int], list[float]]

MARGIN = 0.1  # least distance of the top two logits in the greedy continuation
DISTINCT = 4  # least number of different tokens in it: repetition proves little
ROUTER_MARGIN = 0.05  # least distance of the last chosen expert's logit from the next, anywhere
ATTEMPTS = 5000  # prompts to try
VERSIONS = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "numpy": np.__version__,
}
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
    """A transformers model loaded from a checkpoint with an architecture's weights in it."""

    def __init__(self, case: "Case", tensors: Shapes, run: str) -> None:
        self.module, self.config, self.tokens = case.module, case.config, case.tokens
        self.margin = getattr(case.module, "MARGIN", MARGIN)
        weight = files.weight_of(arch_of(case.module))
        weights = {}
        for name, shape in tensors.items():
            weights[name] = weight(name, shape)
            if files.lossy(name, shape):
                weights[name] = RUNS[run](weights[name])
        self.model = loaded(self.config, weights)
        getattr(self.module, "adjust", lambda model: None)(self.model)

    def inputs(self, ids: list[int], pictures: list[Picture]) -> dict[str, torch.Tensor]:
        more = self.module.model_inputs(self.config, ids, pictures) if pictures else {}
        tensors = {name: torch.from_numpy(np.array(value)) for name, value in more.items()}
        return {"input_ids": torch.tensor([ids]), **tensors}

    @torch.no_grad()
    def logits(self, ids: list[int], pictures: list[Picture]) -> Array:
        return self.model(**self.inputs(ids, pictures), use_cache=False).logits[0].numpy()

    @torch.no_grad()
    def rows(self, picture: Picture) -> Array:
        inputs = self.inputs(self.module.image_tokens(self.config, picture), [picture])
        return self.module.image_rows(self.model, inputs).contiguous().numpy()

    def greedy(self, prompt: list[int], pictures: list[Picture]) -> Robust | None:
        """The continuation and its margins; None when one is too small.

        Each step recomputes everything, so there is no cache to trust.
        """
        ids, margins = list(prompt), []
        for _ in range(GREEDY):
            last = self.logits(ids, pictures)[-1]
            second, first = np.sort(last)[-2:]
            margins.append(float(first - second))
            ids.append(int(np.argmax(last)))
            if margins[-1] < self.margin or ids[-1] >= self.tokens:
                return None
        return ids[len(prompt) :], margins

    @torch.no_grad()
    def router_margin(self, ids: list[int], pictures: list[Picture]) -> float:
        """Least distance of a chosen expert's logit from one not chosen; inf without experts."""
        config = self.model.config.get_text_config()
        if not hasattr(config, "num_experts_per_tok"):
            return float("inf")
        find = getattr(self.module, "router_logits", router_logits)
        layers = find(self.model, self.inputs(ids, pictures))
        chosen = config.num_experts_per_tok
        ordered = [torch.sort(layer, descending=True).values for layer in layers]
        return min(float((rows[:, chosen - 1] - rows[:, chosen]).min()) for rows in ordered)


def router_logits(model: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return model(**inputs, use_cache=False, output_router_logits=True).router_logits


def loaded(config: dict[str, Any], weights: dict[str, Array]) -> Any:
    """The model of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        files.checkpoint(Path(folder), config, weights)
        model, info = class_of(config).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    wrong = {key: found for key, found in info.items() if found}
    if wrong:
        raise SystemExit(f"transformers did not load the checkpoint as it is: {wrong}")
    return model.eval()


def arch_of(module: ModuleType) -> str:
    return module.__name__.split(".")[-2]


def class_of(config: dict[str, Any]) -> Any:
    """The class of transformers that a config names."""
    return getattr(transformers, config["architectures"][0])


def layout(config: dict[str, Any]) -> tuple[Shapes, dict[str, Any]]:
    """Names and shapes as save_pretrained puts them on disk, and the config.json it writes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(folder)
        class_of(config)._from_config(parsed).save_pretrained(folder)
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
    models: list[Reference], prompt: list[int], pictures: list[Picture]
) -> Robust | None:
    """Greedy tokens that no small error can change, and their margins; None if it could."""
    if models[0].router_margin(prompt, pictures) < ROUTER_MARGIN:
        return None
    tokens: list[int] = []
    smallest = [float("inf")] * GREEDY
    for model in models:
        result = model.greedy(prompt, pictures)
        if result is None or len(set(result[0])) < DISTINCT or (tokens and result[0] != tokens):
            return None
        tokens, margins = result
        if model.router_margin(prompt + tokens, pictures) < ROUTER_MARGIN:
            return None
        smallest = [min(pair) for pair in zip(smallest, margins, strict=True)]
    return tokens, smallest


def robust(
    models: list[Reference],
    prompts: Iterable[tuple[list[int], Any]],
    pictures: list[Picture] | None = None,
) -> tuple[list[int], Any, Robust]:
    """The first of some prompts, given with something of each, whose continuation is robust."""
    for prompt, parts in prompts:
        result = continuation(models, prompt, pictures or [])
        if result is not None:
            return prompt, parts, result
    raise SystemExit("no prompt has margins wide enough")


class Case:
    """One golden to be made, or made again."""

    def __init__(self, module: ModuleType, name: str):
        self.module, self.name, self.config = module, name, module.CASES[name]
        vocab = self.config.get("text_config", self.config)["vocab_size"]
        self.tokens = getattr(module, "TOKENS", {}).get(name, vocab)

    def compute(self, want: Golden | None = None) -> Golden:
        """The golden of the first prompts with robust continuations, or of those in `want`."""
        tensors, saved = layout(self.config)
        models = {run: Reference(self, tensors, run) for run in RUNS}
        if want is None:
            length = self.module.LENGTHS.get(self.name, self.module.PROMPT)
            drawn = (draw_prompt(self.name, i, length, self.tokens) for i in range(ATTEMPTS))
        else:
            drawn = iter([want.prompt.tolist()])
        prompt, _, (tokens, margins) = robust(list(models.values()), ((p, None) for p in drawn))
        golden = Golden(
            arch=arch_of(self.module),
            config=self.config,
            saved_config=saved,
            versions=VERSIONS,
            tensors=tensors,
            prompt=np.array(prompt, dtype=np.int32),
            **{run: model.logits(prompt, []) for run, model in models.items()},
            greedy=np.array(tokens, dtype=np.int32),
            greedy_margins=np.array(margins, dtype=np.float32),
        )
        for name, (shape, data) in getattr(self.module, "PICTURES", {}).get(self.name, {}).items():
            picture = golden.pictures[name] = Picture(name, shape, data)
            picture.rows = models["logits"].rows(picture)
        for name, parts in getattr(self.module, "PROMPTS", {}).get(self.name, {}).items():
            old = want and want.prompts[name]
            attempts = self.drawn(name, parts) if old is None else [old.parts]
            golden.prompts[name] = self.seeing(golden, list(models.values()), attempts)
        return golden

    def drawn(self, name: str, parts: list[int | str]) -> Iterable[list[list[int] | str]]:
        """A prompt with images, its tokens drawn anew each time; BOS is the first of them."""
        total = sum(part for part in parts if isinstance(part, int))
        for attempt in range(ATTEMPTS):
            ids = iter(draw_prompt(f"{self.name}/{name}", attempt, total, self.tokens))
            yield [p if isinstance(p, str) else list(islice(ids, p)) for p in parts]

    def seeing(
        self, golden: Golden, models: list[Reference], attempts: Iterable[list[list[int] | str]]
    ) -> Prompt:
        """The first prompt with images whose continuation is robust."""

        def ids_of(parts: list[list[int] | str]) -> list[int]:
            ids: list[int] = []
            for part in parts:
                seen = isinstance(part, str)
                picture = golden.pictures[part] if seen else None
                ids += self.module.image_tokens(self.config, picture) if seen else part
            return ids

        attempts = iter(attempts)
        first = next(attempts)
        pictures = [golden.pictures[part] for part in first if isinstance(part, str)]
        prompts = ((ids_of(parts), parts) for parts in chain([first], attempts))
        ids, parts, (tokens, margins) = robust(models, prompts, pictures)
        return Prompt(
            parts=parts,
            ids=np.array(ids, dtype=np.int32),
            logits=models[0].logits(ids, pictures),
            greedy=np.array(tokens, dtype=np.int32),
            greedy_margins=np.array(margins, dtype=np.float32),
        )


def embeddings(module: ModuleType, name: str) -> Embeddings:
    """The golden of an embedding model."""
    config, shapes, lengths = module.EMBEDDINGS[name]
    tensors, saved = layout(config)
    weight = files.weight_of(arch_of(module))
    layers = {key: torch.from_numpy(weight(key, shape)) for key, shape in shapes.items()}
    model = loaded(config, {key: weight(key, shape) for key, shape in tensors.items()})
    texts = [draw_prompt(name, i, n, config["vocab_size"]) for i, n in enumerate(lengths)]
    with torch.no_grad():
        states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in texts]
        vectors = [module.embed(rows, layers).numpy() for rows in states]
    return Embeddings(
        arch=arch_of(module),
        config=config,
        saved_config=saved,
        versions=VERSIONS,
        tensors={**tensors, **shapes},
        texts=texts,
        vectors=np.stack(vectors),
    )


def nmse(got: Array, want: Array) -> float:
    difference = got.astype(np.float64) - want
    return float(np.sum(difference**2) / np.sum(want.astype(np.float64) ** 2))


def compare(got: Golden, want: Golden) -> list[str]:
    """What is wrong with the committed golden `want`; empty if nothing."""
    wrong = [name for name in ("config", "tensors") if getattr(got, name) != getattr(want, name)]
    pairs = {name: (getattr(got, name), getattr(want, name)) for name in ARRAYS}
    for name, prompt in got.prompts.items():
        for key in OF_A_PROMPT:
            pairs[f"{name}.{key}"] = getattr(prompt, key), getattr(want.prompts[name], key)
    for name, picture in got.pictures.items():
        pairs[f"{name}.rows"] = picture.rows, want.pictures[name].rows
        if (picture.shape, picture.data) != (want.pictures[name].shape, want.pictures[name].data):
            wrong.append(name)
    for name, (a, b) in pairs.items():
        same = np.array_equal(a, b) if a.dtype == np.int32 else nmse(a, b) <= TOLERANCE
        if not same and not name.endswith("margins"):
            wrong.append(name)
    return wrong


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
        for case in [*module.CASES, *getattr(module, "EMBEDDINGS", {})]:
            if options.case in (None, case):
                make = make_embeddings if case not in module.CASES else make_golden
                failed |= make(module, case, options.check)
    return int(failed)


def make_golden(module: ModuleType, case: str, check: bool) -> bool:
    """Writes a golden, or checks the one that is there; True if it differs."""
    arch, wrong = arch_of(module), []
    if check:
        want = Golden.load(arch, case)
        golden = Case(module, case).compute(want)
        wrong = compare(golden, want)
        outcome = f"differs in {', '.join(wrong)}" if wrong else "matches"
    else:
        golden = Case(module, case).compute()
        golden.save(case)
        outcome = f"{files.path(arch, case).stat().st_size} bytes"
    print(
        f"{arch}/{case}: {outcome}; margin {golden.greedy_margins.min():.3f}, "
        f"logits std {golden.logits.std():.2f}, "
        f"f16 {nmse(golden.logits_f16, golden.logits):.1e}, "
        f"q8_0 {nmse(golden.logits_q8_0, golden.logits):.1e}",
        flush=True,
    )
    return bool(wrong)


def make_embeddings(module: ModuleType, case: str, check: bool) -> bool:
    """Writes the embeddings of a model, or checks those that are there; True if they differ."""
    got, differs = embeddings(module, case), False
    if check:
        want = Embeddings.load(got.arch, case)
        same = (got.config, got.tensors, got.texts) == (want.config, want.tensors, want.texts)
        differs = not same or nmse(got.vectors, want.vectors) > TOLERANCE
    else:
        got.save(case)
    print(f"{got.arch}/{case}: {'differs' if differs else 'fine'}; std {got.vectors.std():.2f}")
    return differs


if __name__ == "__main__":
    sys.exit(main())
