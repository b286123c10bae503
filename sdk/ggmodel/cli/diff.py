"""`ggmodel diff`: the module diff of a model and its reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, PromptError
from .loading import Loading
from .options import (
    File,
    Json,
    Prompt,
    Tokens,
    checkpoint_folder,
    complete_model,
    expanded,
    prompt_of,
)
from .requests import MediaFile
from .terminal import console, count, report, table

if TYPE_CHECKING:
    from ..gguf_file import DType
    from ..runner import LoadedModel
    from ..workbench.activations import Activations, Errors
    from ..workbench.diff.report import Diff, ModuleDiff

_STYLES = {"diverges": "bold red", "unused": "bold red", "follows": "yellow", "elsewhere": "dim"}


_HFDir = Annotated[
    str | None,
    typer.Argument(
        callback=checkpoint_folder,
        autocompletion=complete_model,
        metavar="[HF_DIR]",
        help="The Hugging Face checkpoint that the file was made from, or its name.",
        show_default=False,
    ),
]
_Reference = Annotated[
    str | None, typer.Option(metavar="FILE", help="Compare with saved activations, without torch.")
]
_SaveReference = Annotated[
    str | None, typer.Option(metavar="FILE", help="Save the activations of transformers, as .npz.")
]
_HTML = Annotated[str | None, typer.Option(metavar="FILE", help="Write an HTML report.")]
_All = Annotated[
    bool, typer.Option("--all", help="Show all modules, not only those of layers with an error.")
]


@expanded("kv_type", "flash_attention", "rpc", "parallel")
def diff(
    file: File,
    hf_dir: _HFDir = None,
    prompt: Prompt = None,
    tokens: Tokens = None,
    reference: _Reference = None,
    save_reference: _SaveReference = None,
    html: _HTML = None,
    everything: _All = False,
    as_json: Json = False,
    *,
    item: MediaFile,
    loading: Loading,
) -> None:
    """Compare a model with transformers, module by module.

    Both compute the same prompt, in float32. Modules are shown in execution order with the error of
    their outputs; the first whose own error exceeds the bound is marked. The exit status is 1 if
    there is one.
    """
    from ..gguf_file import DType
    from ..storage import check_target, write_text
    from ..workbench.activations import Activations, same_prompt
    from ..workbench.diff import diff as compare
    from ..workbench.diff import types_of
    from ..workbench.diff.report import page

    if reference is not None:
        files = {f"--{kind}": path for kind, path in vars(item).items()}
        for name, value in {"HF_DIR": hf_dir, **files, "--save-reference": save_reference}.items():
            if value is not None:
                raise ConfigError(f"give --reference or {name}, not both: nothing is computed anew")
    for path in filter(None, (html, save_reference)):
        check_target(path)
    saved = None if reference is None else Activations.load(reference)
    differs = ""
    text, folder = prompt_of(prompt, tokens), hf_dir or (file if Path(file).is_dir() else None)
    with _loaded(loading, file, folder, saved, text) as (model, remarks):
        if saved is None:
            if folder is None:
                raise ConfigError("give HF_DIR, or --reference with activations saved before")
            types = {DType.F32} | types_of(model.model)
            if save_reference is not None:
                types |= {DType.F16, DType.BF16, DType.Q8_0}  # for other files
            saved, differs = _run(model, folder, text, item.one(tokens), types)
            if save_reference is not None:
                saved.save(save_reference)
        elif prompt is not None or tokens is not None:
            same_prompt(saved, model.prompts.ids(text), reference or "")
        try:
            result = compare(model, saved)
        except PromptError as error:
            if not differs:
                raise
            raise PromptError(f"{differs}; so no module is compared: {error}") from error
    result.prompt = differs
    result.remarks += remarks
    if html is not None:
        write_text(html, page(result))
    report(as_json, result.as_dict(), lambda: _print(result, everything), result.ok)


@contextmanager
def _loaded(
    loading: Loading,
    file: str,
    folder: str | None,
    saved: Activations | None,
    prompt: str | list[int],
) -> Iterator[tuple[LoadedModel, list[str]]]:
    """The model, loaded with the context length that goes with the reference, and remarks on it."""
    from ..convert.checkpoint import Checkpoint
    from ..workbench.diff.inputs import fitting_context

    context, remarks = None, []
    if loading.context_length is None and (saved is not None or folder is not None):
        config: Mapping[str, Any] = {}
        if saved is not None:
            config = saved.config
        elif folder is not None:
            with Checkpoint.open(folder) as checkpoint:
                config = checkpoint.config
        # Only a prompt beyond that needs the factors for long texts.
        context = fitting_context(config, 1)
    exact = {"kv_type": "f32", "flash_attention": "off", "rpc": ()}
    if context is not None:
        with loading.load(file, **exact, context_length=context) as model:
            n = len(saved.ids) if saved is not None else model.length(prompt)
            if n <= context:
                remarks.append(
                    f"LongRoPE: loaded with --context-length {context}, for transformers takes the "
                    f"factors for short texts for {count(n, 'token')}"
                )
                yield model, remarks
                return
    with loading.load(file, **exact) as model:
        yield model, remarks


def _run(
    model: LoadedModel,
    folder: str,
    prompt: str | list[int],
    item: tuple[str, str] | None,
    types: Collection[DType],
) -> tuple[Activations, str]:
    """The results of transformers, rounded to types, too; how the item's preparation differs."""
    import numpy as np

    from ..chat.messages import OPTIONS
    from ..convert.checkpoint import Checkpoint
    from ..convert.declaration import pairs
    from ..workbench import reference
    from ..workbench.diff import need_same_kind
    from ..workbench.diff.inputs import placeholder_of
    from ..workbench.diff.preparation import differing

    with Checkpoint.open(folder) as checkpoint:
        config = checkpoint.config
        need_same_kind(model, config, folder)
        names = [pair.name for pair in pairs(model.model, checkpoint.tensors)]
    kind, data, differs = "", dict[str, Any](), ""
    if item is None:
        inputs = {"input_ids": np.array(model.prompts.ids(prompt), np.int32)}
    else:
        assert isinstance(prompt, str)  # ids and an item are not given together
        kind, path = item
        modality = model.engine.images.modality(kind)
        text = prompt if modality.marker in prompt else f"{modality.marker}{prompt}"
        opened = modality.open(path)
        prepared = modality.prepare(opened)
        data = dict(prepared.data)
        inputs = reference.item_inputs(folder, text, kind, opened)
        ours = model.prompts.with_items(text, {OPTIONS[kind]: [opened]})
        placeholder = placeholder_of(config, kind)
        differs = differing(model, kind, prepared, inputs, list(ours), placeholder)
    embeds = model.model.only_embeds
    ran = reference.run(folder, names, inputs, kind=kind, image=data, embeds=embeds, types=types)
    return ran, differs


