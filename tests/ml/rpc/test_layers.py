"""Models whose layers lie on this machine and on workers: real ones, over real connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import Busy, ConfigError, DeviceLost, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import (
    BackendMemory,
    DeviceMemory,
    DType,
    GPULayers,
    GPULayersList,
    get_devices_from_runner,
)
from ggmodel.ml.runner_discovery import RunnerAtPort
from ggmodel.workbench.golden import nmse, source_of
from tests.conftest import ROOT
from tests.golden.files import Golden, load_golden

# Float32 sums taken in another order, as in tests/golden/test_llama.py.
EXACT = 1e-8
STORIES = ROOT / "examples" / "assets" / "stories.gguf"


@pytest.fixture(autouse=True)
def _children_use_rpc(monkeypatch: pytest.MonkeyPatch, rpc_ggml: Path) -> None:
    """The child process uses the ggml with RPC, whatever this process uses."""
    monkeypatch.setenv("GGMODEL_GGML", str(rpc_ggml))
    monkeypatch.delenv("GGMODEL_RPC", raising=False)


@pytest.fixture
def mortal(worker: Callable[..., object]) -> list:
    """Two workers that a test may end."""
    return [worker(), worker()]


@pytest.fixture(scope="module", params=["plain_gqa", "llama3_rope", "tied", "experts"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden("llama", request.param)


@pytest.fixture(scope="module")
def source(golden: Golden) -> MemorySource:
    return source_of(golden)


def three_devices(source: MemorySource) -> dict[str, range]:
    """The first layer stays on the CPU."""
    blocks = source.metadata["llama.block_count"]
    assert blocks >= 2
    return {"RPC0": range(1, blocks), "RPC1": range(blocks, blocks + 1)}


def endpoints(workers: list) -> list[str]:
    return [w.endpoint for w in workers]


@pytest.mark.parametrize("flash_attention", ["auto", "on"])
def test_three_devices_compute_what_one_does(
    pair: list, golden: Golden, source: MemorySource, flash_attention: str
):
    options = {"kv_type": "f32", "flash_attention": flash_attention, "threads": 1}
    layers = three_devices(source)
    with ggmodel.load(source, rpc=endpoints(pair), gpu_layers=layers, **options) as model:
        logits = model.logits(golden.prompt.tolist())
        wanted = len(golden.greedy)  # up to the first token that rounding may change
        done = model.generate(golden.prompt.tolist(), max_tokens=wanted, temperature=0)
        split = ggmodel.load(source, rpc=(), gpu_layers=0, batch_size=5, **options)
        with split as local:
            assert nmse(logits, local.logits(golden.prompt.tolist())) < EXACT
    assert nmse(logits, golden.logits) < EXACT
    assert done.tokens == golden.greedy.tolist()


def test_each_device_reports_its_own(pair: list, golden: Golden, source: MemorySource):
    blocks = source.metadata["llama.block_count"]
    options = {"rpc": endpoints(pair), "gpu_layers": three_devices(source), "threads": 1}
    estimate = ggmodel.estimate(source, **options)
    with ggmodel.load(source, **options) as model:
        memory = model.memory
        devices = model.backend.backend_devices()
    first, second = memory.gpus
    assert [d.name for d in devices] == [first.name, second.name] == ["RPC0", "RPC1"]
    assert [d.description for d in devices] == endpoints(pair)

    def padded(name: str) -> int:
        return -(-source.tensors[name].nbytes // 32) * 32

    for n in range(blocks):
        holder: DeviceMemory = memory.cpu if n == 0 else first
        own = [name for name in source.tensors if name.startswith(f"blk.{n}.")]
        # Each device has a copy of a weight that all layers read, counted with its first layer.
        shared = padded("rope_freqs.weight") if "rope_freqs.weight" in source.tensors else 0
        assert holder.weights[n] == sum(map(padded, own)) + shared * (n < 2)
        assert holder.cache[n] > 0
        for other in (d for d in (memory.cpu, first, second) if d is not holder):
            assert other.weights[n] == other.cache[n] == 0
    head = "output.weight" if "output.weight" in source.tensors else "token_embd.weight"
    assert second.weights[blocks] == padded(head) + padded("output_norm.weight")
    assert memory.input_weights == padded("token_embd.weight")
    assert first.graph and second.graph and memory.cpu.graph
    assert [(d.weights, d.cache, d.graph) for d in estimate.devices] == [
        (d.weights, d.cache, d.graph) for d in (*memory.gpus, memory.cpu)
    ]


def test_an_output_on_a_worker_is_computed_there(pair: list):
    """The CPU rearranges its weights for products, but not those read by rows only."""
    tied = source_of(load_golden("llama", "tied"), DType.Q4_0)
    with ggmodel.load(tied, rpc=endpoints(pair), gpu_layers=-1, threads=1) as model:
        memory = model.memory
    assert sum(memory.cpu.weights) == 0
    assert memory.gpus[0].weights[-1] > tied.tensors["token_embd.weight"].nbytes


def test_all_layers_go_to_workers_unless_told_otherwise(pair: list):
    with ggmodel.load(STORIES, rpc=endpoints(pair), threads=1) as model:
        memory = model.memory
        assert [sum(d.weights) > 0 for d in memory.gpus] == [True]  # one is enough
        assert sum(memory.cpu.weights) == 0
        remote = model.generate("Once upon a time", max_tokens=20, temperature=0)
    with ggmodel.load(STORIES, rpc=(), threads=1) as model:
        assert (
            remote.tokens == model.generate("Once upon a time", max_tokens=20, temperature=0).tokens
        )


def test_weights_placed_by_name(pair: list):
    options = {"rpc": endpoints(pair), "threads": 1}
    with ggmodel.load(STORIES, gpu_layers=-1, override_tensor={r"ffn_": "CPU"}, **options) as model:
        memory: BackendMemory = model.memory
        assert all(memory.cpu.weights[:-1])  # the ffn of each layer
        assert sum(memory.cpu.cache) == 0  # the attention is elsewhere
        assert model.generate("Once", max_tokens=3, temperature=0).tokens
    with pytest.raises(ConfigError, match=r"CUDA7.*RPC0"):
        ggmodel.load(STORIES, override_tensor={"ffn_": "CUDA7"}, **options)
    with pytest.raises(ConfigError, match="regular expression"):
        ggmodel.load(STORIES, override_tensor={"ffn_(": "CPU"}, **options)


def test_the_environment_names_workers(pair: list, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GGMODEL_RPC", ", ".join(endpoints(pair)))
    with ggmodel.load(STORIES, gpu_layers=1, threads=1) as model:
        assert [len(model.memory.gpus)] == [1]


@pytest.mark.slow
def test_a_killed_worker_is_named_within_five_seconds(mortal: list):
    layers = {"RPC0": [0, 1], "RPC1": [2, 3]}
    model = ggmodel.load(STORIES, rpc=endpoints(mortal), gpu_layers=layers, threads=1)
    with model:
        pieces = model.stream("Once upon a time", temperature=0)
        next(pieces)
        killed = time.monotonic()
        mortal[1].kill()
        with pytest.raises(DeviceLost, match=mortal[1].endpoint) as caught:
            for _ in pieces:
                pass
        assert time.monotonic() - killed < 5
        assert mortal[0].endpoint not in str(caught.value)
        with pytest.raises(DeviceLost):
            model.generate("Once", max_tokens=1)
    with ggmodel.load(STORIES, rpc=[mortal[0].endpoint], gpu_layers=2, threads=1) as model:
        assert model.generate("Once", max_tokens=3).tokens


def test_a_worker_that_hangs_can_be_left(mortal: list):
    """Ctrl-C ends the wait before the worker is given up, and closing does not wait."""
    model = ggmodel.load(STORIES, rpc=[mortal[0].endpoint], gpu_layers={"RPC0": [0, 1]}, threads=1)
    pieces = model.stream("Once upon a time", temperature=0)
    next(pieces)
    mortal[0].process.send_signal(signal.SIGSTOP)
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in pieces:
            pass
    begun = time.monotonic()
    model.close()
    assert time.monotonic() - begun < 15


@pytest.mark.slow
def test_a_worker_serves_one_client(pair: list):
    one = [pair[0].endpoint]
    with ggmodel.load(STORIES, rpc=one, gpu_layers=2, threads=1) as model:
        begun = time.monotonic()
        with pytest.raises(Busy, match=one[0]):
            ggmodel.load(STORIES, rpc=one, gpu_layers=2, threads=1)
        assert 2 <= time.monotonic() - begun < 10
        assert model.generate("Once", max_tokens=3).tokens
    with ggmodel.load(STORIES, rpc=one, gpu_layers=2, threads=1) as model:
        assert model.generate("Once", max_tokens=3).tokens


def test_workers_that_are_not_there(mortal: list):
    mortal[0].kill()
    with pytest.raises(DeviceLost, match=rf"{mortal[0].endpoint}.*ggmodel worker"):
        ggmodel.load(STORIES, rpc=endpoints(mortal))
    for wrong in ("nonsense", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:port"):
        with pytest.raises(ConfigError, match="host:port"):
            ggmodel.load(STORIES, rpc=[wrong])
    with pytest.raises(Unsupported, match="workers"):
        ggmodel.load(STORIES, backend="reference", rpc=endpoints(mortal))


def test_a_ggml_without_rpc_says_how_to_get_one(pair: list, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GGMODEL_GGML")
    with pytest.raises(Unsupported, match="`ggmodel ggml build`"):
        ggmodel.load(STORIES, rpc=endpoints(pair))


def test_layers_that_do_not_exist(pair: list):
    layers = GPULayersList([GPULayers("5", "RPC", (0,))])
    with pytest.raises(ConfigError, match="RPC:5"):
        ggmodel.load(STORIES, rpc=endpoints(pair), gpu_layers=layers)
    with pytest.raises(ConfigError, match="layer 99"):
        ggmodel.load(STORIES, rpc=endpoints(pair), gpu_layers={"RPC0": [99]})


@pytest.fixture
def run(rpc_environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess]:
    def command(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            env=rpc_environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return command


@pytest.mark.slow
def test_commands(pair: list, run: Callable[..., subprocess.CompletedProcess]):
    rpc = ",".join(endpoints(pair))
    options = ["--rpc", rpc, "--gpu-layers", "RPC0=0-1,RPC1=2-3", "--threads", "1"]
    sampling = ["--raw", "--temperature", "0", "-n", "8"]
    done = run("-m", "ggmodel", "run", str(STORIES), "Once upon a time", *options, *sampling)
    assert done.returncode == 0, done.stderr
    local = run("-m", "ggmodel", "run", str(STORIES), "Once upon a time", *sampling)
    assert done.stdout == local.stdout
    done = run("-m", "ggmodel", "estimate", str(STORIES), *options[:4])
    assert done.returncode == 0, done.stderr
    assert "RPC0" in done.stdout and "RPC1" in done.stdout
    done = run("-m", "ggmodel", "devices", "--rpc", rpc)
    assert done.returncode == 0, done.stderr
    assert all(e in done.stdout for e in endpoints(pair))


@pytest.mark.slow
def test_the_example(pair: list, run: Callable[..., subprocess.CompletedProcess]):
    example = str(ROOT / "examples" / "two_machines.py")
    done = run(example, str(STORIES), *endpoints(pair))
    assert done.returncode == 0, done.stderr
    assert "RPC0" in done.stdout and "RPC1" in done.stdout
    assert len(done.stdout.split()) > 40
    done = run(example)
    assert done.returncode == 0, done.stderr
    assert np.isin(["RPC0:"], done.stdout.split()).all()


def test_other_processes_are_told_of_devices_in_use_at_its_port(pair: list):
    options = {"gpu_layers": {"RPC1": [0]}, "threads": 1}
    with ggmodel.load(STORIES, rpc=endpoints(pair), **options) as model:
        runner = model.devices.runner
        assert runner is not None
        other = RunnerAtPort(runner.get_port())
        wanted = model.generate("Once upon a time", max_tokens=40, temperature=0)
        pieces = model.stream("Once upon a time", max_tokens=40, temperature=0)
        text = next(pieces)
        for _ in range(5):  # between its steps
            infos = get_devices_from_runner(other, 30.0)
            assert [info.name for info in infos] == ["RPC0", "RPC1"]
            assert all(info.total_memory for info in infos)
            text += next(pieces)
        assert text + "".join(pieces) == wanted
        assert other.get_active_device_ids() == runner.get_active_device_ids()
        assert [infos[1].device_id] == other.get_active_device_ids()
