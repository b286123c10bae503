"""GLM-OCR: how a page becomes patches, and the names and keys of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.convert import convert, from_hf, metadata_of, normalize
from ggmodel.errors import ConfigError, Error, ImageError, PromptError
from ggmodel.gguf_file import DType, MemorySource, open_gguf
from ggmodel.model import find
from ggmodel.models.glm_ocr.model import Halves
from ggmodel.models.glm_ocr.vision import page_size
from ggmodel.workbench.golden import source_of
from tests.convert.folders import add_special, write_model, write_tokenizer
from tests.golden.files import load_golden
from tests.golden.glm_ocr import cases as glm_ocr
from tests.vision import vision_model

OPTIONS: dict[str, Any] = {"kv_type": "f32", "context_length": 64, "threads": 1}
# As the published folder says it, for patches of 4.
PREPARED: dict[str, Any] = {
    "size": {"shortest_edge": 256, "longest_edge": 6144},
    "do_rescale": True,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Glm46VImageProcessor",
    "processor_class": "Glm46VProcessor",
}
MARKED = "<|begin_of_image|><|image|><|end_of_image|>"
# The published template's way with pictures.
TEMPLATE = (
    "{% for m in messages %}U{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}" + MARKED + "{% else %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}A"
)
PAGE = Image.fromarray(np.arange(48 * 32 * 3, dtype=np.uint8).reshape(48, 32, 3))
ROWS = 4 * 6  # of 8 x 8 pixels


def folder_of(folder: Path, case: str = "published", **prepared: Any) -> Path:
    """A Hugging Face folder whose vocabulary has the special tokens."""
    golden = load_golden("glm_ocr", case)
    write_model(folder, golden.config, golden.weights())
    write_tokenizer(folder, golden.config["text_config"]["vocab_size"])
    add_special(folder, glm_ocr.SPECIAL)
    (folder / "preprocessor_config.json").write_text(json.dumps({**PREPARED, **prepared}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.mark.parametrize("case", list(glm_ocr.CASES))
def test_both_spellings_say_the_same(case: str):
    """As published, and as transformers saves it."""
    golden, cls = load_golden("glm_ocr", case), find("glm_ocr")
    published, saved = (
        metadata_of(cls, normalize(c)) for c in (golden.config, golden.saved_config)
    )
    assert published == saved


@pytest.mark.parametrize("case", list(glm_ocr.CASES))
def test_files_compute_what_the_folder_does(case: str, tmp_path: Path):
    """In one file, and in the two that llama.cpp reads, under the names of its converter."""
    folder = folder_of(tmp_path / "folder", case)
    one, text, mmproj = (tmp_path / f"{name}.gguf" for name in ("one", "text", "mmproj"))
    convert(folder, one, pre="gpt-2")
    convert(folder, text, mmproj=mmproj, pre="gpt-2")
    logits = []
    for source in (folder, open_gguf(one), open_gguf(text, mmproj)):
        with ggmodel.load(source, **OPTIONS) as model:
            logits.append(model.logits([3, 4, PAGE, 5]))
            assert logits[-1].shape[0] == 3 + 2 + ROWS
    assert np.array_equal(logits[0], logits[1]) and np.array_equal(logits[0], logits[2])
    with open_gguf(text) as file:
        assert file.metadata["general.architecture"] == "glm4"
        sections = load_golden("glm_ocr", case).config["text_config"]["rope_parameters"]
        assert file.metadata["glm4.rope.dimension_sections"] == [*sections["mrope_section"], 0]
    with open_gguf(mmproj) as file:
        keys = {k.removeprefix("clip."): v for k, v in file.metadata.items()}
        names = {name for name in file.tensors if ".blk." not in name or ".blk.0." in name}
    gelu = case == "partial"
    assert keys["projector_type"] == "glm4v" and keys["use_gelu"] is gelu
    assert ("use_silu" in keys) is not gelu
    assert (keys["vision.image_min_pixels"], keys["vision.image_max_pixels"]) == (128, 3072)
    linear = {f"v.blk.0.{n}" for n in ("attn_qkv", "attn_out", "ffn_gate", "ffn_up", "ffn_down")}
    plain = {f"v.blk.0.{n}" for n in ("ln1", "ln2", "attn_q_norm", "attn_k_norm")}
    plain |= {"v.post_ln", *(f"mm.{n}" for n in ("model.fc", "gate", "up", "down"))}
    both = {"v.patch_embd", "mm.patch_merger", "mm.post_norm"} | (set() if gelu else linear)
    assert names == (
        {f"{name}.weight" for name in linear | plain | both}
        | {f"{name}.bias" for name in both}
        | {"v.patch_embd.weight.1"}
    )


def test_the_text_alone_is_a_glm_4(tmp_path: Path):
    """Also with the layer that drafts, which llama.cpp's converter keeps."""
    folder = folder_of(tmp_path / "folder", "partial")
    text, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(folder, text, mmproj=mmproj, pre="gpt-2")
    with ggmodel.load(folder, **OPTIONS) as model:
        logits = model.logits([3, 4, 5, 6, 7])
    with open_gguf(text) as file:
        tensors = {
            t.name: (t.dtype, t.shape, bytes(file.data(t.name))) for t in file.tensors.values()
        }
        layers = file.metadata["glm4.block_count"]
        more = {"glm4.block_count": layers + 1, "glm4.nextn_predict_layers": 1}
        drafting = {f"blk.{layers}.nextn.enorm.weight": (DType.F32, (64,), bytes(256))}
        sources = (
            MemorySource(dict(file.metadata), tensors),
            MemorySource({**file.metadata, **more}, {**tensors, **drafting}),
        )
    for source in sources:
        with ggmodel.load(source, **OPTIONS) as model:
            assert model.model.architecture == "glm4"
            np.testing.assert_allclose(model.logits([3, 4, 5, 6, 7]), logits, atol=1e-5)


