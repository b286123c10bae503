"""The tiny checkpoints of the goldens, on disk, and what transformers and the true models make of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ggmodel
from ggmodel.convert.declaration import pairs
from ggmodel.gguf_file import DType
from ggmodel.model import Input
from ggmodel.runner import LoadedModel
from ggmodel.workbench import golden
from ggmodel.workbench.activations import Activations
from ggmodel.workbench.golden import Embeddings, Golden, laid_out, text_of
from tests.golden.files import HERE
from tests.models.words import Words
from tests.vision import vision_model

# Computed as the reference computes.
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}
TYPES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0)
# Models in folders of families; the others have the folder's name.
FAMILIES = {
    "bailing": ("bailingmoe2",),
    "bart": ("bart", "marian"),
    "cohere": ("cohere2", "command_r"),
    "encoders": ("eurobert", "modern_bert", "mpnet", "nomic_bert"),
    "deepseek": ("deepseek2", "deepseek4"),
    "falcon": ("falcon_h1",),
    "granite": ("granite", "granitehybrid", "granitemoe"),
    "jamba": ("jamba",),
    "kimi": ("kimi_linear",),
    "mamba": ("mamba", "mamba2"),
    "ernie": ("ernie4_5", "ernie4_5_moe"),
    "exaone": ("exaone4", "exaone_moe"),
    "glm": ("glm4", "glm4moe"),
    "gpt": ("bloom", "gpt2", "gptneox", "mpt"),
    "hunyuan": ("hunyuan_dense", "hunyuan_moe"),
    "minimax": ("minimax_m2",),
    "nemotron": ("nemotron", "nemotron_h"),
    "olmo": ("olmo", "olmo2", "olmo_hybrid", "olmoe"),
    "phi": ("phi3", "phimoe"),
    "qwen35": ("qwen35", "qwen3next"),
    "qwen": ("qwen2", "qwen2moe", "qwen3", "qwen3vl"),
    "rwkv": ("rwkv7",),
    "seed": ("seed_oss",),
    "smollm": ("smollm3",),
    "starcoder": ("starcoder2",),
    "t5": ("t5", "t5encoder"),
}
ARCHITECTURES = sorted(p.parent.name for p in HERE.glob("*/cases.py"))
_SHIFTED = 16  # positions that a continuation goes beyond its context
_SIZES = ((40, 40), (90, 30), (30, 90), (17, 23), (300, 200))  # of pictures

Numbers = dict[str, np.ndarray]

# Files that serve more than the architecture that they are named after.
SERVES = {"nomic_bert": ("nomic_bert", "jina_bert_v3")}


def served_by(path: str) -> tuple[str, ...]:
    """The architectures of a model file, by the names of their goldens."""
    folder, name = path.split("/")
    family = FAMILIES.get(folder, (folder,))
    own = name.removesuffix(".py")
    return SERVES.get(own) or ((own,) if own in family else family)


def subjects(architecture: str) -> list[Subject]:
    """All cases of an architecture: those of text first, which are faster."""
    names = golden.Cases(HERE / architecture).names
    found = [Subject(architecture, name) for name in names]
    return sorted(found, key=lambda s: len(s.pictures))


@dataclass(frozen=True)
class Subject:
    """A case of the goldens.

    Attributes:
        dtype: of the model's weights; the checkpoint on disk is in F32.
    """

    architecture: str
    case: str
    dtype: DType = DType.F32

    @property
    def name(self) -> str:
        return f"{self.architecture}/{self.case}"

    @cached_property
    def cases(self) -> golden.Cases:
        return golden.Cases(HERE / self.architecture)

    @cached_property
    def golden(self) -> Golden | Embeddings:
        return self.cases.load(self.case)

    @property
    def pictures(self) -> dict[str, Any]:
        return getattr(self.cases.module, "PICTURES", {}).get(self.case, {})

    def checkpoint(self, cache: Path) -> Path:
        """The folder of the checkpoint, written if it is missing."""
        folder = cache / "checkpoints" / self.name
        if not (folder / "config.json").exists():
            kept = self.cases.embeddings.get(self.case, (None, {}, []))[
                1
            ]  # in folders of their own
            weights = {k: v for k, v in self.golden.weights().items() if k not in kept}
            golden.checkpoint(folder, self.golden.config, weights)
        return folder

    def load(self, cache: Path, models: Path | None = None, **options: Any) -> LoadedModel:
        """The model of the checkpoint, with special tokens that it finds by name."""
        file = self.checkpoint(cache)
        if self.dtype is not DType.F32:
            file = golden.source_of(self.golden, self.dtype, models)
        model = ggmodel.load(file, models=models, **{**EXACT, **options})
        special = getattr(self.cases.module, "SPECIAL", None)
        if special is not None:
            model.model.tokenizer = Words(special)
        return model

    def numbers(self, model: LoadedModel) -> Numbers:
        """Results for everything that the golden has: logits, rows of images, vectors."""
        wanted = self.golden
        if isinstance(wanted, Embeddings):
            ways = self.cases.ways(wanted.config)
            return {f"{w}": np.array(model.embed(wanted.texts, pooling=w)) for w in ways}
        found = {"prompt": model.logits(text_of(model, wanted))}
        for name, picture in wanted.pictures.items():
            seen = model.encode_media(picture.kind, picture.pixels, **picture.data)
            found[f"image {name}"] = np.concatenate([e.rows for e in seen])
        for name, prompt in wanted.prompts.items():
            found[f"prompt {name}"] = model.logits(laid_out(model, wanted, prompt))
        return found

    @property
    def bound(self) -> float:
        """The NMSE that its golden allows."""
        return self.cases.bounds.get(self.case, golden.EXACT)

    @property
    def by_table(self) -> bool:
        """Whether its bound is wide for ggml's table of GELU."""
        return self.bound > golden.EXACT

    def beyond(self, found: Numbers) -> bool:
        """Whether numbers are beyond the golden's bound: then `golden` says no, whatever else it
        computes."""
        wanted, bound = self.golden, self.bound
        if isinstance(wanted, Embeddings):  # some have layers that are not in the folder
            return False
        pairs = [(found["prompt"], wanted.logits)]
        pairs += [(found[f"image {n}"], p.rows) for n, p in wanted.pictures.items()]
        pairs += [(found[f"prompt {n}"], p.logits) for n, p in wanted.prompts.items()]
        return any(golden.nmse(got, want) >= bound for got, want in pairs)

    def rare(self, cache: Path, models: Path | None = None) -> Iterator[tuple[str, Numbers]]:
        """Results that a batch of one prompt does not show: token by token, beyond the end of the
        context, and for pictures of several sizes."""
        wanted = self.golden
        if isinstance(wanted, Embeddings):
            return
        with self.load(cache, models, batch_size=1) as model:
            prompt = text_of(model, wanted)
            yield "decode", {"logits": model.logits(prompt)}
        given: dict[str, Any] = {"temperature": 0, "max_tokens": _SHIFTED + 8, "logprobs": True}
        given["context_shift"] = True
        with self.load(cache, models, context_length=len(prompt) + 8) as model:
            if not model.model.prompt_item:  # others have nothing to shift
                done = model.generate(prompt, **given)
                logprobs = np.array(done.logprobs)
                yield "shift", {"tokens": np.array(done.tokens), "logprobs": logprobs}
            if any(picture.kind == "image" for picture in wanted.pictures.values()):
                yield "pixels", {n: a for size in _SIZES for n, a in _seen(model, size)}

    def references(self, cache: Path) -> list[Activations]:
        """The results of transformers, module by module: for the prompt, and for each prompt with
        one picture; those with one tile first."""
        folder = cache / "references" / self.name
        made = folder / "made"
        if not made.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with self.load(cache) as model:
                for i, found in enumerate(self._computed(cache, model)):
                    found.save(folder / f"{i}.npz")
            made.touch()
        return [Activations.load(path) for path in sorted(folder.glob("*.npz"))]

    def _computed(self, cache: Path, model: LoadedModel) -> Iterator[Activations]:
        from ggmodel.workbench import reference

        wanted, module = self.golden, self.cases.module
        folder = self.checkpoint(cache)
        names = [pair.name for pair in pairs(model.model, self._shapes())]
        given: dict[str, Any] = {"adjust": getattr(module, "adjust", None), "types": TYPES}
        if isinstance(wanted, Embeddings):
            ids = np.array(max(wanted.texts, key=len), np.int32)
            yield reference.run(folder, names, {"input_ids": ids}, **given)
            return
        yield reference.run(folder, names, {"input_ids": wanted.prompt}, **given)
        seen = [p for p in wanted.prompts.values() if len(_pictures(p.parts)) == 1]
        for prompt in sorted(
            seen, key=lambda p: len(wanted.pictures[_pictures(p.parts)[0]].pixels)
        ):
            picture = wanted.pictures[_pictures(prompt.parts)[0]]
            more = module.model_inputs(wanted.config, prompt.ids.tolist(), [picture])
            inputs = {"input_ids": prompt.ids, **more}
            item = {"kind": picture.kind, "image": picture.data}
            yield reference.run(folder, names, inputs, **item, **given)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        kept = self.cases.embeddings.get(self.case, (None, {}, []))[1]
        return {k: v for k, v in self.golden.tensors.items() if k not in kept}


def _pictures(parts: list[Any]) -> list[str]:
    return [part for part in parts if isinstance(part, str)]


def _seen(model: LoadedModel, size: tuple[int, int]) -> Iterator[tuple[str, np.ndarray]]:
    """The pixels that a model makes of a picture, and the tokens that stand for it."""
    columns, rows = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    planes = [columns * 3 % 256, rows * 5 % 256, (columns + rows) % 256, 255 - rows % 200]
    picture = Image.fromarray(np.stack(planes, -1).astype(np.uint8), "RGBA")
    yield f"pixels {size}", vision_model(model).preprocess(picture).values
    inputs = vision_model(model).image_inputs(model.embeddings(picture))
    tokens = [i.token if isinstance(i, Input) else i for i in inputs]  # numbers and texts
    yield f"tokens {size}", np.array([str(token) for token in tokens])
