"""Trace once, replay: the same numbers as recording the graph for every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.gguf_file import MemorySource
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.scoring import Scoring


def decode(model: LoadedModel, prompt: list[int], steps: int, rebuild: bool) -> np.ndarray:
    """Logits of greedy steps after a prompt, [steps, vocabulary]."""
    engine = model.engine
    rows = []
    with Scoring(engine).sequence() as sequence:
        logits = Scoring(engine).extend(sequence, np.array(prompt, np.int32), 0)
        for i in range(steps):
            if rebuild:
                engine.graphs.close()
            token = np.array([logits.argmax()], np.int32)
            logits = Scoring(engine).extend(sequence, token, len(prompt) + i)
            rows.append(logits)
    return np.stack(rows)


@pytest.mark.parametrize("flash_attention", ["on", "off"])
def test_replay_equals_rebuild_bit_for_bit(source: MemorySource, flash_attention: str):
    prompt = list(range(1, 30))
    options = {"context_length": 600, "batch_size": 8, "flash_attention": flash_attention}
    with ggmodel.load(source, **options) as model:
        before = model.engine.graphs.recorded
        replayed = decode(model, prompt, 280, rebuild=False)  # past one padding step of the range
        assert model.engine.graphs.recorded - before <= 5
        assert model.engine.graphs.replayed >= 270
    with ggmodel.load(source, **options) as model:
        rebuilt = decode(model, prompt, 280, rebuild=True)
        assert model.engine.graphs.replayed <= 3
    assert replayed.tobytes() == rebuilt.tobytes()


BAKED = '''
from ggmodel import register
from ggmodel.models import llama

@register("llama")
class Baked(llama.Llama):
    """Adds a number that the host writes while the graph is recorded."""
    calls = 0

    def forward(self, ctx, batch):
        Baked.calls += 1
        offset = ctx.input().from_floats([float(Baked.calls)])
        return super().forward(ctx, batch) + offset
'''


def test_baked_in_data_makes_every_step_rebuild(source: MemorySource, tmp_path: Path):
    (tmp_path / "baked.py").write_text(BAKED.replace('"llama"', '"baked"'))
    metadata = {k.replace("llama.", "baked."): v for k, v in source.metadata.items()}
    metadata["general.architecture"] = "baked"
    tensors = {n: (t.dtype, t.shape, bytes(source.data(n))) for n, t in source.tensors.items()}
    renamed = MemorySource(metadata, tensors)
    with ggmodel.load(source) as model:
        plain = decode(model, [1, 2, 3], 4, rebuild=False)
    with ggmodel.load(renamed, models=tmp_path) as model:
        baked = decode(model, [1, 2, 3], 4, rebuild=False)
        assert model.engine.graphs.replayed == 0
        assert model.engine.graphs.recorded == 5
    added = (baked - plain)[:, :1]
    np.testing.assert_allclose(baked - plain, np.broadcast_to(added, plain.shape), atol=1e-4)
    np.testing.assert_allclose(np.diff(added[:, 0]), 1.0, atol=1e-4)  # a new number every step


def test_a_grown_compute_buffer_drops_old_graphs(source: MemorySource):
    with ggmodel.load(source, kv_type="f32", context_length=256) as model:
        first = model.generate([1, 2, 3], max_tokens=8, temperature=0)
        assert model.generate([4, 5, 6], max_tokens=1).tokens  # so that no prefix is reused
        recorded, size = model.engine.graphs.recorded, model.memory.cpu.graph
        with model.backend.new_context() as ctx:
            ctx.compute(ctx.input().zeros(ggmodel.DType.F32, size).exp().neg())
        assert model.memory.cpu.graph > size
        assert model.generate([1, 2, 3], max_tokens=8, temperature=0).tokens == first.tokens
        assert model.engine.graphs.recorded == recorded + 2  # the prompt and the decoding step
