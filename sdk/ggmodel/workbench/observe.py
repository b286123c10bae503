"""Intermediate results of a model: those of its modules and of single ops, in execution order.

Values are passed on while they exist and not kept, so a graph takes no more memory than usual.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import PromptError
from ..ml import Context, Tensor
from ..ml.node import Node
from ..model import Batch, Input, Model, MultimodalEmbedding, Prepared, Step
from ..model.multimodal import IMAGE_BATCH
from ..model.walk import Instance, instances
from ..runner import LoadedModel
from ..runner.engine.graphs import Graphs, trace
from ..runner.engine.images import record
from ..runner.engine.scoring import Scoring

if TYPE_CHECKING:
    from ..ml.graph import Graph

See = Callable[[Node, np.ndarray], None]


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A call of a module that has returned.

    Attributes:
        input: its first argument that is a tensor, if it was computed.
        result: the tensor it returned, or the first of several.
    """

    module: Instance
    input: Node | None
    result: Node | None


@dataclass(frozen=True, eq=False)
class Recording:
    """A graph that is about to be computed.

    Attributes:
        calls: in the order in which they returned, inner modules before outer ones.
    """

    graph: Graph
    calls: list[ModuleCall]


Begin = Callable[[Recording], See]


def watch_text(model: LoadedModel, numbers: np.ndarray, begin: Begin) -> np.ndarray:
    """Computes a prompt in a cache of its own, every row of it an output.

    Args:
        numbers: int32 [n], see `Prompts.read`.
        begin: called with the recording; returns a function that is called with every op's result
            and its raw value once computed. The value does not outlive that call.

    Returns:
        Logits float32 [n, vocabulary], or hidden states [n, width] of models that only embed.

    Raises:
        PromptError: the prompt is longer than a batch.
    """
    engine, net = model.engine, model.model
    if len(numbers) > engine.batch_size:
        raise PromptError(
            f"the prompt has {len(numbers)} tokens, but must fit one batch of {engine.batch_size}; "
            "shorten it, or give a larger --batch-size"
        )

    def forward(ctx: Context, batch: Batch) -> Tensor:
        ctx.graph.calls = []
        return net.states(ctx, batch) if net.only_embeds else net(ctx, batch)

    group = engine.inputs.largest_group(numbers.tolist())

    def watched() -> list[np.ndarray]:
        with Scoring(engine).graphs(forward, 1, len(numbers), group) as graphs:
            each = _Each(forward, graphs, model, begin)
            return list(Scoring(engine).batches(each, 0, numbers, 0))

    rows = engine.call(watched)
    if len(rows) > 1:
        raise PromptError("the images of this prompt do not fit a batch together; give one image")
    return rows[0]


def watch_decode(
    model: LoadedModel, numbers: np.ndarray, start: int, begin: Callable[[int], Begin]
) -> None:
    """Computes the first inputs of a prompt as one batch, unwatched, and each one behind them
    alone.

    Args:
        numbers: int32 [n], see `Prompts.read`.
        start: number of the inputs in the batch; no group of inputs begins before and ends behind.
        begin: index of an input → see `watch_text`.
    """
    engine, net = model.engine, model.model

    def forward(ctx: Context, batch: Batch) -> Tensor:
        ctx.graph.calls = []
        return net(ctx, batch)

    group = engine.inputs.largest_group(numbers.tolist())

    def watched() -> None:
        with Scoring(engine).graphs(forward, 1, len(numbers), group) as graphs:
            list(Scoring(engine).batches(graphs, 0, numbers[:start], 0))
            for i in range(start, len(numbers)):
                each = _Each(forward, graphs, model, begin(i))
                list(Scoring(engine).batches(each, 0, numbers[i : i + 1], i))

    engine.call(watched)


def watch_item(
    model: LoadedModel, kind: str, prepared: Prepared, begin: Begin
) -> list[MultimodalEmbedding]:
    """Encodes an image, or an item of another kind. Other arguments as for `watch_text`.

    Raises:
        Unsupported: the model takes no such items.
    """
    model.engine.images.modality(kind)
    return model.engine.call(lambda: _watched_item(model, kind, prepared, begin))


