"""Llama 4 against transformers: text, what the tower makes of tiles, text with images, files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import ConfigError, LoadError, PromptError, Unsupported
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.kvcache import Causal, Chunked
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.golden import laid_out, nmse
from tests.golden.files import GREEDY, Golden, cases, load_golden, lossy
from tests.image.noise import LARGE, SIDE, SIZES, noise
from tests.vision import vision_model

# Float32 sums taken in another order; transformers itself is 3e-13 away from float64. The tower's
# GELU is the exact one, which goes through no table.
EXACT = 1e-8
# ggml rounds activations to F16 where weights are F16; as for llama.
HALF = 1e-6

CASES = cases("llama4")
ASKED = list(load_golden("llama4", "images").prompts)
CONVERTED = Path(__file__).parent / "llama4" / "converted"
SYMBOLS = ["image_start", "image_end", "tile_x_separator", "tile_y_separator", "image", "patch"]
VOCABULARY = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama4",
    "tokenizer.ggml.tokens": [chr(33 + i) for i in range(64)]
    + [f"<|{name}|>" for name in SYMBOLS]
    + ["unused", "unused too"],
    "tokenizer.ggml.token_type": [1] * 64 + [3] * 6 + [5] * 2,
    "tokenizer.ggml.merges": [],
    "tokenizer.ggml.add_bos_token": False,
}


def source_of(golden: Golden, dtype: DType = DType.F32) -> MemorySource:
    """The checkpoint converted by the declarations, the text model's matrices stored as `dtype`.

    Stacked experts stay F32: a checkpoint holds them the other way round, so that blocks of it are
    no blocks of the file.
    """
    import gguf

    weights = golden.weights()
    kind = gguf.GGMLQuantizationType(dtype.value)
    for name in weights if dtype is not DType.F32 else ():
        if ".experts." in name and lossy(name, weights[name].shape):
            weights[name] = gguf.dequantize(gguf.quantize(weights[name], kind), kind)

    def store(name: str, values: np.ndarray):
        kept = values.ndim != 2 or name.startswith(("v.", "mm.")) or "ffn_gate_inp" in name
        if dtype is DType.F32 or kept:
            return values.astype(np.float32)
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        return dtype, values.shape[::-1], data.tobytes()

    return changed(from_hf(find("llama4"), golden.config, weights, store), VOCABULARY)


def changed(
    source: MemorySource,
    metadata: dict[str, Any] | None = None,
    names: dict[str, str] | None = None,
) -> MemorySource:
    """With other metadata, and tensors under other names."""
    tensors = {
        (names or {}).get(name, name): (info.dtype, info.shape, bytes(source.data(name)))
        for name, info in source.tensors.items()
    }
    both = {**source.metadata, **(metadata or {})}
    return MemorySource({k: v for k, v in both.items() if v is not None}, tensors)


def load(golden: Golden, source: Any = None, **options: Any) -> LoadedModel:
    given = {"kv_type": "f32", "flash_attention": "off", **options}
    return ggmodel.load(source_of(golden) if source is None else source, **given)


@pytest.fixture(scope="module", params=CASES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("llama4", request.param)


@pytest.fixture(scope="module")
def images() -> Golden:
    return load_golden("llama4", "images")


@pytest.fixture(scope="module")
def released() -> Golden:
    return load_golden("llama4", "released")


@pytest.fixture(scope="module")
def model(images: Golden) -> Iterator[LoadedModel]:
    with load(images, parallel=2) as model:
        yield model


def test_the_promised_cases_are_there():
    promised = "every_layer interleaved two_experts untuned llama3_rope images released"
    assert set(promised.split()) <= set(CASES)
    assert {"start", "middle", "end", "two"} == set(ASKED)
    for case in ("every_layer", "interleaved", "images"):
        golden = load_golden("llama4", case)
        text = golden.config.get("text_config", golden.config)
        assert text["attention_chunk_size"] < len(golden.prompt)
        assert 2 * text["floor_scale"] < len(golden.prompt)


# text


@pytest.mark.parametrize("batch_size", [512, 7, 5, 3, 1])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_text_alone_in_any_batch_split(golden: Golden, flash_attention: str, batch_size: int):
    with load(golden, flash_attention=flash_attention, batch_size=batch_size) as model:
        logits = model.logits(golden.prompt.tolist())
        done = model.generate(golden.prompt.tolist(), max_tokens=GREEDY, temperature=0)
    assert logits.dtype == np.float32
    assert nmse(logits, golden.logits) < EXACT
    assert done.tokens == golden.greedy.tolist()


def test_halved_weights(golden: Golden):
    prompt = golden.prompt.tolist()
    with load(golden, source_of(golden, DType.F16)) as model:
        assert nmse(model.logits(prompt), golden.logits_f16) < HALF
        done = model.generate(prompt, max_tokens=GREEDY, temperature=0)
    assert done.tokens == golden.greedy.tolist()


def test_quantised_weights(golden: Golden):
    """ggml rounds activations as the weights were, to 8 bits in blocks of 32: that moves the logits
    about as far as the weights' rounding did, not twice as far. Without it there is no difference.
    """
    prompt, source = golden.prompt.tolist(), source_of(golden, DType.Q8_0)
    with load(golden, source) as model:
        moved = nmse(golden.logits_q8_0, golden.logits)
        assert nmse(model.logits(prompt), golden.logits_q8_0) < 2 * moved
        done = model.generate(prompt, max_tokens=GREEDY, temperature=0)
    assert done.tokens == golden.greedy.tolist()
    with load(golden, source, backend="reference") as model:
        assert nmse(model.logits(prompt), golden.logits_q8_0) < 1e-10


def test_layers_without_rope_see_everything_and_are_not_rotated(images: Golden, model: LoadedModel):
    caches: list[Any] = list(model.model.caches())
    assert [type(cache) for cache in caches] == [Chunked, Causal, Chunked, Causal]
    assert [cache.rope is None for cache in caches] == [False, True, False, True]
    assert {cache.size for cache in caches[::2]} == {
        images.config["text_config"]["attention_chunk_size"]
    }


@pytest.mark.parametrize("rope", [1, 0])
def test_a_context_shift_rotates_where_there_is_rope(rope: int):
    """The keys of a single layer depend on token and position alone: the rest behind a removal is
    as if it had been computed without the removed tokens."""
    golden = load_golden("llama4", "untuned")
    config = {**golden.config, "attn_temperature_tuning": True, "no_rope_layers": [rope]}
    weights = golden.weights().items()
    first = {n: w for n, w in weights if ".layers." not in n or ".layers.0." in n}
    source = from_hf(find("llama4"), config | {"num_hidden_layers": 1}, first)
    text, left = golden.prompt, np.delete(golden.prompt, np.s_[4:9])
    with load(golden, source, parallel=2) as model:
        with Scoring(model.engine).sequence() as sequence:
            Scoring(model.engine).extend(sequence, text[:-1], 0)
            model.engine.cache.remove(sequence, 4, 9)
            got = Scoring(model.engine).extend(sequence, text[-1:], len(left) - 1)
        # Keys are rotated twice in float32.
        assert nmse(got, model.logits(left.tolist())[-1]) < 1e-9


def test_a_text_goes_on_when_the_context_is_full(images: Golden):
    with load(images, context_length=64) as model:
        prompt = laid_out(model, images, images.prompts["start"])
        done = model.generate(prompt, max_tokens=80, temperature=0, context_shift=True)
    assert len(done.tokens) == 80


@pytest.mark.parametrize(
    ("layers", "interval"),
    [([], 4), ([1, 1, 0], 3), ([0, 0], 1), ([1, 1, 1], 4), ([1, 0, 1], 2), (None, 4)],
)
def test_layers_without_rope_are_listed(layers: list[int] | None, interval: int):
    config = load_golden("llama4", "untuned").config | {"no_rope_layers": layers}
    assert declared(config)["llama4.no_rope_interval"] == interval


def test_a_pattern_without_interval_is_refused():
    config = load_golden("llama4", "untuned").config | {"no_rope_layers": [1, 0, 0]}
    with pytest.raises((ConfigError, Unsupported), match="regular intervals"):
        declared(config)


def test_temperature_tuning_may_be_a_number():
    config = load_golden("llama4", "untuned").config | {"attn_temperature_tuning": 4}
    assert declared(config)["llama4.attention.temperature_tuning"] is True


def test_both_spellings_of_a_config_say_the_same(golden: Golden):
    saved = declared(golden.saved_config)
    assert saved == declared(golden.config)


def declared(config: dict[str, Any]) -> dict[str, Any]:
    from ggmodel.convert.from_hf import metadata_of, normalize

    return metadata_of(find("llama4"), normalize(config))


def test_files_that_do_not_say_whether_keys_are_normed(images: Golden):
    """The model with 128 experts norms none, the other all."""
    source = source_of(images)
    for experts, normed in ((4, True), (128, False)):
        metadata = {**source.metadata, "llama4.expert_count": experts}
        metadata.pop("llama4.use_qk_norm")
        assert hyper(metadata).qk_norm is normed


def hyper(metadata: dict[str, Any]) -> Any:
    from ggmodel.gguf_file.values import KeyValues
    from ggmodel.model import config_class

    return config_class(find("llama4")).read(KeyValues(metadata))


# images


@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_what_the_tower_makes_of_tiles(images: Golden, flash_attention: str):
    separators = {"one": [None], "wide": ["x", "y", None], "four": ["x", "y", "x", "y", None]}
    with load(images, flash_attention=flash_attention) as model:
        for name, picture in images.pictures.items():
            found = model.encode_image(picture.pixels, **picture.data)
            assert [e.data for e in found] == separators[name]
            assert [e.rows.shape for e in found] == [(9, 64)] * len(found)
            assert nmse(np.concatenate([e.rows for e in found]), picture.rows) < EXACT


def test_tiles_without_a_grid_are_one_row(images: Golden, model: LoadedModel):
    assert [e.data for e in model.encode_image(images.pictures["four"].pixels)] == [
        *["x", "x", "x", "y"],
        None,
    ]


def test_tiles_that_do_not_fit_are_refused(images: Golden, model: LoadedModel):
    picture = images.pictures["wide"]
    with pytest.raises(PromptError, match="3 tiles for 2 rows of 2; several are followed by"):
        model.encode_image(picture.pixels, aspect_ratio=[2, 2])
    with pytest.raises(PromptError, match=r"\[1, 3, 20, 24\]; .* takes \[tiles, 3, 24, 24\]"):
        model.encode_image(picture.pixels[:1, :, :20])


@pytest.mark.parametrize("asked", ASKED)
def test_what_surrounds_an_image(images: Golden, model: LoadedModel, asked: str):
    prompt = images.prompts[asked]
    items = [ggmodel.Input(i) if isinstance(i, int) else i for i in laid_out(model, images, prompt)]
    found: Any = model.model.post_tokenize(items)
    assert [i.token for i in found] == prompt.ids.tolist()
    assert not any(i.same_batch for i in found)


def test_tokens_of_a_file_without_vocabulary(images: Golden):
    embedding = ggmodel.MultimodalEmbedding(np.ones((1, 64), np.float32))
    with load(images, from_hf(find("llama4"), images.config, images.weights())) as model:
        found: Any = model.model.post_tokenize([[embedding]])
    assert [i.token for i in found] == [200080, 200090, 200092, 200081]


@pytest.mark.parametrize("batch_size", [512, 7, 5, 3, 1])
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_images_in_any_batch_split(images: Golden, flash_attention: str, batch_size: int):
    with load(images, flash_attention=flash_attention, batch_size=batch_size) as model:
        for prompt in images.prompts.values():
            logits = model.logits(laid_out(model, images, prompt))
            assert nmse(logits, prompt.logits) < EXACT


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_greedy_tokens_behind_images(images: Golden, flash_attention: str, asked: str):
    prompt = images.prompts[asked]
    with load(images, flash_attention=flash_attention, batch_size=16) as model:
        for _ in range(2):  # the second time from what is remembered
            inputs = laid_out(model, images, prompt)
            done = model.generate(inputs, max_tokens=GREEDY, temperature=0)
            assert done.tokens == prompt.greedy.tolist()


def test_another_image_gives_another_text(images: Golden, model: LoadedModel):
    """Though the tokens are the same: a remembered prefix ends before the image."""
    prompt, four = images.prompts["middle"], images.pictures["four"]
    inputs = laid_out(model, images, prompt)
    logits = model.logits(inputs)
    at = next(i for i, part in enumerate(inputs) if isinstance(part, list))
    inputs[at] = model.embeddings(four.pixels[::-1].copy(), **four.data)
    assert nmse(model.logits(inputs), logits) > 1e-4


def test_the_reference_backend_agrees(images: Golden):
    prompt = images.prompts["two"]
    with load(images, backend="reference") as model:
        assert nmse(model.logits(laid_out(model, images, prompt)), prompt.logits) < 1e-10


def tiling(side: int) -> Any:
    half = [0.5, 0.5, 0.5]
    return SimpleNamespace(
        tile=side, tiles=16, resample="bilinear", image_mean=half, image_std=half
    )


@pytest.mark.parametrize("n", range(len(SIZES)))
def test_pictures_become_the_tiles_of_the_processor(n: int):
    from ggmodel.models.llama4.image import tiles_of

    with np.load(Path(__file__).parents[1] / "image" / "goldens.npz") as want:
        found = tiles_of(noise(*SIZES[n], channels=3 + n % 2), tiling(SIDE))
        np.testing.assert_array_equal(found.values, want[f"llama4.{n}"])
        assert found.data == {"aspect_ratio": tuple(want[f"llama4.grid.{n}"])}


def test_a_side_that_the_processor_makes_a_pixel_shorter():
    from ggmodel.models.llama4.image import tiles_of

    found = tiles_of(noise(*LARGE[-1]), tiling(336))
    rows, columns = found.data["aspect_ratio"]
    grid = found.values[:-1].reshape(rows, columns, 3, 336, 336)
    canvas = grid.transpose(2, 0, 3, 1, 4).reshape(3, rows * 336, columns * 336)
    filled = (canvas > -1).any(0)  # the rest is black
    with np.load(Path(__file__).parents[1] / "image" / "goldens.npz") as want:
        size = [*canvas.shape[:0:-1], filled.any(0).sum(), filled.any(1).sum()]
        assert size == want["llama4.sizes"][-1].tolist()


def test_the_largest_image_has_the_most_tiles(model: LoadedModel):
    size = vision_model(model).largest_image
    assert len(vision_model(model).preprocess(noise(*size)).values) == 17


# files


def test_a_checkpoint_without_eyes(images: Golden):
    config = {**images.config["text_config"], "architectures": ["Llama4ForCausalLM"]}
    prefix = "language_model."
    weights = {n[len(prefix) :]: w for n, w in images.weights().items() if n.startswith(prefix)}
    with load(images, from_hf(find("llama4"), config, weights)) as model:
        assert not vision_model(model).has_vision
        assert nmse(model.logits(images.prompt.tolist()), images.logits) < EXACT


def test_files_are_laid_out_as_by_ollama(images: Golden):
    source, weights = source_of(images), images.weights()

    def tensor(name: str) -> np.ndarray:
        info = source.tensors[name]
        return np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])

    fused = weights["language_model.model.layers.1.feed_forward.experts.gate_up_proj"]
    down = weights["language_model.model.layers.1.feed_forward.experts.down_proj"]
    ffn = fused.shape[2] // 2
    halves = {"gate": fused[..., :ffn], "up": fused[..., ffn:], "down": down}
    for name, half in halves.items():
        np.testing.assert_array_equal(tensor(f"blk.1.ffn_{name}_exps.weight"), half.swapaxes(1, 2))
    names = "blk.1.ffn_gate_inp.weight blk.1.ffn_down_shexp.weight blk.0.ffn_gate.weight"
    names += (
        " v.patch_embedding.weight v.class_embedding v.positional_embedding_vlm mm.linear_1.weight"
    )
    names += " v.layernorm_pre.bias v.layernorm_post.weight v.vision_adapter.mlp.fc2.weight"
    names += " v.blk.1.attn_q.bias v.blk.1.attn_output.weight v.blk.0.attn_norm.bias"
    names += " v.blk.0.ffn_norm.weight v.blk.1.mlp.fc1.bias v.blk.1.mlp.fc2.weight"
    assert set(names.split()) <= source.tensors.keys()
    keys = {
        "feed_forward_length": 96,
        "expert_feed_forward_length": 64,
        "expert_count": 4,
        "expert_used_count": 1,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": True,
        "attention.chunk_size": 8,
        "attention.key_length": 32,
        "vision.block_count": 2,
        "vision.embedding_length": 32,
        "vision.feed_forward_length": 128,
        "vision.attention.head_count": 2,
        "vision.image_size": 24,
        "vision.patch_size": 4,
        "vision.rope.freq_base": 100.0,
        "vision.layer_norm_epsilon": 1e-5,
        "vision.pixel_shuffle_ratio": 0.5,
    }
    assert {key: source.metadata[f"llama4.{key}"] for key in keys} == keys


@pytest.fixture
def mmproj(released: Golden) -> Iterator[Any]:
    """Text and mmproj file by llama.cpp's converter; they do not say vision.rope.freq_base."""
    assert released.config["vision_config"]["rope_theta"] == 10000.0
    with open_gguf(CONVERTED / "text.gguf", mmproj=CONVERTED / "mmproj.gguf") as source:
        yield source


