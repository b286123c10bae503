"""Profiles are held against the graph and the file; tests do not check how long things take, only
that the slow ones are found."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.convert import from_hf
from ggmodel.errors import ComputeError, ConfigError, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.ml import DType
from ggmodel.ml.ggml import compute, peaks
from ggmodel.ml.ggml.compute import Scheduler
from ggmodel.ml.ggml.ggml_backend import GGMLBackend
from ggmodel.ml.graph import Graph
from ggmodel.model import find
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine import graphs as runner_graphs
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench import profile as workbench
from ggmodel.workbench.nodes import VIEWS, folded, layer_of, module_of, parts_of, traffic
from ggmodel.workbench.profile import Profile, Workload, chrome_trace, profile
from tests.golden.files import load_golden
from tests.workbench.models import EMBEDDER, ROOT, SHAPES, STORIES


@pytest.fixture(scope="module")
def stories() -> Iterator[LoadedModel]:
    with ggmodel.load(STORIES, context_length=512, threads=1) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def small_sweep(monkeypatch: pytest.MonkeyPatch):
    """Measurements of the memory read enough to run, too little to say how fast it is."""
    monkeypatch.setattr(peaks, "_LEAST", 4 << 20)
    monkeypatch.setattr(peaks, "_CACHES", 0)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The graphs that profiles recorded."""
    found: list[Graph] = []

    def spy(*args: Any) -> Any:
        traced = runner_graphs.trace(*args)
        found.append(traced.ctx.graph)
        return traced

    monkeypatch.setattr(workbench, "trace", spy)
    return found


def one(model: LoadedModel, work: Workload, repetitions: int = 2) -> Profile:
    (found,) = profile(model, [work], repetitions)
    return found


WORKS = [Workload(), Workload(depth=40), Workload(prompt=12), Workload(prompt=12, depth=7)]


@pytest.mark.parametrize("work", WORKS, ids=lambda w: w.name)
def test_every_recorded_op_is_there_once(
    stories: LoadedModel, recorded: list[Graph], work: Workload
):
    found = one(stories, work)
    (graph,) = recorded
    assert [(op.name, op.op, op.shape) for op in found.ops] == [
        (node.name, node.op.name, node.shape) for node in graph.schedule if node.op
    ]
    assert {op.op for op in found.ops if op.seconds == 0} >= VIEWS & {op.op for op in found.ops}


def test_sums_agree(stories: LoadedModel):
    found = one(stories, Workload(prompt=16))
    for rows in (found.by_op(), found.by_module(), found.by_layer()):
        assert sum(row.seconds for row in rows) == pytest.approx(found.seconds_of_ops)
        assert sum(row.ops for row in rows) == len(found.ops)
        assert sum(row.nbytes for row in rows) == sum(op.nbytes for op in found.ops)
        assert sum(row.flops for row in rows) == sum(op.traffic.flops for op in found.ops)
    times = [row.seconds for row in found.by_op()]
    assert times == sorted(times, reverse=True)
    layers = [row.name for row in found.by_layer()]
    assert layers == ["embed", *(f"blk.{i}" for i in range(5)), "norm", "head"]
    assert {"blk.*.attn.q", "blk.*.ffn.down", "embed"} <= {r.name for r in found.by_module()}


@pytest.mark.parametrize("name", [STORIES, *(ROOT / "tests" / "fixtures").glob("*.gguf")])
def test_a_decoded_token_reads_the_file_s_weights_once(name: Path):
    """A dense model reads each weight as often as it is used, and one row of the embeddings."""
    with ggmodel.load(name, context_length=64, threads=1) as model:
        found = one(model, Workload(), 1)
        infos = dict(model.source.tensors)
        table = infos["token_embd.weight"]
        row = table.dtype.row_size(table.shape[0])
        tied = "output.weight" not in infos
        rest = sum(i.nbytes for n, i in infos.items() if n not in (table.name, "rope_freqs.weight"))
        factors = infos.get("rope_freqs.weight")
        layers = sum(1 for n in infos if n.endswith("attn_q.weight"))
        expected = rest + row + tied * table.nbytes
        expected += 2 * layers * factors.nbytes if factors else 0  # of queries and of keys
    assert sum(op.traffic.weights for op in found.ops) == expected


