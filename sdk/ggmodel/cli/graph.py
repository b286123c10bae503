"""`ggmodel graph`: draw the compute graph of a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigError
from .options import File, FlashAttention, KVType, Mmproj, Models, Strict


def graph(
    file: File,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.svg|FILE.dot|-",
            help="File to write; - is standard output, in SVG.",
        ),
    ] = "-",
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Show the modules of layer N.")
    ] = None,
    vision: Annotated[
        bool, typer.Option("--vision", help="Draw only the graph of the vision encoder.")
    ] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Draw only the graph of the text model.")
    ] = False,
    prompt_length: Annotated[
        int, typer.Option("--prompt-length", "-p", metavar="N", help="Draw a batch of N tokens.")
    ] = 512,
    decode: Annotated[bool, typer.Option("--decode", help="Draw the decode of one token.")] = False,
    flash_attention: FlashAttention = "auto",
    kv_type: KVType = "f16",
    mmproj: Mmproj = None,
    models: Models = None,
    strict: Strict = True,
) -> None:
    """Draw the compute graph of a model, without reading its weights.

    A box is a module, with its ops and weights; lines between boxes are tensors. Identical layers
    are one box unless --layer shows one.
    """
    from ..storage import write_text
    from ..workbench.diagram import build, dot, record, svg

    write = _format(output)
    selected = [name for name, chosen in (("vision", vision), ("text", text)) if chosen]
    graphs = record(
        file,
        tokens=1 if decode else prompt_length,
        parts=selected,
        mmproj=mmproj,
        flash_attention=flash_attention,
        kv_type=kv_type,
        models=models,
        strict=strict,
    )
    drawn = build(graphs, layer)
    content = dot(drawn) if write == "dot" else svg(drawn)
    if output == "-":
        sys.stdout.write(content)
        return
    write_text(output, content)


def _format(output: str) -> str:
    """The format that a file's name asks for."""
    suffix = Path(output).suffix.lower()
    if output == "-" or suffix == ".svg":
        return "svg"
    if suffix in (".dot", ".gv"):
        return "dot"
    raise ConfigError(f"-o {output}: give a name that ends with .svg or .dot, or -")
