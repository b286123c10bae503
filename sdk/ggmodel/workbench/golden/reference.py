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

    EMBEDDINGS  case → (config.json, {name: shape} of the layers behind it, lengths of texts, or
                their ids)
    embed(states, layers) → tensor: the vector of a text from its hidden states [n, width]; the
                layers "logits" are the scores of a head for whole texts
    POOLING     ways of pooling ("mean", "cls", "last", "rank") whose results the vector
                concatenates, or a function of config.json that gives them; the model's own by
                default

optional, for any case:

    TOKENS      case → prompts and continuations use ids below this; all by default
    MARGIN      least distance of the top two logits in continuations, if not `MARGIN` here
    weight(name, shape), to replace the common rule
    adjust(model), called when a model has been loaded
    BOUNDS      case → the NMSE that ggmodel must stay below, if not 1e-8
    MORE        case → {name: shape} of tensors of its checkpoint that transformers takes, and does
                not write
    SPECIAL     text → id of special tokens that the model looks up by name
    UNFOLLOWED  "case.path" of a number in config.json, or a pattern → why a model that is right
                does not follow transformers to another value
    UNSEEN      hyperparameter or tensor, or a pattern of them → why no case can see its value

Needs torch, transformers and safetensors.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, Error, Unsupported
from ...gguf_file import DType
from ...model import Model
from ..reference import choosing
from ..routers import Router
from . import architecture_of, changes
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
Parts = list[list[int] | str]
Tell = Callable[[str], None]

PROMPT = 32
MARGIN = 0.1  # least distance of the top two logits in the greedy continuation
DISTINCT = 4  # least number of different tokens in it: repetition proves little
ATTEMPTS = 32  # prompts to try; the one with the longest continuation serves
VERSIONS = {
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "numpy": np.__version__,
}


# Field of Golden → the type that weights are rounded to before the run.
RUNS = {"logits": DType.F32, "logits_f16": DType.F16, "logits_q8_0": DType.Q8_0}


class Reference:
    """A transformers model loaded from a checkpoint with an architecture's weights in it."""

    def __init__(
        self,
        case: Case,
        tensors: Shapes,
        types: Types,
        dtype: DType = DType.F32,
        config: dict[str, Any] | None = None,
    ):
        self.module, self.config, self.tokens = case.module, config or case.config, case.tokens
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
    def run(
        self, ids: list[int], pictures: list[Picture], imposed: Sequence[Router] = ()
    ) -> tuple[Array, list[Router]]:
        """The logits of a text, and the choices of experts; see `choosing`."""
        with choosing(self.model, imposed) as routers:
            result = self.model(**self.inputs(ids, pictures), use_cache=False)
        return result.logits[0].numpy(), routers

    @torch.no_grad()
    def last(self, golden: Golden) -> Array:
        """The last logits of the prompts that are compared where numbers change."""
        rows = []
        for prompt in changes.compared(golden):
            ids = prompt.prompt if isinstance(prompt, Golden) else prompt.ids
            parts = [] if isinstance(prompt, Golden) else prompt.parts
            pictures = [golden.pictures[part] for part in parts if isinstance(part, str)]
            rows.append(self.run(ids.tolist(), pictures)[0][-1])
        return np.concatenate(rows)

    @torch.no_grad()
    def rows(self, picture: Picture) -> Array:
        inputs = self.inputs(self.module.image_tokens(self.config, picture), [picture])
        return self.module.image_rows(self.model, inputs).contiguous().numpy()


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


@dataclass(frozen=True)
class Continuation:
    """Greedy tokens that no small error can change, and their margins."""

    tokens: list[int]
    margins: list[float]

    @property
    def rank(self) -> tuple[int, int]:
        """Higher for the better of two."""
        return min(len(set(self.tokens)), DISTINCT), len(self.tokens)


def _continuation(
    models: Sequence[Reference], prompt: list[int], pictures: list[Picture]
) -> Continuation:
    """The tokens that all models put behind a prompt, up to the first that one might not. Each step
    recomputes everything, so no cache has to be trusted."""
    ids, margins = list(prompt), list[float]()
    first = models[0]
    while len(margins) < GREEDY:
        logits, routers = first.run(ids, pictures)
        lasts = [logits[-1], *(m.run(ids, pictures, routers)[0][-1] for m in models[1:])]
        tops = [np.sort(last)[-2:] for last in lasts]
        margin = min(float(top - second) for second, top in tops)
        tokens = {int(last.argmax()) for last in lasts}
        if len(tokens) > 1 or margin < first.margin or max(tokens) >= first.tokens:
            break
        margins.append(margin)
        ids += tokens
    return Continuation(ids[len(prompt) :], margins)


