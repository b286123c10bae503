"""Models with LoRA adapters, against weights that were merged by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import FormatError, Unsupported
from ggmodel.gguf_file import MemorySource, TensorSource
from ggmodel.model import find
from ggmodel.runner.loading.sources import adapted
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


def test_an_adapter_equals_merged_weights(base, vary, write_gguf, tmp_path: Path, monkeypatch):
    model = write_gguf(tmp_path / "m.gguf", base)
    adapter = write_gguf(tmp_path / "a.gguf", MemorySource(METADATA, tensors(base)))
    layers = ("model", model.read_bytes()), ("adapter", adapter.read_bytes())
    put_ollama(tmp_path / "ollama", "library/m:latest", *layers)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    a, b = pair(base)
    w = np.frombuffer(base.data(NAME), np.float32).reshape(base.tensors[NAME].shape[::-1])
    merged = w + np.float32(ALPHA / RANK) * (b @ a)
    ids = [1, 5, 9, 3]
    with ggmodel.load("m") as found, ggmodel.load(model) as plain:
        with ggmodel.load(vary(base, tensors={NAME: merged})) as by_hand:
            assert np.array_equal(found.logits(ids), by_hand.logits(ids))
        assert not np.allclose(found.logits(ids), plain.logits(ids), atol=1e-3)
        assert json.dumps(found.report.architecture) == '"llama"'


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"general.type": "model"}, FormatError, "no LoRA adapter"),
        ({"general.architecture": "qwen2"}, FormatError, "an adapter of 'qwen2'"),
        ({"adapter.alora.invocation_tokens": [1]}, Unsupported, "switched on by tokens"),
        ({"adapter.lora.alpha": "x"}, FormatError, "must be a number"),
        ("other", FormatError, "which the model lacks"),
        ("shape", FormatError, "do not fit"),
        ("bias", Unsupported, "matrices alone"),
        ("embedding", Unsupported, "matrices of layers alone"),
        ("half", FormatError, "or by half"),
    ],
)
def test_adapters_of_other_models_are_refused(
    base, write_gguf, tmp_path: Path, change, error: type[Exception], message: str
):
    own, metadata = tensors(base), dict(METADATA)
    a, b = own.values()
    if isinstance(change, dict):
        metadata |= change
    elif change == "shape":
        own[f"{NAME}.lora_a"] = a[:, 1:].copy()
    elif change == "half":
        del own[f"{NAME}.lora_b"]
    elif change == "bias":
        own["blk.0.attn_norm.weight"] = a[0]
    else:
        at = "blk.9.attn_q.weight" if change == "other" else "token_embd.weight"
        own |= {f"{at}.lora_a": a, f"{at}.lora_b": b}
    path = write_gguf(tmp_path / "a.gguf", MemorySource(metadata, own))
    with pytest.raises(error, match=message):
        adapted(base, [path])
