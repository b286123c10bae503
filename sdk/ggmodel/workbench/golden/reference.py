"""Makes golden files with transformers.

Each case is written as a real checkpoint, with its names on disk and `weight(name, shape)` for
values, and loaded with from_pretrained by the class in `architectures`: all that transformers does
to a checkpoint (fusing experts, tying) happens here too.

Names in `cases.py` of an architecture:

    CASES       name → config.json
    PROMPT      tokens in a prompt; 32 by default
    LENGTHS     case → tokens in its prompt, if not PROMPT

for cases with images or other items

    PICTURES    case → {name: (shape of the pixels, data)}; see `Picture`. A third entry is its
                kind, such as "audio", if it is no image
    PROMPTS     case → {name: parts}, a part being a number of tokens to draw or a picture's name
    image_tokens(config, picture) → list of ids that stand for the picture in transformers' input
    model_inputs(config, ids, pictures) → {keyword: array}: the inputs beside input_ids, with a
                batch dim if they have one; pictures in the order of the prompt
    image_rows(model, inputs) → torch tensor [rows, width]: the result of the vision tower and the
                projector for the one picture in the keywords `inputs`

for cases whose files are compared from their bytes on (torchvision prepares pictures)

    FILES       case → {name: (text of an item for the processor, width and height of a picture or
                the number of samples of a sound)}
    processor(transformers, config, tokenizer) → the processor of transformers, with a preparation
                that suits the tiny model. The tokenizer has the texts of SPECIAL
    NAMED       attributes of the tokenizer that the processor asks for → texts of SPECIAL
    BEFORE      ids of tokens before an item, if an item need not come first
    processed(processor, text, given) → the inputs of transformers, where calling the processor
                does not give them

for embedding models

    EMBEDDINGS  case → (config.json, {name: shape} of the layers behind it, lengths of texts)
    embed(states, layers) → tensor: the vector of a text from its hidden states [n, width]
    POOLING     ways of pooling ("mean", "cls", "last") whose results the vector concatenates; the
                model's own by default

optional, for any case:

    TOKENS      case → prompts and continuations use ids below this; all by default
    MARGIN      least distance of the top two logits in continuations, if not `MARGIN` here
    weight(name, shape), to replace the common rule
    router_logits(model, inputs) → [tensor [n, experts], …], one for each layer of experts
    adjust(model), called when a model has been loaded
    BOUNDS      case → the NMSE that ggmodel must stay below, if not 1e-8
    SPECIAL     text → id of special tokens that the model looks up by name
    UNSEEN      hyperparameter or tensor, or a pattern of them → why no case can see its value

Needs torch, transformers and safetensors.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, Error, Unsupported
from ...gguf_file import DType
from ...model import Model
from . import architecture_of
from .files import GREEDY, Array, Cases, Embeddings, Golden, Picture, Prompt, checkpoint
from .preparation import Preparation
from .weights import Types, narrowed, rounded, types_of

try:
    import torch
    import transformers
    from safetensors import safe_open
    from transformers import AutoConfig
except ImportError as error:
    raise Unsupported(
        f"the reference is transformers, not installed here ({error}): make an environment with "
        "`pip install torch==2.13.0 transformers==5.23.0 safetensors` and ggmodel"
    ) from error

Shapes = dict[str, tuple[int, ...]]
Robust = tuple[list[int], list[float]]
Parts = list[list[int] | str]
Tell = Callable[[str], None]

PROMPT = 32
MARGIN = 0.1  # least distance of the top two logits in the greedy continuation
DISTINCT = 4  # least number of different tokens in it: repetition proves little
ROUTER_MARGIN = 0.05  # least distance of the last chosen expert's logit from the next, anywhere
ATTEMPTS = 5000  # prompts to try
VERSIONS = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "numpy": np.__version__,
}


# Field of Golden → the type that weights are rounded to before the run.
RUNS = {"logits": DType.F32, "logits_f16": DType.F16, "logits_q8_0": DType.Q8_0}


class Fragile(Exception):
    """Why a prompt's continuation might change with a small error."""


