"""Values are those of a plain run, and each module is seen once it is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import PromptError
from ggmodel.gguf_file import MemorySource
from ggmodel.ml.ggml.compute import Scheduler
from ggmodel.ml.node import Node
from ggmodel.model.walk import instances
from ggmodel.runner import LoadedModel
from ggmodel.runner.engine.graphs import trace
from ggmodel.runner.engine.scoring import Scoring
from ggmodel.workbench.observe import Recording, watch_text
from tests.workbench.saved import source_of

IDS = [1, 9, 30, 17, 40]


class Seen:
    """All calls and values of a run."""

    def __init__(self, model: LoadedModel, ids: list[int]):
        self.values: dict[int, np.ndarray] = {}
        self.order: list[Node] = []
        self.recording: Any = None
        self.rows = watch_text(model, model.prompts.read(ids), self.begin)

    def begin(self, recording: Recording):
        self.recording = recording
        return self.see

    def see(self, node: Node, value: np.ndarray) -> None:
        self.order.append(node)
        self.values[node.uid] = value.copy()

    def result(self, path: str) -> np.ndarray:
        (call,) = (c for c in self.recording.calls if c.module.path == path)
        return self.values[call.result.uid].reshape(call.result.shape[::-1])


@pytest.fixture(params=["ggml", "reference"])
def model(request: pytest.FixtureRequest):
    with ggmodel.load(source_of("llama"), backend=request.param, kv_type="f32") as loaded:
        yield loaded


def test_rows_are_the_logits_of_a_plain_run(model: LoadedModel):
    seen = Seen(model, IDS)
    assert np.array_equal(seen.rows, model.logits(IDS))
    assert np.array_equal(seen.result(""), seen.rows)
    assert np.array_equal(seen.result("head"), seen.rows)


def test_every_value_is_what_an_output_of_that_name_would_be(model: LoadedModel):
    """Although memory is used again: in the whole run each is read at its time."""
    seen = Seen(model, IDS)
    named = {n.name: n for n in seen.order if n.named}
    plain = _plain_values(model, IDS)
    assert {"embed", "blk.0.attn.v", "blk.0.ffn.up", "blk.1.ffn.gate", "head"} <= set(plain)
    for name, value in plain.items():
        got = seen.values[named[name].uid]
        np.testing.assert_array_equal(got.reshape(value.shape), value, err_msg=name)


def _plain_values(model: LoadedModel, ids: list[int]) -> dict[str, np.ndarray]:
    """Named results of the same graph, all of them outputs."""
    engine = model.engine
    found: dict[str, np.ndarray] = {}

    class All:
        def __init__(self, cache: Any, histories: Any):
            self.cache, self.histories = cache, histories

        def run(self, step: Any) -> np.ndarray:
            traced = trace(model.model, model.backend, self.cache, step)
            nodes = tuple(n for n in traced.ctx.graph.schedule if n.named)
            executable = model.backend.compile(traced.ctx.graph, nodes)
            executable.run(step)
            found.update({n.name: executable.value(n).copy() for n in nodes})
            rows = found["head"].reshape(len(step.outputs), -1)
            executable.close()
            traced.close()
            return rows

    def run() -> None:
        with Scoring(engine).graphs(model.model, 1, len(ids)) as graphs:
            list(
                Scoring(engine).batches(
                    All(graphs.cache, graphs.histories), 0, np.array(ids, np.int32), 0
                )
            )

    engine.call(run)
    return found


def test_what_is_inside_of_a_module_comes_before_it(model: LoadedModel):
    seen = Seen(model, IDS)
    paths = [call.module.path for call in seen.recording.calls]
    assert paths[0] == "embed"
    assert paths[-3:] == ["norm", "head", ""]
    assert paths.index("layers[1].attn.out") < paths.index("layers[1].attn")
    assert paths.index("layers[1].attn") < paths.index("layers[1]")
    assert len(paths) == len(set(paths)) == 28
    call = next(c for c in seen.recording.calls if c.module.path == "layers[0].attn.out")
    assert call.module.scope == "blk.0.attn.out"
    assert call.input is not None and call.input.uid in seen.values


def test_places_cover_the_declaration(model: LoadedModel):
    found = {one.path: one.scope for one in instances(model.model)}
    assert found["layers[1].ffn.gate"] == "blk.1.ffn.gate"
    assert found[""] == ""


def test_a_scheduler_shows_the_same_values(monkeypatch: pytest.MonkeyPatch):
    """A machine with devices uses one; here its only device is the CPU."""
    with ggmodel.load(source_of("llama"), kv_type="f32") as model:
        plain = Seen(model, IDS)
        scheduler = Scheduler(model.backend.hardware, False)  # type: ignore[attr-defined]
        monkeypatch.setattr(model.backend, "compute_for", lambda graph: scheduler)
        seen = Seen(model, IDS)
        assert [n.name for n in seen.order if n.named] == [n.name for n in plain.order if n.named]
        for a, b in zip(seen.recording.calls, plain.recording.calls, strict=True):
            np.testing.assert_array_equal(
                seen.values[a.result.uid], plain.values[b.result.uid], err_msg=a.module.path
            )

        def fail(node: Node, value: np.ndarray) -> None:
            raise ValueError("enough")

        with pytest.raises(ValueError, match="enough"):
            watch_text(model, model.prompts.read(IDS), lambda recording: fail)
        scheduler.close()


def test_nothing_is_noted_in_a_plain_run(model: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    from ggmodel.ml.graph import Graph

    graphs: list[Graph] = []
    init = Graph.__init__

    def noting(self: Graph, *args: Any) -> None:
        init(self, *args)
        graphs.append(self)

    monkeypatch.setattr(Graph, "__init__", noting)
    model.logits(IDS)
    assert graphs
    assert all(graph.calls is None for graph in graphs)


def test_a_prompt_longer_than_a_batch():
    with ggmodel.load(source_of("llama"), batch_size=4) as model:
        with pytest.raises(PromptError, match="--batch-size"):
            watch_text(model, model.prompts.read(IDS), lambda recording: lambda node, value: None)
        assert model.logits(IDS).shape == (5, 48)


def test_a_model_that_only_embeds(vary: Any):
    from ggmodel.convert import from_hf
    from ggmodel.model import find
    from tests.golden.files import load_embeddings

    golden = load_embeddings("gemma3", "embedding_alone")
    source: MemorySource = from_hf(find("gemma3", pooled=True), golden.config, golden.weights())
    with ggmodel.load(source, kv_type="f32") as model:
        assert Seen(model, golden.texts[0]).rows.shape == (len(golden.texts[0]), 64)
