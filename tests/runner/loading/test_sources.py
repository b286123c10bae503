"""A text model and the file that it sees with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, Error, Unsupported
from ggmodel.gguf_file import MemorySource
from tests.conftest import WriteGGUF
from tests.names.stores import put_hub, put_ollama

MODELS = Path(__file__).parents[1] / "models"
PIXELS = np.random.default_rng(1).random((1, 3, 6, 6)).astype(np.float32)


@pytest.fixture
def text(source: MemorySource, write_gguf: WriteGGUF, tmp_path: Path) -> Path:
    metadata = {k.replace("llama.", "glancer."): v for k, v in source.metadata.items()}
    metadata["general.architecture"] = "glancer"
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    # Without the projector the field has no tensor; its model takes that for blindness.
    return write_gguf(tmp_path / "glancer-tiny-f32.gguf", MemorySource(metadata, tensors))


@pytest.fixture
def projector(source: MemorySource, write_gguf: WriteGGUF, tmp_path: Path):
    hidden = source.tensors["token_embd.weight"].shape[0]

    def write(name: str, scale: float = 1.0, **changes: Any) -> Path:
        keys = {"general.architecture": "clip", "clip.vision.projection_dim": hidden, **changes}
        weight = np.random.default_rng(5).normal(size=(hidden, 12)).astype(np.float32) * scale
        tensors = {"v.proj.weight": weight}
        return write_gguf(tmp_path / name, MemorySource(keys, tensors))

    return write


def scale_of(path: Path | str, **options: Any) -> float:
    """How large the rows are of which a projector makes an image; tells them apart."""
    with ggmodel.load(path, models=MODELS, context_length=64, **options) as model:
        (rows,) = model.encode_image(PIXELS)
        return float(np.abs(rows.rows).max())


def test_it_is_found_beside_the_model(text: Path, projector):
    projector("other-mmproj.gguf", 8)
    projector("mmproj-glancer-tiny.gguf", 2)
    named = projector("elsewhere.gguf", 4)
    found = scale_of(text)
    assert scale_of(text, mmproj=named) == pytest.approx(2 * found)
    assert scale_of(text, mmproj=str(text.parent / "other-mmproj.gguf")) == pytest.approx(4 * found)


def test_stores_say_which_it_is(text: Path, projector, tmp_path: Path, monkeypatch):
    model, eyes = text.read_bytes(), projector("elsewhere.gguf", 2).read_bytes()
    put_hub(tmp_path / "hub", "org/eyes", {"m-F32.gguf": model, "mmproj-F16.gguf": eyes})
    put_ollama(tmp_path / "ollama", "library/m:latest", ("model", model), ("projector", eyes))
    put_ollama(tmp_path / "ollama", "library/blind:latest", ("model", model))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert scale_of("org/eyes") == scale_of("m") == scale_of(text, mmproj=projector("x.gguf", 2))
    with pytest.raises(Error, match=r"v\.proj"):
        scale_of("blind")


def test_one_of_another_model_is_left_alone(text: Path, projector):
    projector("mmproj-a.gguf", **{"clip.vision.projection_dim": 4096})
    projector("mmproj-b.gguf", **{"general.architecture": "llama"})
    (text.parent / "mmproj-c.gguf").write_bytes(b"GGUF but broken")
    (text.parent / "mmproj-d.gguf").mkdir()
    with pytest.raises(Error, match=r"v\.proj"):  # this architecture cannot do without
        ggmodel.load(text, models=MODELS)


def test_none_is_taken_where_none_is_wanted(text: Path, projector):
    projector("mmproj.gguf")
    assert scale_of(text) > 0
    with pytest.raises(Error, match=r"v\.proj"):
        ggmodel.load(text, models=MODELS, mmproj="")


def test_a_model_without_sight_takes_none(
    source: MemorySource, write_gguf: WriteGGUF, projector, tmp_path: Path
):
    projector("mmproj.gguf")
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    path = write_gguf(tmp_path / "llama.gguf", MemorySource(dict(source.metadata), tensors))
    with ggmodel.load(path) as model, pytest.raises(Unsupported, match="takes no images"):
        model.encode_image(PIXELS)


def test_bad_projectors(text: Path, projector, source: MemorySource):
    with pytest.raises(ConfigError, match="JoinedSource"):
        ggmodel.load(source, mmproj="mmproj.gguf")
    with pytest.raises(Error, match=r"none\.gguf"):
        ggmodel.load(text, models=MODELS, mmproj=text.parent / "none.gguf")
    with pytest.raises(Error, match=r"is .* a projector"):
        ggmodel.load(text, models=MODELS, mmproj=text)
