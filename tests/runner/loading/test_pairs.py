"""A plain text's file and a projector beside it as one model, as llama.cpp keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import convert
from ggmodel.errors import ArchitectureError, Unsupported
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import find
from ggmodel.model.loader import fits, of_source
from ggmodel.runner import LoadedModel
from ggmodel.runner.loading.sources import open_source
from ggmodel.workbench import show
from ggmodel.workbench.check import check
from ggmodel.workbench.golden import Cases, laid_out, nmse
from tests.conftest import WriteGGUF
from tests.convert.folders import add_special, write_golden
from tests.golden.files import HERE, Golden, load_golden

PAIRS = [
    ("idefics3", "tiles", "llama", "idefics3"),
    ("internvl", "qwen2", "qwen2", "internvl"),
    ("internvl", "qwen3", "qwen3", "internvl"),
    ("lfm2vl", "published", "lfm2", "lfm2"),
    ("lfm2vl", "experts", "lfm2moe", "lfm2"),
    ("qwen2audio", "published", "qwen2", "qwen2a"),
    ("qwen3asr", "published", "qwen3", "qwen3a"),
    ("voxtral", "published", "llama", "voxtral"),
]
HEARING = ("qwen2audio", "qwen3asr", "voxtral")
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}


def written(path: Path, family: str, case: str, **options: Any) -> tuple[Path, Path, Golden]:
    """The two files of a golden."""
    folder, golden = write_golden(path / "hf", family, case)
    add_special(folder, Cases(HERE / family).module.SPECIAL)
    text, projector = path / "text.gguf", path / "mmproj.gguf"
    convert(folder, text, mmproj=projector, pre="gpt-2", **options)
    return text, projector, golden


def answers(model: LoadedModel, golden: Golden) -> list[np.ndarray]:
    """The logits of the golden's prompts, and the rows of its pictures."""
    seen = [
        np.concatenate([e.rows for e in model.encode_media(p.kind, p.pixels, **p.data)])
        for p in golden.pictures.values()
    ]
    return [model.logits(laid_out(model, golden, p)) for p in golden.prompts.values()] + seen


@pytest.mark.parametrize(("family", "case", "text", "projector"), PAIRS)
def test_two_files_are_the_model(tmp_path: Path, family: str, case: str, text: str, projector: str):
    first, second, golden = written(tmp_path, family, case, program="llama.cpp")
    with open_gguf(first) as a, open_gguf(second) as b:
        assert a.metadata["general.architecture"] == text
        assert {k.partition(".")[0] for k in a.metadata} == {"general", "tokenizer", text}
        assert b.metadata["clip.projector_type"] == projector
    with ggmodel.load(tmp_path / "hf", **EXACT) as whole, ggmodel.load(first, **EXACT) as pair:
        assert pair.model.architecture == family
        found = answers(pair, golden)
        # llama.cpp convolves sounds with kernels in F16, to which those of the golden are rounded.
        bound = 1e-6 if family in HEARING else 0
        assert all(nmse(a, b) <= bound for a, b in zip(answers(whole, golden), found, strict=True))
    wanted = [p.logits for p in golden.prompts.values()]
    wanted += [p.rows for p in golden.pictures.values()]
    assert max(map(nmse, found, wanted)) < 1e-6


@pytest.mark.parametrize(("family", "case", "text", "projector"), PAIRS)
def test_the_text_alone_stays_one(
    tmp_path: Path, family: str, case: str, text: str, projector: str
):
    first, second, golden = written(tmp_path, family, case)
    ids = golden.prompt.tolist()
    with ggmodel.load(first, **EXACT) as pair, ggmodel.load(first, mmproj="", **EXACT) as alone:
        assert alone.model.architecture == text and not alone.model.modalities()
        assert np.array_equal(pair.logits(ids), alone.logits(ids))
    second.rename(second.with_name("eyes.gguf"))
    with ggmodel.load(first) as alone:
        assert alone.model.architecture == text
    with ggmodel.load(first, mmproj=tmp_path / "eyes.gguf") as pair:
        assert pair.model.architecture == family


def test_a_llama_beside_pixtrals_tower(tmp_path: Path, write_gguf: WriteGGUF):
    """Files of Pixtral and Mistral 3 that llama.cpp's converter made before it had `mistral3`."""
    golden = load_golden("mistral3", "images")
    first, second, _ = written(tmp_path, "mistral3", "images")
    with open_gguf(first) as source:
        keys = {k.replace("mistral3.", "llama."): v for k, v in source.metadata.items()}
        keys["general.architecture"] = "llama"
        tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
        older = write_gguf(tmp_path / "older.gguf", MemorySource(keys, tensors))
    with ggmodel.load(older, mmproj=second, **EXACT) as pair:
        assert pair.model.architecture == "mistral3"
        found = answers(pair, golden)
    wanted = [p.logits for p in golden.prompts.values()]
    wanted += [p.rows for p in golden.pictures.values()]
    assert max(map(nmse, found, wanted)) < 1e-8


