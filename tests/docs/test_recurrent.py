"""docs/recurrent.md: its model file, beside numpy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import nmse
from tests.documents import blocks, read
from tests.golden.files import load_golden

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "conv_L_cache": 3,
    "max_position_embeddings": 128,
    "norm_eps": 1e-5,
}
VOCABULARY = 48
# Squared error over squared values: float32 gives 1e-13.
BOUND = 1e-10
CHANCE = np.random.default_rng(7)
TEXT = CHANCE.integers(0, VOCABULARY, 23).tolist()


def weights() -> dict[str, np.ndarray]:
    """A checkpoint's tensors, numpy order."""
    width, kernel = CONFIG["hidden_size"], CONFIG["conv_L_cache"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, width),
        "model.norm.weight": (width,),
    }
    for i in range(2):
        layer = f"model.layers.{i}."
        shapes[f"{layer}operator_norm.weight"] = (width,)
        shapes[f"{layer}conv.in_proj.weight"] = (3 * width, width)
        shapes[f"{layer}conv.conv.weight"] = (width, 1, kernel)
        shapes[f"{layer}conv.out_proj.weight"] = (width, width)
    chance = np.random.default_rng(5)
    return {n: chance.normal(size=s).astype(np.float32) for n, s in shapes.items()}


WEIGHTS = weights()


def logits(text: list[int]) -> np.ndarray:
    """The logits of the whole text, in float64."""
    w = {name: value.astype(np.float64) for name, value in WEIGHTS.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG["norm_eps"]) * weight

    x = w["model.embed_tokens.weight"][text]
    for i in range(2):
        layer = f"model.layers.{i}."
        y = norm(x, w[f"{layer}operator_norm.weight"]) @ w[f"{layer}conv.in_proj.weight"].T
        b, c, u = np.split(y, 3, axis=1)
        taps = w[f"{layer}conv.conv.weight"][:, 0]
        columns = zip((b * u).T, taps, strict=True)
        mixed = np.stack([np.convolve(v, k[::-1])[: len(text)] for v, k in columns], axis=1)
        x = x + (mixed * c) @ w[f"{layer}conv.out_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    code, _ = blocks(read("docs/recurrent.md"), "python")
    made = tmp_path_factory.mktemp("models")
    (made / "shortconv.py").write_text(code)
    return made


def load(folder: Path, **options: Any) -> LoadedModel:
    return ggmodel.load(
        from_hf(find("shortconv", folder), CONFIG, WEIGHTS), models=folder, **options
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LoadedModel]:
    with load(folder, batch_size=8, parallel=3) as loaded:
        yield loaded


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 512])
def test_batches_of_any_size(folder: Path, batch_size: int):
    with load(folder, batch_size=batch_size) as model:
        assert nmse(model.logits(TEXT), logits(TEXT)) < BOUND


def test_texts_that_share_a_beginning(model: LoadedModel):
    for text in (TEXT[:9], TEXT, TEXT[:9] + TEXT[:4], TEXT[:5]):
        answer = model.generate(text, max_tokens=6, temperature=0)
        expected = list(text)
        for _ in range(6):
            expected.append(int(logits(expected)[-1].argmax()))
        assert answer.tokens == expected[len(text) :]


def test_a_state_from_the_wrong_end_is_noticed(folder: Path, tmp_path: Path):
    text = (folder / "shortconv.py").read_text()
    wrong = text.replace(
        "window.slice(0, part.n, window.dim(0))", "window.slice(0, 0, before.dim(0))"
    )
    assert wrong != text
    (tmp_path / "shortconv.py").write_text(wrong)
    with load(tmp_path, batch_size=512) as model:  # a whole text does not show it
        assert nmse(model.logits(TEXT), logits(TEXT)) < BOUND
    with load(tmp_path, batch_size=7) as model:
        assert nmse(model.logits(TEXT), logits(TEXT)) > 1e-2


def test_the_kernel_goes_both_ways(folder: Path):
    source = from_hf(find("shortconv", folder), CONFIG, WEIGHTS)
    kernel = source.tensors["blk.0.shortconv.conv.weight"]
    assert kernel.shape == (3, 32)


@pytest.mark.parametrize("case", ["published", "biases"])
def test_a_state_space_model(tmp_path: Path, case: str):
    (tmp_path / "statespace.py").write_text(blocks(read("docs/recurrent.md"), "python")[1])
    golden = load_golden("mamba2", case)
    unread = ("time_step_", "rescale_")
    config = {k: v for k, v in golden.config.items() if not k.startswith(unread)}
    source = from_hf(find("statespace", tmp_path), config, golden.weights())
    with ggmodel.load(source, models=tmp_path, batch_size=7) as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < BOUND
