"""The graphs of a model, recorded from a file without reading its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, Unsupported
from ..gguf_file import TensorSource
from ..ml import Context
from ..ml.node import Node
from ..model import Model, Span, Step
from ..model.walk import instances
from ..runner.engine.graphs import Trace, trace
from ..runner.engine.images import Encoded
from ..runner.loading.options import Options
from ..runner.loading.preparation import Preparation
from ..runner.loading.sources import open_source

_SHORTEST = 256  # positions of the context


@dataclass(frozen=True)
class Recorded:
    """A recorded graph.

    Attributes:
        title: of the graph, "text: 512 tokens".
        ops: in the order of recording.
        outputs: uids of its results.
        classes: path of a module → name of its class.
    """

    title: str
    ops: Sequence[Node]
    outputs: frozenset[int]
    classes: Mapping[str, str]


def record(
    file: str | Path | TensorSource,
    *,
    tokens: int = 512,
    parts: Sequence[str] = (),
    mmproj: str | Path | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    models: str | Path | None = None,
    strict: bool = True,
) -> list[Recorded]:
    """Records the vision graph and the text graph of a model.

    Args:
        tokens: in the batch. A prompt of more than one includes an image if the model is
            multimodal.
        parts: "vision", "text"; empty for all that the model has.

    Raises:
        ConfigError: `tokens` is below 1 or beyond the model's context.
        Unsupported: "vision" of a model without vision.
        Error: as `load`, except for errors of the vocabulary and of memory.
    """
    if tokens < 1:
        raise ConfigError(f"{tokens} tokens; there must be at least 1")
    options = Options(
        context_length=max(tokens, _SHORTEST),
        batch_size=tokens,
        gpu_layers=0,
        flash_attention=flash_attention,
        kv_type=kv_type,
        models=models,
        strict=strict,
        rpc=(),
        alloc_memory=False,
    )
    source = open_source(file, mmproj, models)
    with nullcontext() if source is file else source, Preparation(source, options) as steps:
        steps.configure()
        steps.fill()
        steps.fit()
        steps.validate()
        steps.trace()
        return _record(steps, tokens, parts)


def _record(steps: Preparation, tokens: int, parts: Sequence[str]) -> list[Recorded]:
    model, found = steps.model, []
    wanted = parts or ("vision", "text")
    classes = {one.scope: type(one.module).__name__ for one in instances(model)}
    kinds = [*model.modalities()]
    if "vision" in parts and not kinds:
        raise Unsupported(f"{steps.source.name} holds no vision tensors: it has no vision graph")
    with ExitStack() as opened:
        images = steps.engine.images
        items = [opened.enter_context(closing(images.largest(kind))) for kind in kinds]
        for kind, item in zip(kinds, items, strict=True):
            if item.ctx is not None and "vision" in wanted:
                found.append(_recorded(_title(model, kind), item.ctx, classes))
        if "text" in wanted:
            with closing(_text(steps, tokens, items[0] if items else None)) as traced:
                n = f"{tokens} tokens" if tokens > 1 else "1 token"
                found.append(_recorded(f"text: {n}", traced.ctx, classes, traced.output))
    return found


def _title(model: Model, kind: str) -> str:
    if kind != "image" or type(model).modalities is not Model.modalities:
        return f"vision: the largest {kind}" if kind != "audio" else "audio: the longest sound"
    width, height = model.largest_image
    return f"vision: an image of {width} x {height} pixels"


def _text(steps: Preparation, tokens: int, item: Encoded | None) -> Trace:
    """The recorded forward of a batch of tokens."""
    engine, model = steps.engine, steps.model
    spans = ()
    if item is not None and tokens > 1:
        one = max(item.embeddings, key=len)
        whole = len(one) if one.used is None else one.used
        spans = (Span(0, one, 0, whole if engine.inputs.whole else min(tokens, whole)),)
    outputs = tokens if model.only_embeds else 1
    step = Step.blank(tokens, outputs, model.own_components(), spans=spans)
    engine.cache.start_forward(step, reserve=True)
    forward = model.states if model.only_embeds else model
    return trace(forward, steps.backend, engine.cache, step)


def _recorded(
    title: str, ctx: Context, classes: Mapping[str, str], output: Node | None = None
) -> Recorded:
    ops = sorted(ctx.graph.schedule, key=lambda op: op.uid)
    read = {x.uid for op in ops for x in op.sources if x is not None}
    outputs = [ops[-1]] if output is None else [output]
    return Recorded(title, ops, frozenset(o.uid for o in outputs if o.uid not in read), classes)