def _watched_item(
    model: LoadedModel, kind: str, prepared: Prepared, begin: Begin
) -> list[MultimodalEmbedding]:
    net = model.model
    with model.backend.new_context().set_batch_size(IMAGE_BATCH) as ctx:
        ctx.graph.calls = []
        with ctx.trace():
            made = record(net, kind, ctx, prepared)
        outputs = [t for m in made if m.tensor is not None for t in (m.tensor, *m.parts)]
        ctx.forward(*outputs)
        with closing(model.backend.compile(ctx.graph, tuple(outputs))) as executable:
            executable.run_each(prepared, begin(_recording(net, ctx.graph)))
            rows = iter([executable.value(t).reshape(-1, t.dim(0)).copy() for t in outputs])
    return [
        MultimodalEmbedding(None, m.data, kind=kind)
        if m.tensor is None
        else MultimodalEmbedding(
            next(rows), m.data, m.used, kind=kind, parts=[next(rows) for _ in m.parts]
        )
        for m in made
    ]


def watch_source(model: LoadedModel, ids: list[int], begin: Begin) -> np.ndarray:
    """Encodes the tokens of a prompt, for a model whose encoder reads them. Other arguments as for
    `watch_text`.

    Returns:
        The prompt for `watch_text`, int32 [n].
    """
    source = Prepared(np.array(ids, np.float32))
    return model.prompts.read([watch_item(model, model.model.prompt_item, source, begin)])


def prompt_with(
    model: LoadedModel, ids: list[int], placeholder: int, encoded: list[MultimodalEmbedding]
) -> np.ndarray:
    """A prompt for `watch_text` with images in place of the reference's placeholders.

    Raises:
        PromptError: the number of placeholders is not that of the embeddings' rows.
    """
    inputs = [Input(token) for token in ids]
    of_token: dict[int, list[MultimodalEmbedding]] = {}
    for embedding in encoded:
        of_token.setdefault(embedding.token(placeholder), []).append(embedding)
    for token, embeddings in of_token.items():
        sizes = [1 if model.engine.inputs.whole else len(e) for e in embeddings]
        free = [i for i, token_id in enumerate(ids) if token_id == token]
        if len(free) != sum(sizes):
            raise PromptError(
                f"the reference has {len(free)} placeholders (token {token}) for images, the "
                f"model made {sum(sizes)} rows of them"
            )
        for embedding, size in zip(embeddings, sizes, strict=True):
            inputs[free[0]] = Input(token, embedding)
            free = free[size:]
    return model.prompts.read(inputs)


class _Each:
    """Stands in for graphs: records a step, and computes it op by op."""

    def __init__(self, forward: Any, graphs: Graphs, model: LoadedModel, begin: Begin):
        self.forward, self.model, self.begin = forward, model, begin
        self.cache, self.histories = graphs.cache, graphs.histories

    def run(self, step: Step) -> np.ndarray:
        backend, net = self.model.backend, self.model.model
        with closing(trace(self.forward, backend, self.cache, step)) as traced:
            graph, output = traced.ctx.graph, traced.output
            with closing(backend.compile(graph, (output,))) as executable:
                executable.run_each(step, self.begin(_recording(net, graph, output)))
                return executable.value(output).reshape(len(step.outputs), -1).copy()


def _recording(model: Model, graph: Graph, output: Tensor | None = None) -> Recording:
    everywhere = list(instances(model))
    instance_of = {id(instance.module): instance for instance in reversed(everywhere)}
    calls = []
    for call, args, result in graph.calls or ():
        module = instance_of.get(id(getattr(call, "__self__", None)))
        if module is not None:
            calls.append(ModuleCall(module, _computed(args), _computed((result,))))
    if output is not None:
        calls.append(ModuleCall(everywhere[0], None, output))
    return Recording(graph, calls)


def _computed(values: Any) -> Node | None:
    """The first tensor among values, if it was computed."""
    for value in values:
        if isinstance(value, (tuple, list)) and value:
            value = value[0]
        if isinstance(value, Node):
            return value if value.op is not None else None
    return None