def check_released(model: LoadedModel, golden: Golden) -> None:
    prompt = golden.prompts["middle"]
    assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < EXACT
    assert nmse(model.logits(laid_out(model, golden, prompt)), prompt.logits) < EXACT


def test_files_of_the_other_converter(released: Golden, mmproj: Any):
    with load(released, mmproj) as model:
        assert model.tokenizer is not None
        check_released(model, released)


def test_older_names_in_such_files(released: Golden, mmproj: Any):
    """ffn_up and ffn_down swapped, ln2 for what is attn_post_norm in newer ones."""
    names = {}
    for name in mmproj.tensors:
        if name.startswith("v.blk."):
            up, down, norm = ".ffn_up.", ".ffn_down.", ".attn_post_norm."
            swapped = name.replace(up, down) if up in name else name.replace(down, up)
            names[name] = swapped.replace(norm, ".ln2.")
    assert sum(a != b for a, b in names.items()) == 3 * 3 * 2  # of 3 layers, weights and biases
    with load(released, changed(mmproj, names=names)) as model:
        check_released(model, released)


def test_a_tower_that_lacks_a_tensor(images: Golden):
    gone = {"v.blk.1.mlp.fc1.weight": "unused"}
    with pytest.raises(LoadError, match=r"vision\.layers\[1\]\.ffn"):
        load(images, changed(source_of(images), names=gone))
