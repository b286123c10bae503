"""Adapters as files: described, written in llama.cpp's layout, merged into a model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeVar

from ..convert.peft import CONFIG, WEIGHTS, read_peft
from ..convert.quantize import typed
from ..convert.write import write_gguf
from ..errors import ConfigError, FormatError
from ..gguf_file import TensorSource, open_gguf
from ..loading import open_adapter, open_source
from ..model import Model
from ..runner.loading.adapters import ALPHA, MAGNITUDE, A, B, MergedSource, strengths_of
from ..runner.loading.preparation import Preparation
from ..runner.options import Options

Progress = Callable[[float], None]
_T = TypeVar("_T")
_TYPE = "general.file_type"  # names one type for all weights


def opened_for(model: TensorSource, adapter: str | os.PathLike[str]) -> TensorSource:
    """An adapter in the names of a model's file; no weight is read.

    Raises:
        Error: as `LoadedModel.adapters.add`, but for what no graph reads.
    """
    return _with_model(model, lambda net: open_adapter(adapter, net))


def _with_model(source: TensorSource, function: Callable[[Model], _T]) -> _T:
    """The result of a function of the architecture with its tensors."""
    with Preparation(source, Options(alloc_memory=False, gpu_layers=0)) as steps:
        steps.configure()
        steps.fill()
        steps.fit()
        return function(steps.model)


def described(adapter: str | os.PathLike[str]) -> dict[str, Any]:
    """An adapter's format, kind, architecture or model, alpha, ranks, parameters, and the number of
    its changes by the ends of the weights' names.

    Raises:
        FormatError: it is no adapter.
    """
    path = Path(adapter)
    if path.is_dir():
        config, shapes = read_peft(path)
        a = {n: s for n, s in shapes.items() if n.endswith((".lora_A.weight", ".lora_embedding_A"))}
        ends = [name.split(".lora_")[0].removesuffix(".base_layer").split(".")[-1] for name in a]
        dora, ranks = any("lora_magnitude" in n for n in shapes), {shape[0] for shape in a.values()}
        about: dict[str, Any] = {"format": f"PEFT ({CONFIG}, {WEIGHTS})"}
        about["model"], about["alpha"] = (
            config.get("base_model_name_or_path"),
            config.get("lora_alpha"),
        )
    else:
        with closing(open_gguf(path)) as source:
            keys = source.metadata
            if keys.get("general.type") != "adapter":
                raise FormatError(
                    f"{path} is no adapter: its general.type is {keys.get('general.type')!r:.80}"
                )
            shapes = {name: info.shape for name, info in source.tensors.items()}
            about = {"format": "GGUF", "architecture": keys.get("general.architecture")}
            about["alpha"] = float(keys.get(ALPHA, 0.0))
        ends = [n.removesuffix(f".weight{A}").split(".")[-1] for n in shapes if n.endswith(A)]
        dora = any(name.endswith(MAGNITUDE) for name in shapes)
        ranks = {shape[0] for name, shape in shapes.items() if name.endswith(B)}
    parameters = 0
    for shape in shapes.values():
        count = 1
        for size in shape:
            count *= size
        parameters += count
    about |= {"kind": "DoRA" if dora else "LoRA", "ranks": sorted(ranks), "parameters": parameters}
    return about | {"changes": dict(sorted(Counter(ends).items()))}


def convert_adapter(
    model: Any, adapter: str | os.PathLike[str], out: str | Path, *, force: bool = False
) -> dict[str, Any]:
    """Writes an adapter's folder as a GGUF file, F32. llama.cpp reads it, unless it is DoRA.

    Args:
        model: a source, or a file, folder or name, of the model that it changes.

    Returns:
        what `described` says of the file.
    """
    with closing(open_source(model)) as source, closing(opened_for(source, adapter)) as opened:
        _write(opened, dict(opened.metadata), out, force, None)
    return described(out)


def merge_adapters(
    model: Any,
    adapters: Mapping[str, float],
    out: str | Path,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Writes a model with the changes of adapters in its weights; those are F16, or F32 where they
    were F32 or BF16, and `ggmodel quantize` gives them another type.

    Args:
        model: a GGUF file, or its name.
        adapters: path → strength.

    Raises:
        ConfigError: DoRA beside other adapters: each changes the model's own weights. A strength is
            no number.
    """
    with ExitStack() as stack:
        base = source = stack.enter_context(closing(open_source(model)))
        metadata = {key: value for key, value in typed(base).items() if key != _TYPE}
        strengths = strengths_of(adapters).items()
        opened = [(opened_for(base, path), strength) for path, strength in strengths]
        dora = any(name.endswith(MAGNITUDE) for one, _ in opened for name in one.tensors)
        if dora and len(opened) > 1:
            raise ConfigError("DoRA adapters are merged one by one: each is of the model's weights")
        headless = _with_model(base, lambda net: net.only_embeds)
        for one, strength in opened:
            source = MergedSource(source, one, strength, headless=headless)
        _write(source, metadata, out, force, progress)


def _write(
    source: TensorSource,
    metadata: Mapping[str, Any],
    out: str | Path,
    force: bool,
    progress: Progress | None,
) -> None:
    infos = list(source.tensors.values())
    write_gguf(
        out,
        metadata,
        infos,
        lambda t: source.data(t.name),
        source.release,
        force=force,
        progress=progress,
    )