def test_the_layer_that_drafts_is_left_out():
    golden = load_golden("glm_ocr", "published")
    name = "model.language_model.layers.3.eh_proj.weight"
    more = {name: np.ones((64, 128), np.float32)}
    source = from_hf(find("glm_ocr"), golden.config, {**golden.weights(), **more})
    assert source.tensors.keys() == source_of(golden).tensors.keys()


def test_chat_with_a_page(tmp_path: Path):
    with ggmodel.load(folder_of(tmp_path), **OPTIONS) as model:
        content = [{"type": "image", "image": PAGE}, {"type": "text", "text": "BC"}]
        messages = [{"role": "user", "content": content}]
        before, page, behind = model.chat_prompt(messages)
        assert (before.text, behind.text) == ("U", "BCA") and len(page[0]) == ROWS
        tokenizer: Any = model.tokenizer
        u, b, c, a = (tokenizer.id_of_text(text) for text in "UBCA")
        answer = model.chat(messages, max_tokens=4, temperature=0)
        again = model.generate([u, PAGE, b, c, a], max_tokens=4, temperature=0)
        assert answer.tokens == again.tokens and answer.usage.prompt_tokens == ROWS + 6


# Height, width → height and width that transformers 5.23's `smart_resize` of
# image_processing_glm46v gives for squares of 28, two frames, and the published bounds.
SIZES = [
    (1000, 700, (1008, 700)),
    (20, 700, (28, 980)),
    (3000, 16, (5264, 28)),
    (6000, 4000, (2688, 1792)),
    (50, 50, (84, 84)),
    (27, 27, (84, 84)),
]


@pytest.mark.parametrize(("height", "width", "size"), SIZES)
def test_sizes_of_pages(height: int, width: int, size: tuple[int, int]):
    h: Any = type("Config", (), {"cell": 28, "min_pixels": 6272, "max_pixels": 4816896})
    assert page_size((width, height), h) == size[::-1]


