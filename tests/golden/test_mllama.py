"""Llama 3.2 Vision against transformers: text, what the tower makes of images, text with images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import ggmodel
from ggmodel import DType, Input, nn
from ggmodel.convert import convert, from_hf
from ggmodel.convert.checkpoint_source import CheckpointSource
from ggmodel.errors import KvCacheFull, LoadError, PromptError
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.workbench.check import check
from ggmodel.workbench.golden import laid_out, nmse, source_of
from tests.convert.folders import write_golden
from tests.golden.files import GREEDY, Golden, cases, load_golden
from tests.image.noise import SIDE, SIZES, noise
from tests.vision import vision_model

# Float32 sums taken in another order; transformers itself is 3e-13 away from float64.
EXACT = 1e-8
# ggml rounds activations to F16 where weights are F16, to Q8_0 where they are Q8_0; as for llama.
HALF, QUANTISED = 1e-6, 5e-4

CASES = cases("mllama")
ASKED = list(load_golden("mllama", "images").prompts)


def load(golden: Golden, source: MemorySource | None = None, **options: object) -> LoadedModel:
    given = {"kv_type": "f32", "flash_attention": "off", **options}
    return ggmodel.load(source_of(golden) if source is None else source, **given)


@pytest.fixture(scope="module", params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("mllama", request.param)


@pytest.fixture(scope="module")
def images() -> Golden:
    return load_golden("mllama", "images")


@pytest.fixture
def model(images: Golden) -> Iterator[LoadedModel]:
    with load(images, batch_size=7, parallel=3) as model:
        yield model


def test_the_promised_cases_are_there():
    assert {"images", "last_is_cross", "more_states"} <= set(CASES)
    assert {"start", "middle", "end", "separate", "adjacent", "many"} == set(ASKED)
    used = [len(p.pixels) for c in CASES for p in load_golden("mllama", c).pictures.values()]
    assert {1, 2, 3, 4} == set(used)


# text


@pytest.mark.parametrize("batch_size", [512, 7, 5, 1])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_text_alone_in_any_batch_split(golden: Golden, flash_attention: str, batch_size: int):
    with load(golden, flash_attention=flash_attention, batch_size=batch_size) as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < EXACT


@pytest.mark.parametrize(
    ("dtype", "bound"), [(DType.F16, HALF), (DType.Q8_0, QUANTISED)], ids=["f16", "q8_0"]
)
def test_rounded_weights(golden: Golden, dtype: DType, bound: float):
    prompt = golden.prompt.tolist()
    with load(golden, source_of(golden, dtype), batch_size=7) as model:
        want = golden.logits_f16 if dtype is DType.F16 else golden.logits_q8_0
        assert nmse(model.logits(prompt), want) < bound
        done = model.generate(prompt, max_tokens=GREEDY, temperature=0)
        assert done.tokens == golden.greedy.tolist()
    with load(golden, source_of(golden, dtype), parallel=2) as model:
        for asked in golden.prompts.values():
            prompt = laid_out(model, golden, asked)
            done = model.generate(prompt, max_tokens=GREEDY, temperature=0)
            assert done.tokens == asked.greedy.tolist()


def test_a_checkpoint_without_eyes(images: Golden):
    config = {k: v for k, v in images.config.items() if k != "vision_config"}
    weights = {n: w for n, w in images.weights().items() if n.startswith("language_model.")}
    with load(images, from_hf(find("mllama"), config, weights)) as model:
        assert not vision_model(model).has_vision
        assert nmse(model.logits(images.prompt.tolist()), images.logits) < EXACT
        assert not any("cache.1" in str(layer) for layer in model.memory.cpu.cache)


# images


@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_what_the_tower_makes_of_tiles(golden: Golden, flash_attention: str):
    tiles = golden.config["vision_config"]["max_num_tiles"]
    with load(golden, flash_attention=flash_attention) as model:
        for picture in golden.pictures.values():
            (embedding,) = model.encode_image(picture.pixels, **picture.data)
            assert embedding.used == len(picture.rows) * len(picture.pixels) // tiles
            assert embedding.rows.shape == picture.rows.shape
            assert nmse(embedding.rows, picture.rows) < EXACT


def test_tiles_that_are_not_used_may_be_given(images: Golden):
    picture = images.pictures["high"]
    padded = np.concatenate([picture.pixels, np.zeros((1, *picture.shape[1:]), np.float32)])
    with load(images) as model:
        (embedding,) = model.encode_image(padded, **picture.data)
        assert embedding.used == 30 and nmse(embedding.rows, picture.rows) < EXACT
        (one_row,) = model.encode_image(picture.pixels)
        assert one_row.used == 30 and nmse(one_row.rows, picture.rows) > 1e-4
        with pytest.raises(PromptError, match="aspect_ratio_id of 9; it must be 1 to 8"):
            model.encode_image(picture.pixels, aspect_ratio_id=9)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_logits_in_any_batch_split(golden: Golden, flash_attention: str, asked: str):
    prompt = golden.prompts[asked]
    # The images of `many` do not fit the cache at once, only one after the other.
    for batch_size in [1] if asked == "many" else [512, 7, 5, 3, 1]:
        with load(golden, flash_attention=flash_attention, batch_size=batch_size) as model:
            logits = model.logits(laid_out(model, golden, prompt))
            assert logits.dtype == np.float32
            assert nmse(logits, prompt.logits) < EXACT


@pytest.mark.parametrize("asked", ASKED)
def test_greedy_tokens(golden: Golden, asked: str):
    prompt = golden.prompts[asked]
    for flash_attention in ("off", "on"):
        with load(golden, flash_attention=flash_attention, parallel=2) as model:
            for _ in range(2):  # the second time from what is remembered
                inputs = laid_out(model, golden, prompt)
                done = model.generate(inputs, max_tokens=GREEDY, temperature=0)
                assert done.tokens == prompt.greedy.tolist()


def test_sequences_with_different_images_at_once(images: Golden, model: LoadedModel):
    prompts = [images.prompts[asked] for asked in ("middle", "adjacent", "start", "separate")]
    first, *rest = [
        model.stream(laid_out(model, images, p), max_tokens=GREEDY, temperature=0)
        for p in prompts[:3]
    ]
    begun = [next(first).token for _ in range(5)]
    others = list(zip(*rest, strict=True))  # each a token ahead of the other
    found = [begun + [piece.token for piece in first]]
    found += [[pieces[i].token for pieces in others] for i in range(len(rest))]
    assert found == [p.greedy.tolist() for p in prompts[:3]]
    done = model.generate(laid_out(model, images, prompts[3]), max_tokens=GREEDY, temperature=0)
    assert done.tokens == prompts[3].greedy.tolist()


def test_another_image_gives_another_text(images: Golden, model: LoadedModel):
    """Though the tokens are the same: a remembered prefix ends before the image."""
    prompt = images.prompts["start"]
    inputs = laid_out(model, images, prompt)
    model.generate(inputs, max_tokens=2, temperature=0)
    high = images.pictures["high"]
    inputs[0] = model.embeddings(high.pixels, **high.data)
    warm = model.generate(inputs, max_tokens=GREEDY, temperature=0).tokens
    assert warm != prompt.greedy.tolist()
    with load(images) as fresh:
        inputs[0] = fresh.embeddings(high.pixels, **high.data)
        assert fresh.generate(inputs, max_tokens=GREEDY, temperature=0).tokens == warm


def test_two_forwards_are_identical(images: Golden, model: LoadedModel):
    """The tanh of a gate is not written over the gate."""
    inputs = laid_out(model, images, images.prompts["adjacent"])
    first = model.logits(inputs)
    assert first.tobytes() == model.logits(inputs).tobytes()


def test_more_images_than_there_is_room_for(images: Golden):
    prompt = images.prompts["many"]
    for batch_size in (512, 7, 3):
        with load(images, batch_size=batch_size) as model:
            before = model.memory.size()
            assert nmse(model.logits(laid_out(model, images, prompt)), prompt.logits) < EXACT
            assert model.memory.size() == before


def test_more_images_side_by_side_than_there_is_room_for(images: Golden):
    picture = next(p for p in images.pictures.values() if len(p.pixels) == 4)
    with load(images) as model:
        several = [model.embeddings(picture.pixels, aspect_ratio_id=n) for n in (6, 3, 8)]
        with pytest.raises(KvCacheFull, match="larger parallel"):
            model.generate([1, *several, 5], max_tokens=1)
        text = images.prompts["start"]
        done = model.generate(laid_out(model, images, text), max_tokens=GREEDY, temperature=0)
        assert done.tokens == text.greedy.tolist()


def test_the_token_of_an_image_is_the_first_without_an_output(images: Golden, model: LoadedModel):
    (embedding,) = model.embeddings(images.pictures["one"].pixels)
    (found,) = model.model.post_tokenize([[embedding]])
    assert isinstance(found, Input) and found.token == images.config["image_token_index"]
    assert found.multimodal is embedding


def test_the_reference_backend_agrees(images: Golden):
    prompt = images.prompts["adjacent"]
    with load(images, backend="reference", kv_type="f32") as model:
        assert nmse(model.logits(laid_out(model, images, prompt)), prompt.logits) < 1e-10


@pytest.mark.parametrize("n", range(len(SIZES)))
def test_pictures_become_the_tiles_of_the_processor(n: int):
    from ggmodel.models.mllama.image import tiles_of

    config: Any = SimpleNamespace(
        tile=SIDE, tiles=4, resample="bilinear", image_mean=nn.CLIP_MEAN, image_std=nn.CLIP_STD
    )
    with np.load(Path(__file__).parents[1] / "image" / "goldens.npz") as want:
        found = tiles_of(noise(*SIZES[n], channels=3 + n % 2), config)
        np.testing.assert_array_equal(found.values, want[f"mllama.{n}"])
        assert found.data == {"aspect_ratio_id": want[f"mllama.ratio.{n}"]}


# files


def test_files_are_laid_out_as_by_ollama(images: Golden):
    """Names, and what its converter does to values: tanh of the gates of the tower, but not of the
    text; one gate of positions split in two; cross-attention permuted as for rope."""
    source, weights = source_of(images), images.weights()

    def tensor(name: str) -> np.ndarray:
        info = source.tensors[name]
        return np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])

    here, there = "blk.1.", "language_model.model.layers.1."
    for name in ("cross_attn_attn_gate", "cross_attn_mlp_gate"):
        np.testing.assert_array_equal(tensor(here + name), weights[there + name])
    permuted = weights[f"{there}cross_attn.q_proj.weight"].reshape(4, 2, 8, 64).swapaxes(1, 2)
    np.testing.assert_array_equal(
        tensor(f"{here}cross_attn_q_proj.weight"), permuted.reshape(64, 64)
    )
    for name in ("q_norm", "k_norm"):
        want = weights[f"{there}cross_attn.{name}.weight"]
        np.testing.assert_array_equal(tensor(f"{here}cross_attn_{name}.weight"), want)
    tower = "vision_model."
    gate = np.tanh(weights[f"{tower}gated_positional_embedding.gate"])
    np.testing.assert_allclose(tensor("v.position_embd.gate"), 1 - gate, rtol=1e-6)
    np.testing.assert_allclose(tensor("v.tile_position_embd.gate"), gate, rtol=1e-6)
    for name, other in {
        "v.global.blk.1.attn_gate": "global_transformer.layers.1.gate_attn",
        "v.global.blk.0.ffn_gate": "global_transformer.layers.0.gate_ffn",
        "v.pre_tile_position_embd.gate": "pre_tile_positional_embedding.gate",
        "v.post_tile_position_embd.gate": "post_tile_positional_embedding.gate",
    }.items():
        np.testing.assert_allclose(tensor(name), np.tanh(weights[tower + other]), rtol=1e-6)
    assert source.tensors["v.patch_embd.weight"].shape == (4, 4, 3, 32)
    names = "v.class_embd v.pre_ln.bias v.post_ln.weight v.blk.2.ffn_up.bias v.blk.0.attn_norm.bias"
    names += " v.pre_tile_position_embd.weight v.position_embd.weight v.tile_position_embd.weight"
    names += " v.blk.1.attn_output.weight mm.0.weight mm.0.bias blk.3.cross_attn_o_proj.weight"
    assert set(names.split()) <= source.tensors.keys()
    keys = {
        "attention.cross_attention_layers": [1, 3],
        "vision.block_count": 3,
        "vision.global.block_count": 2,
        "vision.intermediate_layers_indices": [1, 2],
        "vision.embedding_length": 32,
        "vision.feed_forward_length": 64,
        "vision.attention.head_count": 4,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.image_size": 12,
        "vision.patch_size": 4,
        "vision.max_num_tiles": 4,
        "vision.num_channels": 3,
        "rope.dimension_count": 16,
    }
    assert {key: source.metadata[f"mllama.{key}"] for key in keys} == keys


def test_a_tower_permuted_as_by_ollama_sees_the_same(images: Golden):
    """Its converter permutes queries and keys there, too; without rope nothing depends on it."""
    source = source_of(images)
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    for name, (dtype, shape, data) in tensors.items():
        if name.startswith("v.") and name.endswith(("attn_q.weight", "attn_k.weight")):
            rows = np.frombuffer(data, np.float32).reshape(4, 2, 4, 32).swapaxes(1, 2)
            tensors[name] = dtype, shape, rows.tobytes()
            assert rows.tobytes() != data
    picture = images.pictures["high"]
    with load(images, MemorySource(dict(source.metadata), tensors)) as model:
        (embedding,) = model.encode_image(picture.pixels, **picture.data)
        assert nmse(embedding.rows, picture.rows) < EXACT


def test_a_layer_is_whole_or_missing(images: Golden):
    source, gone = source_of(images), "blk.1.cross_attn_attn_gate"
    kept = {
        name: (info.dtype, info.shape, bytes(source.data(name)))
        for name, info in source.tensors.items()
        if name != gone
    }
    with pytest.raises(LoadError, match=r"layers\[1\]"):
        ggmodel.load(MemorySource(dict(source.metadata), kept))


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_image_token_may_lie_beyond_the_vocabulary(tmp_path: Path, kind: str):
    """As published: the tokenizer has a token more than vocab_size, the embedding eight rows."""
    model, golden = write_golden(tmp_path / "hf", "mllama", "images")
    size = golden.config["text_config"]["vocab_size"]
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == size == golden.config["image_token_index"]
    tokenizer.add_special_tokens(["<|image|>"])
    tokenizer.save(str(model / "tokenizer.json"))
    if kind == "file":
        convert(model, tmp_path / "a.gguf", pre="gpt-2")
        model = tmp_path / "a.gguf"
    with CheckpointSource.open(model) if kind == "folder" else open_gguf(model) as source:
        assert len(source.metadata["tokenizer.ggml.tokens"]) == size + 1
        assert check(source).ok
    with ggmodel.load(model, kv_type="f32", flash_attention="off") as loaded:
        assert loaded.tokenize("AB<|image|>", add_special=False)[-1] == size
        assert loaded.model.token_id("<|image|>") == size
        for asked in golden.prompts.values():
            assert nmse(loaded.logits(laid_out(loaded, golden, asked)), asked.logits) < EXACT
        done = loaded.generate(["AB", noise(*SIZES[0])], max_tokens=3, temperature=0)
        assert done.usage.completion_tokens == 3
