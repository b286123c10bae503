"""Hyperparameters and images of Gemma 3, right and wrong."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import from_hf, metadata_of, normalize
from ggmodel.errors import PromptError
from ggmodel.gguf_file import DType, MemorySource
from ggmodel.gguf_file.values import KeyValues
from ggmodel.ml import RopeType
from ggmodel.model import Config, config_class, find
from ggmodel.models.gemma3.model import Text
from ggmodel.nn import Rotary
from tests.conftest import Vary
from tests.golden.files import load_golden
from tests.vision import vision_model

# As published: whatever is transformers' default is left out.
PUBLISHED_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "mm_tokens_per_image": 256,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}
KEYS = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 7,
    "gemma3.embedding_length": 64,
    "gemma3.feed_forward_length": 96,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 2,
    "gemma3.attention.sliding_window": 8,
}


def read(**changes: object) -> Any:
    keys = {f"gemma3.{k.replace('__', '.')}": v for k, v in changes.items()}
    return _declared().read(KeyValues({**KEYS, **keys}))


def _declared() -> type[Config]:
    return config_class(find("gemma3"))


def test_a_published_config():
    from ggmodel.convert.from_hf import metadata_of, normalize

    metadata = metadata_of(find("gemma3"), normalize(PUBLISHED_4B))
    h: Any = _declared().read(KeyValues(metadata))
    assert (h.heads, h.kv_heads, h.head_dim, h.value_dim) == (8, 4, 256, 256)
    assert (h.eps, h.scale, h.softcap, h.context) == (1e-6, 1 / 16, 0, 131072)
    assert [i for i, local in enumerate(h.local) if not local] == [5, 11, 17, 23, 29]
    text = Text(h)
    text.rotary = Rotary(h)
    text.rotary.freqs = text.rotary.long = text.rotary.short = None
    for local, rope in zip(h.local, text.ropes(), strict=True):
        assert (rope.base, rope.scale) == ((1e4, 1) if local else (1e6, 1 / 8))
        assert (rope.dims, rope.type) == (256, RopeType.NEOX)
    assert (h.grid, h.patches, h.rows, h.pool, h.vit_eps) == (64, 4096, 256, 4, 1e-6)
    assert metadata["gemma3.attention.head_count"] == 8  # files say it


def test_what_files_leave_out():
    h = read()
    assert (h.head_dim, h.scale, h.rope_base, h.local_base) == (256, 1 / 16, 1e6, 1e4)
    assert h.local == [True] * 5 + [False, True]
    assert read(block_count=62).scale == 0.25  # 27B
    assert read(block_count=62, attention__scale=0.5).scale == 0.5


def test_spellings_of_other_converters():
    h = read(rope__global__freq_base=5e5, rope__freq_base_swa=2e4, mm_tokens_per_image=64)
    assert (h.rope_base, h.local_base, h.rows) == (5e5, 2e4, 64)


def test_which_layers_are_local():
    assert read(attention__sliding_window_pattern=2).local == [True, False] * 3 + [True]
    listed = [False, True, True, True, True, True, True]
    assert read(attention__sliding_window_pattern=listed).local == listed
    assert read(block_count=1, attention__sliding_window_pattern=[True]).local == [True]
    assert read(attention__sliding_window=0).local == [False] * 7


@pytest.fixture(scope="module")
def source() -> MemorySource:
    golden = load_golden("gemma3", "images")
    return from_hf(find("gemma3"), golden.config, golden.weights())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.sliding_window_pattern": [True, False]}, "pattern of 2 for 4 layers"),
        ({"attention.sliding_window_pattern": -1}, "pattern of -1"),
        ({"attention.sliding_window_pattern": ["a"]}, "pattern of 'a'"),
        ({"attention.head_count": 0}, "shape"),
        ({"mm.tokens_per_image": 49}, "36 patches cannot become 49"),
        ({"mm.tokens_per_image": -1}, "nonnegative"),
        ({"mm.tokens_per_image": None, "vision.projector.scale_factor": 0}, "36 patches"),
        ({"vision.attention.head_count": 0}, "ZeroDivisionError"),
        ({"vision.patch_size": 0}, "vision.patch_size is 0; it must be 1 or more"),
    ],
)
def test_bad_metadata(source: MemorySource, vary: Vary, changes: dict[str, Any], message: str):
    metadata = {f"gemma3.{key}": value for key, value in changes.items()}
    with pytest.raises(ggmodel.Error, match=message):
        ggmodel.load(vary(source, metadata=metadata))


def test_half_of_what_sees_is_not_enough(source: MemorySource, vary: Vary):
    blind = vary(source, drop=tuple(n for n in source.tensors if n.startswith("mm.")))
    with ggmodel.load(blind) as model:
        assert not vision_model(model).has_vision


def test_pictures(source: MemorySource):
    with ggmodel.load(source) as model:
        assert vision_model(model).largest_image == (24, 24)
        clear = Image.new("RGBA", (50, 30), (255, 0, 0, 0))
        pixels = vision_model(model).preprocess(clear).values
        assert pixels.shape == (1, 3, 24, 24) and pixels.dtype == np.float32
        assert (pixels == 1).all()  # on white
        (seen,) = model.encode_image(Image.new("RGB", (640, 480), (0, 0, 255)))
        assert seen.rows.shape == (9, 64)


def test_pixels(source: MemorySource):
    with ggmodel.load(source) as model:
        tiles = np.random.default_rng(2).uniform(-1, 1, (2, 3, 24, 24)).astype(np.float32)
        seen = model.encode_image(tiles)  # each is an image of its own
        alone = [model.encode_image(tile[None])[0] for tile in tiles]
        assert [e.rows.tobytes() for e in seen] == [e.rows.tobytes() for e in alone]
        text = [ggmodel.Input(1), seen]
        assert len(model.model.post_tokenize(text)) == 1 + 2 * (9 + 4)
        with pytest.raises(PromptError, match=r"\[1, 3, 20, 24\]; .* takes \[tiles, 3, 24, 24\]"):
            model.encode_image(np.zeros((1, 3, 20, 24), np.float32))


def test_files_that_do_not_say_how_positions_are_scaled():
    golden = load_golden("gemma3", "images")
    base = {**golden.config["text_config"], "max_position_embeddings": 4096}
    for layers, factor in ((26, 1.0), (34, 8.0), (48, 8.0), (62, 8.0)):
        metadata = metadata_of(find("gemma3"), normalize({**base, "num_hidden_layers": layers}))
        assert metadata["gemma3.rope.scaling.factor"] == 1.0  # a config that says so
        del metadata["gemma3.rope.scaling.factor"]
        config: Any = config_class(find("gemma3")).read(KeyValues(metadata, "file"))
        assert config.rope_factor == factor


def test_a_projector_in_8_bits(source: MemorySource, vary: Vary):
    name = "mm.mm_input_projection.weight"
    shape = source.tensors[name].shape
    weight = np.frombuffer(source.data(name), np.float32).reshape(shape[::-1])
    blocks = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
    rounded = vary(source, tensors={name: (DType.Q8_0, shape, blocks.tobytes())})
    with ggmodel.load(source) as exact, ggmodel.load(rounded) as model:
        side = model.model.config.side
        pixels = np.random.default_rng(1).normal(size=(1, 3, side, side)).astype(np.float32)
        want, got = (m.encode_image(pixels)[0].rows for m in (exact, model))
    assert 0 < ((got - want) ** 2).sum() / (want**2).sum() < 1e-4