def test_pages_become_pixels_and_rows():
    with ggmodel.load(source_of(load_golden("glm_ocr", "published")), **OPTIONS) as model:
        page = np.random.default_rng(3).integers(0, 256, (96, 104, 3), np.uint8)
        prepared = vision_model(model).preprocess(Image.fromarray(page))
        h = model.model.config
        scaled = ((page / 255 - h.image_mean) / h.image_std).transpose(2, 0, 1)
        np.testing.assert_allclose(prepared.values[0], scaled, atol=1e-5)
        (embedding,) = model.embeddings(Image.fromarray(page))
        assert embedding.data == (1, 12, 13) and len(embedding) == 12 * 13
        inputs: Any = vision_model(model).image_inputs([embedding])
        assert [one.token for one in inputs[:2]] == [59256, 59280]
        assert inputs[-1].token == 59257 and len(inputs) == len(embedding) + 2


def test_patches_of_the_reference_are_pixels_again():
    golden = load_golden("glm_ocr", "published")
    with ggmodel.load(source_of(golden), **OPTIONS) as model:
        for picture in golden.pictures.values():
            inputs = glm_ocr.model_inputs(golden.config, [], [picture])
            again = vision_model(model).reference_pixels(inputs, picture.data)
            assert np.array_equal(again.values, picture.pixels)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((2, 3, 8, 8), r"\[1, 3, height, width\]"), ((1, 3, 8, 12), "multiples of 8")],
)
def test_pixels_that_do_not_fit(shape: tuple[int, ...], shown: str):
    with (
        ggmodel.load(source_of(load_golden("glm_ocr", "published")), **OPTIONS) as model,
        pytest.raises(PromptError, match=shown),
    ):
        model.encode_image(np.zeros(shape, np.float32))


def test_a_strip_is_refused():
    with (
        ggmodel.load(source_of(load_golden("glm_ocr", "published")), **OPTIONS) as model,
        pytest.raises(ImageError, match="2000 × 8 pixels is more than 200 times as long as wide"),
    ):
        model.generate([Image.new("RGB", (2000, 8)), 5], max_tokens=1)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"vision.attention.head_count": 3}, "head_count is 3; it must divide 8.0"),
        ({"vision.image_min_pixels": 1 << 30}, "is 1073741824; it must be .* or less"),
        ({"rope.dimension_sections": [2, 3, 4, 0]}, r"sections \[2, 3, 4, 0\]"),
    ],
)
def test_impossible_towers(changes: dict[str, Any], shown: str):
    source = source_of(load_golden("glm_ocr", "published"))
    source.metadata = {**source.metadata, **{f"glm_ocr.{k}": v for k, v in changes.items()}}
    with pytest.raises(ConfigError, match=shown):
        ggmodel.load(source, **OPTIONS)


@pytest.mark.parametrize(
    "changes",
    [
        {"patch_size": 8},
        {"merge_size": 4},
        {"temporal_patch_size": 1},
        {"size": {"shortest_edge": 256, "longest_edge": 6145}},
    ],
)
def test_another_preparation_than_the_tower_takes_is_refused(
    changes: dict[str, Any], tmp_path: Path
):
    with pytest.raises(Error, match=f"preprocessor:{next(iter(changes))}"):
        ggmodel.load(folder_of(tmp_path, **changes), **OPTIONS)


def test_rows_that_are_no_heads():
    h: Any = type("Config", (), {"heads": 2, "head_dim": 4, "rope_dims": 6})
    with pytest.raises(ConfigError, match="8 rows are not 2 heads of 4, 6 rotated"):
        Halves("heads").to_gguf(np.ones((8, 3)), h)
    h.rope_dims = 2
    x = np.arange(8.0).reshape(8, 1)
    turned = Halves("heads").to_gguf(x, h)
    assert np.array_equal(Halves("heads").to_hf(turned, h), x)