class Reference:
    """A transformers model loaded from a checkpoint with an architecture's weights in it."""

    def __init__(self, case: Case, tensors: Shapes, types: Types, dtype: DType):
        self.module, self.config, self.tokens = case.module, case.config, case.tokens
        self.margin, self.dtype = getattr(case.module, "MARGIN", MARGIN), dtype
        exact = case.cases.weights(tensors)
        weights = {n: rounded(x, narrowed(types.get(n), dtype)) for n, x in exact.items()}
        self.model = loaded(self.config, weights)
        getattr(self.module, "adjust", lambda model: None)(self.model)

    def inputs(self, ids: list[int], pictures: list[Picture]) -> dict[str, Any]:
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

    def greedy(self, prompt: list[int], pictures: list[Picture]) -> Robust:
        """The continuation and its margins.

        Each step recomputes everything, so no cache has to be trusted.

        Raises:
            Fragile: a margin is too small, or a token is not to be used.
        """
        ids, margins = list(prompt), []
        for _ in range(GREEDY):
            last = self.logits(ids, pictures)[-1]
            second, first = np.sort(last)[-2:]
            margins.append(float(first - second))
            ids.append(int(np.argmax(last)))
            if margins[-1] < self.margin:
                raise Fragile(f"the top two logits are nearer than {self.margin}")
            if ids[-1] >= self.tokens:
                raise Fragile(f"a token behind {self.tokens - 1} follows, see TOKENS")
        return ids[len(prompt) :], margins

    @torch.no_grad()
    def router_margin(self, ids: list[int], pictures: list[Picture]) -> float:
        """Least distance of a chosen expert's logit from an unchosen one; inf without experts."""
        config = self.model.config.get_text_config()
        each = (getattr(config, key, None) for key in ("num_experts_per_tok", "top_k_experts"))
        chosen = next((n for n in each if n is not None), None)
        if chosen is None:
            return float("inf")
        find = getattr(self.module, "router_logits", _router_logits)
        layers = find(self.model, self.inputs(ids, pictures))
        ordered = [torch.sort(layer, descending=True).values for layer in layers]
        return min(float((rows[:, chosen - 1] - rows[:, chosen]).min()) for rows in ordered)


def _router_logits(model: Any, inputs: dict[str, Any]) -> list[Any]:
    return model(**inputs, use_cache=False, output_router_logits=True).router_logits


def loaded(config: dict[str, Any], weights: dict[str, Array]) -> Any:
    """The transformers model of a checkpoint.

    Raises:
        ConfigError: the checkpoint has missing, unexpected or mismatched tensors.
    """
    with tempfile.TemporaryDirectory() as folder:
        checkpoint(Path(folder), config, weights)
        model, info = class_of(config).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    wrong = {key: names for key, names in info.items() if names}
    if wrong:
        raise ConfigError(f"transformers did not load the checkpoint as it is: {wrong}")
    return model.eval()


def class_of(config: dict[str, Any]) -> Any:
    """The class of transformers that a config names.

    Raises:
        ConfigError: transformers has no such class.
    """
    name = (config.get("architectures") or [None])[0]
    cls = getattr(transformers, str(name), None)
    if cls is None:
        raise ConfigError(
            f"transformers {transformers.__version__} has no {name}: `architectures` of a config "
            "names the class"
        )
    return cls