def test_where_there_is_nothing_to_compute(stories: LoadedModel):
    found = one(stories, Workload())
    for op in found.ops:
        if op.op in VIEWS:
            assert (op.seconds, op.nbytes, op.traffic.flops) == (0, 0, 0)
        else:
            assert op.nbytes > 0


def test_products(stories: LoadedModel):
    found = one(stories, Workload(prompt=10))
    config = stories.model.config
    (head,) = [op for op in found.ops if op.module == "head"]
    assert head.weight == "token_embd.weight" and head.kind == "mulmat Q8_0"
    assert head.traffic.flops == 2 * config.width * stories.engine.vocabulary
    gate = [op for op in found.ops if op.module == "blk.0.ffn.gate"]
    assert [op.traffic.flops for op in gate] == [2 * config.width * config.ffn * 10]
    assert gate[0].traffic.activations == 4 * 10 * (config.width + config.ffn)


def test_the_bytes_of_a_cache_are_rows_that_are_written(stories: LoadedModel):
    found = one(stories, Workload(prompt=3, depth=5))
    writes = [op for op in found.ops if op.op == "set_rows"]
    width = stories.model.config.k_width
    assert len(writes) == 10
    for op in writes:  # 3 rows of F32 and as many I64 read, 3 of F16 written
        assert op.traffic == (0, 3 * (4 * width + 8 + 2 * width), 0)


