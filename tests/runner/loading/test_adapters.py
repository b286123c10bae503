"""Adapters in llama.cpp's layout, against weights that were merged by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import FormatError, Unsupported
from ggmodel.gguf_file import MemorySource, TensorSource
from ggmodel.model import find
from ggmodel.runner.loading.adapters import MergedSource, changes_of
from tests.golden.files import load_golden
from tests.names.stores import put_ollama

NAME, ALPHA, RANK = "blk.1.attn_q.weight", 8.0, 4
METADATA = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": np.float32(ALPHA),
}


@pytest.fixture(scope="module")
def base() -> TensorSource:
    golden = load_golden("llama", "plain_gqa")
    return from_hf(find("llama"), golden.config, golden.weights())


def pair(base, rng=7) -> tuple[np.ndarray, np.ndarray]:
    """A [rank, in] and B [out, rank]."""
    width, out = base.tensors[NAME].shape
    random = np.random.default_rng(rng)
    a, b = random.normal(size=(RANK, width)), random.normal(size=(out, RANK))
    return a.astype(np.float32) / 4, b.astype(np.float32) / 4


def tensors(base) -> dict[str, np.ndarray]:
    a, b = pair(base)
    return {f"{NAME}.lora_a": a, f"{NAME}.lora_b": b}


def merged_by_hand(base) -> np.ndarray:
    a, b = pair(base)
    w = np.frombuffer(base.data(NAME), np.float32).reshape(base.tensors[NAME].shape[::-1])
    return w + np.float32(ALPHA / RANK) * (b @ a)


def test_an_adapter_of_ollamas_store_is_beside_the_weights(
    base, vary, write_gguf, tmp_path: Path, monkeypatch
):
    model = write_gguf(tmp_path / "m.gguf", base)
    adapter = write_gguf(tmp_path / "a.gguf", MemorySource(METADATA, tensors(base)))
    layers = ("model", model.read_bytes()), ("adapter", adapter.read_bytes())
    put_ollama(tmp_path / "ollama", "library/m:latest", *layers)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    ids = [1, 5, 9, 3]
    with ggmodel.load("m") as found, ggmodel.load(model) as plain:
        assert dict(found.adapters) == {"adapter": 1.0}
        with ggmodel.load(vary(base, tensors={NAME: merged_by_hand(base)})) as by_hand:
            assert np.allclose(found.logits(ids), by_hand.logits(ids), atol=1e-3)
        assert np.array_equal(found.logits(ids, adapters=[]), plain.logits(ids))
        assert not np.allclose(found.logits(ids), plain.logits(ids), atol=1e-2)


@pytest.mark.parametrize("strength", [1.0, -0.5])
def test_a_merged_source_has_the_sums(base, strength: float):
    source = MergedSource(base, MemorySource(METADATA, tensors(base)), strength)
    w = np.frombuffer(base.data(NAME), np.float32)
    expected = w + strength * (merged_by_hand(base).reshape(-1) - w)
    assert np.allclose(np.frombuffer(source.data(NAME), np.float32), expected, atol=1e-6)
    other = "blk.0.attn_q.weight"
    assert source.data(other) == base.data(other)


def test_a_second_adapter_changes_the_head_that_the_first_took_off_the_embedding():
    golden = load_golden("llama", "tied")
    tied = from_hf(find("llama"), golden.config, golden.weights())
    name, (width, rows) = "token_embd.weight", tied.tensors["token_embd.weight"].shape
    random = np.random.default_rng(1)
    a, b = (random.normal(size=n).astype(np.float32) for n in ((RANK, width), (rows, RANK)))
    adapter = MemorySource(METADATA, {f"{name}.lora_a": a, f"{name}.lora_b": b})
    twice = MergedSource(MergedSource(tied, adapter), adapter)
    assert twice.data(name) == tied.data(name)
    head = np.frombuffer(twice.data("output.weight"), np.float32).reshape(rows, width)
    embedding = np.frombuffer(tied.data(name), np.float32).reshape(rows, width)
    np.testing.assert_allclose(head, embedding + 2 * ALPHA / RANK * (b @ a), atol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"general.type": "model"}, FormatError, "no LoRA adapter"),
        ({"general.architecture": "qwen2"}, FormatError, "an adapter of 'qwen2'"),
        ({"adapter.alora.invocation_tokens": [1]}, Unsupported, "switched on by tokens"),
        ({"adapter.lora.alpha": "x"}, FormatError, "must be a number"),
        ({"adapter.lora.alpha": np.float32("nan")}, FormatError, "must be a number"),
        ("other", FormatError, "which checkpoint lacks"),
        ("shape", FormatError, r"A \[63, 4\] and B \[4, 64\] of 'blk.1.attn_q.weight' do not fit"),
        ("bias", Unsupported, "matrices alone"),
        ("embedding", FormatError, "do not fit"),
        ("half", FormatError, "or by half"),
        ("nan", FormatError, "NaN or infinity"),
        ("magnitudes", FormatError, "magnitudes"),
    ],
)
def test_adapters_of_other_models_are_refused(base, change, error: type[Exception], message: str):
    own, metadata = tensors(base), dict(METADATA)
    a, b = own.values()
    if isinstance(change, dict):
        metadata |= change
    elif change == "shape":
        own[f"{NAME}.lora_a"] = a[:, 1:].copy()
    elif change == "nan":
        own[f"{NAME}.lora_b"] = b * np.float32("nan")
    elif change == "magnitudes":
        own[f"{NAME}.lora_magnitude"] = b[:7, 0].copy()
    elif change == "half":
        del own[f"{NAME}.lora_b"]
    elif change == "bias":
        own["blk.0.attn_norm.weight"] = a[0]
    else:
        at = "blk.9.attn_q.weight" if change == "other" else "token_embd.weight"
        own |= {f"{at}.lora_a": a[:, 1:].copy(), f"{at}.lora_b": b}
    with pytest.raises(error, match=message):
        changes_of(MemorySource(metadata, own), base)