def layout(config: dict[str, Any]) -> tuple[Shapes, dict[str, Any]]:
    """The names and shapes that save_pretrained writes, and its config.json."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(folder)
        model = class_of(config)._from_config(copy.deepcopy(parsed))
        parsed.dtype, model.config = model.config.dtype, parsed  # timm writes into its arguments
        model.save_pretrained(folder)
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


def _continuation(models: list[Reference], prompt: list[int], pictures: list[Picture]) -> Robust:
    """Greedy tokens that no small error can change, and their margins.

    Raises:
        Fragile: one could.
    """
    _check_routers(models[0], prompt, pictures)
    tokens: list[int] = []
    smallest = [float("inf")] * GREEDY
    for model in models:
        ids, margins = model.greedy(prompt, pictures)
        if len(set(ids)) < DISTINCT:
            raise Fragile(f"fewer than {DISTINCT} different tokens follow")
        if tokens and ids != tokens:
            raise Fragile(f"weights in {model.dtype.name} go on otherwise")
        tokens = ids
        _check_routers(model, prompt + tokens, pictures)
        smallest = [min(pair) for pair in zip(smallest, margins, strict=True)]
    return tokens, smallest


def _check_routers(model: Reference, ids: list[int], pictures: list[Picture]) -> None:
    if model.router_margin(ids, pictures) < ROUTER_MARGIN:
        raise Fragile(f"a router's choice is nearer than {ROUTER_MARGIN}")


def _robust(
    models: list[Reference],
    prompts: Iterable[tuple[list[int], Any]],
    pictures: list[Picture] | None = None,
    tell: Tell = lambda text: None,
) -> tuple[list[int], Any, Robust]:
    """The first (prompt, tag) with a robust continuation, and that continuation.

    Args:
        tell: called with the number of each prompt that is refused, and why.
    """
    reasons = Counter[str]()
    for number, (prompt, parts) in enumerate(prompts, 1):
        try:
            return prompt, parts, _continuation(models, prompt, pictures or [])
        except Fragile as reason:
            reasons[str(reason)] += 1
            tell(f"prompt {number:,} of at most {ATTEMPTS:,}: {reason}")
    counts = "; ".join(f"{n:,} times {reason}" for reason, n in reasons.most_common())
    raise ConfigError(
        f"none of {reasons.total():,} prompts has a continuation that no rounding can change: "
        f"{counts}. Change the configuration (more layers, another vocabulary, a shorter prompt in "
        "LENGTHS), or lower MARGIN in cases.py"
    )


class Case:
    """Makes the golden of one configuration.

    Args:
        models: a folder of architectures, searched first.
        tell: called with the state of the search, for people.
    """

    def __init__(
        self,
        cases: Cases,
        name: str,
        models: str | Path | None = None,
        tell: Tell = lambda text: None,
    ):
        self.cases, self.module, self.name = cases, cases.module, name
        self.models, self._tell = models, tell
        self.config = cases.configs[name]
        vocab = self.config.get("text_config", self.config)["vocab_size"]
        self.tokens = getattr(self.module, "TOKENS", {}).get(name, vocab)

    def compute(self, want: Golden | None = None) -> Golden:
        """The golden of the first prompts with robust continuations, or of those in `want`."""
        self._tell(self.name)
        tensors, saved = layout(self.config)
        types = _types(self.cases, self.name, tensors, self.models) if want is None else want.types
        models = {run: Reference(self, tensors, types, dtype) for run, dtype in RUNS.items()}
        if want is None:
            usual = getattr(self.module, "PROMPT", PROMPT)
            length = getattr(self.module, "LENGTHS", {}).get(self.name, usual)
            drawn = (draw_prompt(self.name, i, length, self.tokens) for i in range(ATTEMPTS))
        else:
            drawn = iter([want.prompt.tolist()])
        prompt, _, (tokens, margins) = _robust(
            list(models.values()), ((p, None) for p in drawn), tell=self._telling("")
        )
        golden = Golden(
            folder=self.cases.folder,
            config=self.config,
            saved_config=saved,
            versions=VERSIONS,
            tensors=tensors,
            types=types,
            prompt=np.array(prompt, dtype=np.int32),
            **{run: model.logits(prompt, []) for run, model in models.items()},
            greedy=np.array(tokens, dtype=np.int32),
            greedy_margins=np.array(margins, dtype=np.float32),
        )
        pictures = getattr(self.module, "PICTURES", {}).get(self.name, {})
        for name, (shape, data, *kind) in pictures.items():
            picture = golden.pictures[name] = Picture(name, shape, data)
            picture.kind = kind[0] if kind else "image"
            picture.rows = models["logits"].rows(picture)
        for name, parts in getattr(self.module, "PROMPTS", {}).get(self.name, {}).items():
            old = want and want.prompts[name]
            attempts = self._drawn(name, parts) if old is None else [old.parts]
            golden.prompts[name] = self._seeing(golden, list(models.values()), attempts, name)
        return golden

    def _telling(self, prompt: str) -> Tell:
        """Tells of a search with the case's name, and that of a prompt with images."""
        title = f"{self.name}, {prompt}" if prompt else self.name
        return lambda text: self._tell(f"{title}, {text}")

    def _drawn(self, name: str, parts: list[int | str]) -> Iterable[Parts]:
        """Random prompts of a layout with images; the first token is BOS."""
        total = sum(part for part in parts if isinstance(part, int))
        for attempt in range(ATTEMPTS):
            ids = iter(draw_prompt(f"{self.name}/{name}", attempt, total, self.tokens))
            yield [p if isinstance(p, str) else list(islice(ids, p)) for p in parts]

    def _seeing(
        self, golden: Golden, models: list[Reference], drawn: Iterable[Parts], name: str
    ) -> Prompt:
        """The first prompt with images whose continuation is robust."""

        def ids_of(parts: Parts) -> list[int]:
            ids: list[int] = []
            for part in parts:
                if isinstance(part, str):
                    ids += self.module.image_tokens(self.config, golden.pictures[part])
                else:
                    ids += part
            return ids

        attempts = iter(drawn)
        first = next(attempts)
        pictures = [golden.pictures[part] for part in first if isinstance(part, str)]
        prompts = ((ids_of(parts), parts) for parts in chain([first], attempts))
        ids, parts, (tokens, margins) = _robust(models, prompts, pictures, self._telling(name))
        return Prompt(
            parts=parts,
            ids=np.array(ids, dtype=np.int32),
            logits=models[0].logits(ids, pictures),
            greedy=np.array(tokens, dtype=np.int32),
            greedy_margins=np.array(margins, dtype=np.float32),
        )