class Case:
    """Makes the golden of one configuration.

    Args:
        models: a folder of architectures, searched first.
        tell: called with what is computed, for people.
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
        """The golden of the first prompts with robust continuations, or of those in `want`.

        Raises:
            ConfigError: no prompt has any.
        """
        self._tell(f"{self.name}: loading the reference")
        tensors, saved = layout(self.config)
        more = getattr(self.module, "MORE", {}).get(self.name, {})
        tensors = dict(sorted({**tensors, **more}.items()))
        types = _types(self.cases, self.name, tensors, self.models) if want is None else want.types
        models = {run: Reference(self, tensors, types, dtype) for run, dtype in RUNS.items()}
        each = list(models.values())
        if want is None:
            usual = getattr(self.module, "PROMPT", PROMPT)
            length = getattr(self.module, "LENGTHS", {}).get(self.name, usual)
            drawn = (draw_prompt(self.name, i, length, self.tokens) for i in range(ATTEMPTS))
        else:
            drawn = iter([want.prompt.tolist()])
        prompt, _, continuation = self._best(each, ((p, None) for p in drawn), [], "the prompt")
        routers = each[0].run(prompt + continuation.tokens, [])[1]
        golden = Golden(
            folder=self.cases.folder,
            config=self.config,
            saved_config=saved,
            versions=VERSIONS,
            tensors=tensors,
            types=types,
            prompt=np.array(prompt, dtype=np.int32),
            **{run: model.run(prompt, [], routers)[0] for run, model in models.items()},
            greedy=np.array(continuation.tokens, dtype=np.int32),
            greedy_margins=np.array(continuation.margins, dtype=np.float32),
            routers=routers,
        )
        pictures = getattr(self.module, "PICTURES", {}).get(self.name, {})
        for name, (shape, data, *kind) in pictures.items():
            picture = golden.pictures[name] = Picture(name, shape, data)
            picture.kind = kind[0] if kind else "image"
            self._tell(f"{self.name}: the {picture.kind} {name}")
            picture.rows = models["logits"].rows(picture)
        for name, parts in getattr(self.module, "PROMPTS", {}).get(self.name, {}).items():
            old = want and want.prompts[name]
            attempts = self._drawn(name, parts) if old is None else [old.parts]
            golden.prompts[name] = self._seeing(golden, each, attempts, name)
        self.change(golden)
        return golden

    def change(self, golden: Golden) -> None:
        """Adds the results with other numbers in the configuration."""

        def last(config: dict[str, Any]) -> Array:
            return Reference(self, golden.tensors, golden.types, config=config).last(golden)

        def report(path: str) -> None:
            self._tell(f"{self.name}: another {path}")

        golden.changes, golden.changed = changes.recorded(self.config, last, report)

    def _best(
        self,
        models: list[Reference],
        prompts: Iterable[tuple[list[int], Any]],
        pictures: list[Picture],
        title: str,
    ) -> tuple[list[int], Any, Continuation]:
        """The first (prompt, tag) with a whole robust continuation, or else that with the longest,
        and that continuation."""
        self._tell(f"{self.name}: {title}")
        best: tuple[list[int], Any, Continuation] | None = None
        for prompt, tag in prompts:
            continuation = _continuation(models, prompt, pictures)
            if best is None or continuation.rank > best[2].rank:
                best = prompt, tag, continuation
            if continuation.rank == (DISTINCT, GREEDY):
                break
        if best is None or not best[2].tokens:
            raise ConfigError(
                f"{self.name}, {title}: in none of {ATTEMPTS} prompts is the token that follows "
                f"clear of the next one by {models[0].margin} in F32, F16 and Q8_0. Change the "
                "configuration (more layers, another vocabulary), or lower MARGIN in cases.py"
            )
        return best

    def _drawn(self, name: str, parts: list[int | str]) -> Iterable[Parts]:
        """Random prompts of a layout with images; the first token is BOS."""
        total = sum(part for part in parts if isinstance(part, int))
        for attempt in range(ATTEMPTS):
            ids = iter(draw_prompt(f"{self.name}/{name}", attempt, total, self.tokens))
            yield [p if isinstance(p, str) else list(islice(ids, p)) for p in parts]

    def _seeing(
        self, golden: Golden, models: list[Reference], drawn: Iterable[Parts], name: str
    ) -> Prompt:
        """The best prompt with images."""

        def ids_of(parts: Parts) -> list[int]:
            ids: list[int] = []
            for part in parts:
                if isinstance(part, str):
                    ids += self.module.image_tokens(self.config, golden.pictures[part])
                else:
                    ids += part
            return ids

        attempts = list(drawn)
        pictures = [golden.pictures[part] for part in attempts[0] if isinstance(part, str)]
        prompts = ((ids_of(parts), parts) for parts in attempts)
        ids, parts, continuation = self._best(models, prompts, pictures, f"the prompt {name}")
        routers = models[0].run(ids + continuation.tokens, pictures)[1]
        return Prompt(
            parts=parts,
            ids=np.array(ids, dtype=np.int32),
            logits=models[0].run(ids, pictures, routers)[0],
            greedy=np.array(continuation.tokens, dtype=np.int32),
            greedy_margins=np.array(continuation.margins, dtype=np.float32),
            routers=routers,
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
    texts = [
        n if isinstance(n, list) else draw_prompt(name, i, n, config["vocab_size"])
        for i, n in enumerate(lengths)
    ]
    with torch.no_grad():
        each = [model(torch.tensor([ids]), output_hidden_states=True) for ids in texts]
        vectors = []
        for out in each:
            logits = {"logits": out.logits[0]} if hasattr(out, "logits") else {}
            states = out.hidden_states[-1] if logits else out.last_hidden_state
            vectors.append(cases.module.embed(states[0], {**layers, **logits}).numpy())
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