def test_tools_take_both_files(tmp_path: Path):
    first, second, _ = written(tmp_path, "idefics3", "tiles")
    with open_gguf(first, second) as source:
        result = check(source)
        assert result.architecture == "idefics3" and not result.problems
        found = {one.name: one.value for one in show.describe(source).hyperparameters or ()}
    assert found["merge"] == 2 and found["width"] == 64


CHANGES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "vocabulary": ("internvl", "qwen2", {}, "<IMG_CONTEXT>"),
    "window": ("internvl", "qwen3", {"qwen3.attention.sliding_window": 8}, "sliding_window is 8"),
    "experts": ("voxtral", "published", {"llama.expert_count": 4}, "llama.expert_count is 4"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_models_projector_is_not_taken(tmp_path: Path, write_gguf: WriteGGUF, change: str):
    family, case, more, named = CHANGES[change]
    first, second, _ = written(tmp_path, family, case)
    with open_gguf(first) as source:
        keys = {**source.metadata, **more}
        if not more:
            tokens = list(keys["tokenizer.ggml.tokens"])
            keys["tokenizer.ggml.tokens"] = [t.replace("IMG_", "other_") for t in tokens]
        tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
        other = write_gguf(tmp_path / "other.gguf", MemorySource(keys, tensors))
    with open_source(other) as alone:
        assert len(alone.files) == 1
    with pytest.raises(ArchitectureError, match=rf"{named}.*--mmproj \"\""):
        ggmodel.load(other, mmproj=second)
    with open_source(first) as pair:
        assert len(pair.files) == 2


def test_a_projector_of_another_type_is_named(tmp_path: Path, write_gguf: WriteGGUF):
    first, second, _ = written(tmp_path, "idefics3", "tiles")
    with open_gguf(second) as source:
        keys = {**source.metadata, "clip.projector_type": "sharp_eyes"}
        tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
        other = write_gguf(tmp_path / "mmproj-other.gguf", MemorySource(keys, tensors))
    second.unlink()
    with ggmodel.load(first) as alone:
        assert alone.model.architecture == "llama"
    with pytest.raises(ArchitectureError, match=r"'sharp_eyes' beside .* 'llama' .*'idefics3'"):
        ggmodel.load(first, mmproj=other)


SEER = """from ggmodel import Config, Model, register
class Seen(Config):
    pass
@register({name!r}, pairs={{"unheard": "sharp_eyes"}})
class Seer(Model):
    config: Seen
"""


def test_a_text_that_is_known_only_beside_a_projector(tmp_path: Path):
    (tmp_path / "seer.py").write_text(SEER.format(name="seer"))
    keys = {"general.architecture": "unheard", "clip.vision.projector_type": "sharp_eyes"}
    assert of_source(KeyValues(keys), tmp_path).architecture == "seer"
    assert fits(KeyValues(keys), keys, tmp_path)
    for kind in ("idefics3", 5):  # 5 is no type
        with pytest.raises(ArchitectureError, match="no architecture 'unheard'"):
            of_source(KeyValues({**keys, "clip.vision.projector_type": kind}), tmp_path)
    (tmp_path / "other.py").write_text(SEER.format(name="other"))
    with pytest.raises(ArchitectureError, match=r"both serve 'unheard' beside 'sharp_eyes'"):
        of_source(KeyValues(keys), tmp_path)


def test_llama_cpp_takes_two_files_alone(tmp_path: Path):
    folder, _ = write_golden(tmp_path / "hf", "idefics3", "tiles")
    with pytest.raises(Unsupported, match=r"two files \(--mmproj"):
        convert(folder, tmp_path / "a.gguf", pre="gpt-2", program="llama.cpp")


def test_the_type_of_the_text_chooses_its_architecture():
    class Seeing(find("idefics3")):
        pairs = {"qwen2": "x", "qwen3moe": "x"}

    assert Seeing.text_of({"text_config": {"model_type": "qwen3_moe"}}) == "qwen3moe"
    for config in ({"text_config": {"model_type": "llama"}}, {"text_config": {}}, {}):
        with pytest.raises(Unsupported, match="'qwen2' or 'qwen3moe'"):
            Seeing.text_of(config)
    Seeing.pairs = {"llama": "x"}
    assert Seeing.text_of({}) == "llama"
    with pytest.raises(Unsupported, match="'mistral'"):
        Seeing.text_of({"text_config": {"model_type": "mistral"}})