def prepared(cases: Cases, name: str, golden: Golden) -> Preparation | None:
    """The case's files by the processor of transformers; None where cases.py has none for it."""
    if name not in getattr(cases.module, "FILES", {}):
        return None
    from . import processors

    case = Case(cases, name)
    reference = Reference(case, golden.tensors, golden.types, DType.F32)
    return processors.prepared(cases, name, reference.model)


def _types(cases: Cases, name: str, tensors: Shapes, models: str | Path | None) -> Types:
    """The types of a checkpoint's tensors in a Q8_0 file; see `Golden.types`."""
    embeds = name in cases.embeddings
    config = cases.embeddings[name][0] if embeds else cases.configs[name]
    architecture: type[Model] | None = None
    with suppress(Error):  # not written yet: shapes decide
        architecture = architecture_of(cases.folder, config, embeds, models)
    return types_of(architecture, config, tensors)


def embeddings(cases: Cases, name: str, models: str | Path | None = None) -> Embeddings:
    """The golden of an embedding model."""
    config, shapes, lengths = cases.embeddings[name]
    tensors, saved = layout(config)
    layers = {key: torch.from_numpy(x) for key, x in cases.weights(shapes).items()}
    model = loaded(config, cases.weights(tensors))
    texts = [draw_prompt(name, i, n, config["vocab_size"]) for i, n in enumerate(lengths)]
    with torch.no_grad():
        states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in texts]
        vectors = [cases.module.embed(rows, layers).numpy() for rows in states]
    return Embeddings(
        folder=cases.folder,
        config=config,
        saved_config=saved,
        versions=VERSIONS,
        tensors={**tensors, **shapes},
        types=_types(cases, name, {**tensors, **shapes}, models),
        texts=texts,
        vectors=np.stack(vectors),
    )


def quiet() -> None:
    """Turns off progress bars and warnings of transformers."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