def _print(d: Diff, everything: bool) -> None:
    from ..workbench.diff.report import by_layer, worst

    out = console()
    rows: list[tuple[tuple[str, ...], str]] = []
    alone = d.first is not None and d.first.token is not None
    for layer, group in by_layer(d.decode if alone else d.rows):
        if not everything and layer and not any(r.wrong for r in group):
            rows.append((_summary(layer, group, worst(group)), "dim"))
            continue
        for row in group:
            mark = "→ " if row is d.first else "  "
            rows.append(
                ((mark + (row.path or "the model"), *_cells(row)), _STYLES.get(row.verdict, ""))
            )
    header = ("  module", "checkpoint", "shape", "NMSE", "largest", "relative", "verdict")
    grid = table([cells for cells, _ in rows], header, right="345", fold=1)
    for line, (_, style) in zip(grid.rows, rows, strict=True):
        line.style = style
    out.print(grid)
    for name in d.others:
        out.print(f"only in the reference: {name}", style="dim")
    for remark in d.remarks:
        out.print(remark, style="dim")
    _print_first(out, d)
    for line in d.unread:
        out.print(f"no field reads this tensor of the checkpoint: {line}", style="bold red")
    if d.prompt:
        out.print(d.prompt, style="bold red")


def _summary(layer: str, group: list[ModuleDiff], worst: Errors | None) -> tuple[str, ...]:
    """A layer as one line, with the numbers of the module that is furthest off."""
    counts = Counter(row.verdict for row in group)
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return f"  {layer}.*", "", "", *_numbers(worst), verdicts


def _cells(row: ModuleDiff) -> tuple[str, ...]:
    verdict = row.verdict + (f": {row.note}" if row.note else "")
    shape = str(list(row.shape)) if row.shape else ""
    return row.name or "", shape, *_numbers(row.result), verdict


def _numbers(e: Errors | None) -> tuple[str, str, str]:
    return ("", "", "") if e is None else (f"{e.nmse:.1e}", f"{e.largest:.1e}", f"{e.relative:.1e}")


def _print_first(out: Any, d: Diff) -> None:
    row = d.first
    out.print()
    if row is None:
        of = " ".join(f"{name} {version}" for name, version in d.versions.items())
        alone = "; the last of them also one by one" if d.decode else ""
        if d.ok:
            line = f"{d.model} agrees with its reference ({of}) on {count(len(d.tokens), 'token')}"
            out.print(line + alone, style="bold green")
        return
    line = f"{row.path or 'the model'} ({row.kind}) is the first module that diverges"
    out.print(line, style="bold red")
    if row.token is not None:
        out.print(
            f"  in token {row.token}, computed alone behind those before it; as one batch all "
            "agree: look at what the layer keeps"
        )
    if row.verdict == "unused":
        out.print(f"  {row.note}; the reference computes {row.name}")
    elif row.note:
        out.print(f"  {row.note}")
    if row.result is not None:
        e = row.result
        of_input = "not compared" if row.input is None else f"{row.input.nmse:.1e}"
        out.print(
            f"  NMSE {e.nmse:.1e}, of its input {of_input}; rounding explains {row.bound:.0e}"
        )
        if row.line:
            out.print(f"  made at {row.line}")
        if (inner := d.seen_in) is not None and inner.input is not None:
            line = f"  first seen in the input of {inner.path}, NMSE {inner.input.nmse:.1e}"
            out.print(line)
        out.print(f"  largest error at {list(e.at)}; there, from {e.start} on along dim 0:")
        samples = (("    ggmodel", e.ours), ("    reference", e.theirs))
        pairs = [[title, *(f"{v:.6g}" for v in values)] for title, values in samples]
        out.print(table(pairs, right="1234567"))