def test_experts_that_are_chosen():
    golden = load_golden("llama", "experts")
    source = from_hf(find("llama"), golden.config, golden.weights())
    experts, used = golden.config["num_local_experts"], golden.config["num_experts_per_tok"]
    with ggmodel.load(source, threads=1, context_length=64) as model:
        decoded, prompt = profile(model, [Workload(), Workload(prompt=8)], 1)
        whole = model.source.tensors["blk.0.ffn_gate_exps.weight"].nbytes
    for found, chosen in ((decoded, used), (prompt, min(experts, 8 * used))):
        ops = [op for op in found.ops if op.weight == "blk.0.ffn_gate_exps.weight"]
        assert [op.traffic.weights for op in ops] == [whole // experts * chosen]


def test_an_image():
    with ggmodel.load(SHAPES, threads=1, context_length=64) as model:
        found = one(model, Workload(image=True))
        weights = {n: i.nbytes for n, i in model.source.tensors.items() if n[:2] in ("v.", "mm")}
    assert sum(op.traffic.weights for op in found.ops) == sum(weights.values())
    conv = next(op for op in found.ops if op.op == "conv_2d")
    assert conv.seconds > 0 and conv.traffic.flops > 0  # in ggml it is several
    assert {row.name for row in found.by_layer()} >= {"vision.blk.0", "vision.blk.2", "projector"}


def test_an_embedder():
    with ggmodel.load(EMBEDDER, threads=1) as model:
        found = one(model, Workload(prompt=9))
        assert found.ops[0].op == "rows" and found.seconds > 0
        for work in (Workload(), Workload(prompt=3, depth=4)):
            with pytest.raises(Unsupported, match=r"only embeds|reads a text at once"):
                one(model, work)


def test_requests_go_on_afterwards(stories: LoadedModel):
    want = stories.generate("A fox", temperature=0, max_tokens=10).tokens
    list(profile(stories, [Workload(), Workload(prompt=9, depth=5)], 1))
    assert stories.generate("A fox", temperature=0, max_tokens=10).tokens == want


# time

PAUSE = 0.005  # seconds, long beside any op of this model


def test_time_goes_to_the_op_that_takes_it(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    real = compute.lib.ggml_backend_graph_compute
    names = {b"blk.2.ffn.up", b"blk.4.attn.rope"}

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(compute_lib, name)

        def ggml_backend_graph_compute(self, backend: Any, graph: Any) -> Any:
            lib = compute_lib
            if lib.ggml_graph_n_nodes(graph) == 1:
                node = lib.ggml_graph_node(graph, 0)
                if compute.ffi.string(lib.ggml_get_name(node)) in names:
                    time.sleep(PAUSE)
            return real(backend, graph)

    compute_lib = compute.lib
    monkeypatch.setattr(compute, "lib", Slow())
    found = one(stories, Workload())
    slow = [op.name for op in found.ops if op.seconds > PAUSE / 2]
    assert sorted(slow) == ["blk.2.ffn.up", "blk.4.attn.rope", "blk.4.attn.rope"]
    assert found.seconds < 3 * PAUSE <= found.seconds_apart
    assert found.by_module()[0].seconds >= PAUSE


def test_both_ways_give_the_same(stories: LoadedModel):
    """Op by op the logits are those of the graph at once, but for what ggml fuses."""
    engine, tokens = stories.engine, np.arange(1, 9, dtype=np.int32)
    values: list[np.ndarray] = []

    def both_ways() -> None:
        with Scoring(engine).graphs(stories.model, 1, len(tokens)) as graphs:
            step = workbench._step(graphs, tokens, 0, True)
            graphs.cache.start_forward(step)
            traced = runner_graphs.trace(graphs.forward, graphs.backend, graphs.cache, step)
            executable: Any = graphs.backend.compile(traced.ctx.graph, (traced.output,))
            executable.run(step)
            values.append(executable.value(traced.output).copy())
            executable.value(traced.output)[...] = 0
            seconds = executable.run_apart(step)
            values.append(executable.value(traced.output).copy())
            ops = len(traced.ctx.graph.schedule)
            executable.close()
            traced.close()
        assert len(seconds) == ops and min(seconds) == 0

    engine.call(both_ways)
    assert np.abs(values[0]).max() > 1
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5, atol=1e-5)


def test_on_a_scheduler(monkeypatch: pytest.MonkeyPatch):
    """Where there are devices ggml itself says when a node begins and ends."""
    with ggmodel.load(STORIES, context_length=64, threads=1) as model:
        backend: Any = model.backend
        assert isinstance(backend, GGMLBackend)
        scheduler = Scheduler(backend.hardware, False)
        monkeypatch.setattr(backend, "compute_for", lambda graph: scheduler)
        found = one(model, Workload())
        timed = [op for op in found.ops if op.op == "mulmat"]
        assert timed and all(op.seconds > 0 for op in timed)
        assert found.seconds_apart > sum(op.seconds for op in timed) > 0
        backend._compute[True] = scheduler  # closed with it


def test_what_fails_is_an_error(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def ggml_backend_graph_compute(self, backend: Any, graph: Any) -> Any:
            return real.GGML_STATUS_FAILED

    real = compute.lib
    monkeypatch.setattr(compute, "lib", Failing())
    with pytest.raises(ComputeError, match="ggml stopped computing"):
        one(stories, Workload())


# peaks


def test_peaks(stories: LoadedModel):
    backend: Any = stories.backend
    assert 0 < peaks.op_overhead(backend.hardware) < 0.01
    bandwidth = peaks.read_bandwidth(backend.hardware)
    assert bandwidth is not None and 1e8 < bandwidth < 1e13
    for dtype in (DType.F32, DType.Q8_0, DType.Q4_0):
        assert peaks.product_rate(backend.hardware, dtype) > 1e8
    found = one(stories, Workload())
    assert found.peaks.flops.keys() == {"Q8_0"}


def test_no_sweep_without_memory(stories: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peaks, "_LEAST", 1 << 60)
    assert one(stories, Workload(), 1).peaks.bandwidth is None


def test_the_last_cache(tmp_path: Path):
    assert peaks.last_cache(tmp_path) == 0
    for i, size in enumerate(["32K", "2048K", "16M", "?"]):
        (tmp_path / f"index{i}").mkdir()
        (tmp_path / f"index{i}" / "size").write_text(size + "\n")
    assert peaks.last_cache(tmp_path) == 16 << 20


# where an op belongs


def test_paths():
    assert parts_of("text.blk.3.attn.q") == ("text", "blk.3", "attn", "q")
    assert parts_of("") == () and parts_of("head") == ("head",)
    assert parts_of("vision.global.blk.10") == ("vision", "global", "blk.10")
    assert layer_of("text.blk.3.attn.q") == "text.blk.3" and layer_of("projector.norm") == (
        "projector.norm"
    )
    assert folded("blk.3.attn.experts.12.up") == "blk.*.attn.experts.*.up"
    assert folded("blk.31") == "blk.*" and folded("dense_2") == "dense_2"


def test_modules_of_ops(stories: LoadedModel, recorded: list[Graph]):
    one(stories, Workload(), 1)
    (graph,) = recorded
    found = [(module_of(node), node.op.name) for node in graph.schedule if node.op]
    assert found[:3] == [
        ("embed", "rows"), ("blk.0.attn_norm", "rms_norm"), ("blk.0.attn_norm", "mul"),
    ]  # fmt: skip
    assert ("blk.0", "add") in found and ("blk.0.attn", "flash_attention") in found
    assert found[-1] == ("head", "mulmat")
    assert all(traffic(node).weights >= 0 for node in graph.schedule)


def test_a_module_that_is_called_like_its_op(stories: LoadedModel):
    with stories.backend.new_context() as ctx, ctx.trace():
        result = ctx.input().from_floats(np.ones((2, 4), np.float32)).silu()
        assert module_of(result) == ""
        result.adopt_name("ffn.silu")
        assert module_of(result) == "ffn.silu"


# timelines


def within(e: Any, outer: Any) -> bool:
    begins = e["ts"] >= outer["ts"] - 1e-6
    ends = e["ts"] + e["dur"] <= outer["ts"] + outer["dur"] + 1e-6
    return begins and ends and e["name"].startswith(outer["name"] + ".")


def test_a_timeline(stories: LoadedModel):
    profiles = list(profile(stories, [Workload(prompt=8), Workload()], 1))
    read = json.loads(json.dumps(chrome_trace(profiles)))
    events = read["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"}
    for pid, found in enumerate(profiles, 1):
        complete = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        rows: dict[int, list[Any]] = {}
        for e in complete:
            assert e["dur"] >= 0 and e["ts"] >= 0 and isinstance(e["name"], str)
            rows.setdefault(e["tid"], []).append(e)
        (whole,) = rows[0]
        assert whole["name"] == found.work.name
        assert whole["dur"] == pytest.approx(found.seconds_of_ops * 1e6)
        for tid, row in rows.items():
            for a, b in pairwise(row):
                assert a["ts"] + a["dur"] <= b["ts"] + 1e-6  # in order, next to each other
            if 1 < tid < max(rows):  # modules lie within those around them
                assert all(any(within(e, outer) for outer in rows[tid - 1]) for e in row)
        ops = rows[max(rows)]
        assert [e["args"]["tensor"] for e in ops] == [o.name for o in found.ops if o.seconds]
        assert {e["name"] for e in rows[1]} >= {"embed", "blk.0", "head"}
    named = {(e["pid"], e["tid"]): e["args"] for e in events if e["name"] == "thread_name"}
    assert named[1, 1] == {"name": "modules, depth 1"}
    assert {p for p, _ in named} == {1, 2}


# refusals


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Workload(prompt=-1), "prompts and depths are 0 or more"),
        (Workload(depth=-1), "prompts and depths are 0 or more"),
        (Workload(prompt=513), "computed in batches of 512"),
        (Workload(depth=512), "tg1 @ d512 needs 513 positions of 512"),
    ],
)
def test_what_cannot_be_profiled(stories: LoadedModel, work: Workload, message: str):
    with pytest.raises(ConfigError, match=message):
        one(stories, work)


def test_no_repetitions(stories: LoadedModel):
    with pytest.raises(ConfigError, match="0 repetitions"):
        one(stories, Workload(), 0)


def test_a_model_that_sees_nothing(stories: LoadedModel):
    with pytest.raises(Unsupported, match="takes no images"):
        one(stories, Workload(image=True))


def test_without_ggml(source: MemorySource):
    with (
        ggmodel.load(source, backend="reference", context_length=16) as model,
        pytest.raises(Unsupported, match="a profile needs ggml in this process"),
    ):
        one(model, Workload())
