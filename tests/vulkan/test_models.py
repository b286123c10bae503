"""Models whose layers lie on a device of Vulkan, beside transformers' results.

GGML_VK_DISABLE_F16 has the device add up in float32, as transformers did: its float16 sums are
1e-5 off, relative to the square.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

import ggmodel
from ggmodel.gguf_file import MemorySource
from ggmodel.ml.devices import DeviceInfo
from ggmodel.workbench.golden import nmse, source_of
from tests.golden.files import Golden, load_golden

# ggml's kernels for Vulkan copy operands of products that are not contiguous, such as queries, to
# F16: 2⁻²⁴ relative to the square, a few times over, 3e-8 for one attention. Flash attention on the
# CPU does the same, see tests/golden/test_text.py. All else is 2e-13 from float64.
HALF_QUERIES = 1e-6
# Weights of 8 bits: the device multiplies unrounded activations, as the reference does.
ROUNDED = 5e-4


@pytest.fixture(params=[("llama", "plain_gqa"), ("llama", "experts"), ("gemma3", "every_3rd")])
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden(*request.param)


@pytest.fixture
def source(golden: Golden) -> MemorySource:
    return source_of(golden)


def blocks(source: MemorySource) -> int:
    return int(source.metadata[f"{source.metadata['general.architecture']}.block_count"])


def options(**more: Any) -> dict[str, Any]:
    return {"kv_type": "f32", "threads": 1, **more}


def test_sums_are_taken_in_float32():
    assert os.environ.get("GGML_VK_DISABLE_F16"), "make test-vulkan sets it"


@pytest.mark.parametrize("share", ["all", "some"])
def test_logits_are_those_of_transformers(
    gpu: DeviceInfo, golden: Golden, source: MemorySource, share: str
):
    layers = -1 if share == "all" else {gpu.name: range(1, blocks(source))}
    with ggmodel.load(source, **options(gpu_layers=layers)) as model:
        prompt = golden.prompt.tolist()
        assert nmse(model.logits(prompt), golden.logits) < HALF_QUERIES
        done = model.generate(prompt, max_tokens=len(golden.greedy), temperature=0)
        [used] = model.memory.gpus
    assert done.tokens == golden.greedy.tolist()
    assert used.name == gpu.name
    assert [n > 0 for n in used.weights[:-1]] == [share == "all", *[True] * (blocks(source) - 1)]


def test_attention_is_fused_where_the_driver_can(gpu: DeviceInfo):
    """Mesa's software device crashes in the fused op."""
    source = source_of(load_golden("llama", "plain_gqa"))
    with ggmodel.load(source, **options(gpu_layers=-1)) as model:
        assert model.backend.flash_attention is ("llvmpipe" not in gpu.description)


def test_quantised_weights(gpu: DeviceInfo):
    golden = load_golden("llama", "plain_gqa")
    source = source_of(golden, ggmodel.DType.Q8_0)
    with ggmodel.load(source, **options(gpu_layers=-1)) as model:
        assert nmse(model.logits(golden.prompt.tolist()), golden.logits) < ROUNDED


def test_the_estimate_is_what_is_taken(gpu: DeviceInfo):
    source = source_of(load_golden("llama", "plain_gqa"))
    for layers in (-1, 1):
        given = options(gpu_layers=layers)
        estimate = ggmodel.estimate(source, **given)
        with ggmodel.load(source, **given) as model:
            memory = model.memory
        assert [(d.weights, d.cache, d.graph) for d in estimate.devices] == [
            (d.weights, d.cache, d.graph) for d in (*memory.gpus, memory.cpu)
        ]


def test_several_requests_share_the_device(gpu: DeviceInfo):
    golden = load_golden("llama", "plain_gqa")
    given = options(gpu_layers=-1, parallel=3)
    with ggmodel.load(source_of(golden), **given) as model:
        prompt = golden.prompt.tolist()
        prompts = [prompt, prompt[:3], prompt]
        done = model.batch(prompts, max_tokens=len(golden.greedy), temperature=0)
    assert done[0].tokens == done[2].tokens == golden.greedy.tolist()
