"""A dry run reports to the byte what a real load takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel import DType
from ggmodel.errors import GraphError
from ggmodel.gguf_file import TensorSource, open_gguf
from ggmodel.ml import AllocationStatus, BackendMemory, DeviceMemory
from ggmodel.ml.ggml import GGMLBackend, attention
from ggmodel.ml.ggml.memory import Buffer
from ggmodel.ml.node import State
from ggmodel.native import lib
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.runner.loading.preparation import Preparation
from ggmodel.runner.options import Options
from ggmodel.workbench.golden import source_of
from tests.golden.files import cases, load_golden

STORIES = Path(__file__).parents[3] / "examples" / "assets" / "stories.gguf"
SHAPES = [
    {},
    {"flash_attention": "off", "kv_type": "f32"},
    {"context_length": 1000, "parallel": 3, "batch_size": 17},
]


def figures(d: DeviceMemory) -> tuple[list[int], list[int], int]:
    return d.weights, d.cache, d.graph


def taken(backend: GGMLBackend) -> int:
    """Bytes that ggml says its buffers have, mappings left out."""
    groups = [g for g in backend.weights._groups if type(g) is Buffer]
    states = [n.storage.handle for n in backend._states.values() if isinstance(n.storage, State)]
    handles = [*(b.handle for b in (*groups, *states)), backend.inputs._handle]
    buffers = sum(map(lib.ggml_backend_buffer_get_size, handles))
    compute: Any = backend.compute_for(backend.new_context().graph)
    return buffers + sum(compute._taken(device) for device in compute.sizes)


def both(source: TensorSource, shape: dict) -> list[BackendMemory]:
    reports = []
    for alloc_memory in (False, True):
        with Preparation(source, Options(**shape, alloc_memory=alloc_memory)) as steps:
            steps.take_steps()
            reports.append(steps.backend.backend_memory())
            if alloc_memory:
                assert isinstance(steps.backend, GGMLBackend)
                graphs = steps.backend.kept_graphs * steps.backend._description
                others = reports[1].mapped + steps.backend.hardware.scratch.size + graphs
                assert taken(steps.backend) == reports[1].size() - others
    return reports


@pytest.mark.parametrize("shape", SHAPES, ids=["default", "plain", "shared"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.Q4_0], ids=str)
@pytest.mark.parametrize("case", cases("llama"))
def test_every_golden_model(case: str, dtype: DType, shape: dict):
    source = source_of(load_golden("llama", case), dtype)
    dry, real = both(source, shape)
    assert figures(dry.cpu) == figures(real.cpu)
    assert (dry.input_weights, dry.mapped) == (real.input_weights, real.mapped)
    assert dry.cpu.status is AllocationStatus.UNALLOCATED
    assert real.cpu.status is AllocationStatus.ALLOCATED
    assert dry.cpu.graph and all(dry.cpu.cache[:-1])


@pytest.mark.parametrize("shape", SHAPES, ids=["default", "plain", "shared"])
def test_a_mapped_file(shape: dict):
    with open_gguf(STORIES) as source:
        dry, real = both(source, shape)
    assert figures(dry.cpu) == figures(real.cpu)
    assert dry.mapped == real.mapped > 0


def test_running_takes_no_more_than_was_reserved():
    golden = load_golden("llama", "plain_gqa")
    with Preparation(source_of(golden), Options()) as steps:
        steps.take_steps()
        reserved = steps.backend.backend_memory()
        steps.backend.load()
        for n in (1, 5, len(golden.prompt)):
            with Scoring(steps.engine).sequence() as sequence:
                Scoring(steps.engine).extend(sequence, golden.prompt[:n], 0)
        assert steps.backend.backend_memory().cpu.graph == reserved.cpu.graph


@pytest.mark.parametrize(
    ("context", "batch", "traces"),  # two of them for the logits of all rows
    [(256, 512, 4), (8192, 512, 4), (256, 40, 4), (256, 1, 3)],
)
@pytest.mark.parametrize("own", [True, False], ids=["own attention", "ggml's"])
def test_batches_that_were_not_traced_take_no_more_than_was_reserved(
    monkeypatch: pytest.MonkeyPatch, context: int, batch: int, own: bool, traces: int
):
    if not own:
        monkeypatch.setattr(attention, "instructions", attention.ANY)
    golden = load_golden("llama", "plain_gqa")
    options = Options(context_length=context, batch_size=batch, threads=1)
    with Preparation(source_of(golden), options) as steps:
        steps.configure()
        steps.fill()
        steps.trace()
        assert len(steps.engine.memory_plan.graphs) == traces
        steps.reserve()
        assert isinstance(steps.backend, GGMLBackend)
        memory = steps.backend.compute_for(steps.backend.new_context().graph)
        reserved, inputs = memory.sizes.copy(), steps.backend.inputs.size
        graph = steps.backend.backend_memory().cpu.graph
        steps.backend.load()
        for n in (1, 2, 5, 31, 62, 63, 64, 65, 200, min(context, 600) - 1):
            with Scoring(steps.engine).sequence() as sequence:
                Scoring(steps.engine).extend(sequence, np.resize(golden.prompt, n), 0)
        with Scoring(steps.engine).sequence() as sequence:  # at the end of the context
            Scoring(steps.engine).extend(sequence, np.resize(golden.prompt, context - 64), 0)
            Scoring(steps.engine).extend(sequence, np.resize(golden.prompt, 63), context - 64)
            Scoring(steps.engine).extend(sequence, golden.prompt[:1], context - 1)
        Scoring(steps.engine).all_logits(np.resize(golden.prompt, min(context, 600)))
        assert (memory.sizes, steps.backend.inputs.size) == (reserved, inputs)
        assert steps.backend.backend_memory().cpu.graph == graph


def test_a_dry_run_computes_and_loads_nothing():
    golden = load_golden("llama", "plain_gqa")
    with Preparation(source_of(golden), Options(alloc_memory=False)) as steps:
        steps.take_steps()
        with pytest.raises(GraphError, match="alloc_memory"):
            steps.backend.load()
        with (
            Scoring(steps.engine).sequence() as sequence,
            pytest.raises(GraphError, match="alloc_memory"),
        ):
            Scoring(steps.engine).extend(sequence, golden.prompt, 0)
        cache: Any = steps.engine.cache
        keys = next(iter(cache.stored.keys.values()))
        with pytest.raises(GraphError, match="alloc_memory"):
            keys.numpy()
