"""`ggmodel certify`: whether a file is the model that it is said to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .options import (
    Imatrix,
    Json,
    Models,
    checkpoint_folder,
    complete_model,
    existing,
    read_text,
)
from .terminal import console, count, progress_bar, report, table

if TYPE_CHECKING:
    from ..workbench.certify.report import Certificate

_File = Annotated[
    str | None,
    typer.Argument(
        callback=existing,
        autocompletion=complete_model,
        metavar="[MODEL]",
        help="A GGUF file (the first of a split one), or a name, such as ORG/REPO:Q4_K_M.",
        show_default=False,
    ),
]
_Against = Annotated[
    str,
    typer.Option(
        callback=checkpoint_folder,
        autocompletion=complete_model,
        metavar="DIR|ORG/REPO",
        help="The Hugging Face checkpoint that the file is said to be made from.",
        show_default=False,
    ),
]
_TextFile = Annotated[
    str | None,
    typer.Option("--text", metavar="FILE", help="Text for the KL divergence of the next token."),
]
_ModuleDiff = Annotated[
    bool, typer.Option("--module-diff", help="Compare the results of all modules on the text.")
]
_HTML = Annotated[str | None, typer.Option(metavar="FILE", help="Write an HTML report.")]
_Server = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Certify a running server in place of a file."),
]
_All = Annotated[bool, typer.Option("--all", help="Show all tensors and notes.")]


def certify(
    file: _File = None,
    against: _Against = ...,  # type: ignore[assignment]  # required
    imatrix: Imatrix = None,
    text: _TextFile = None,
    module_diff: _ModuleDiff = False,
    models: Models = None,
    html: _HTML = None,
    server: _Server = None,
    everything: _All = False,
    as_json: Json = False,
) -> None:
    """Verify that a GGUF file is the model that it is said to be.

    Tensors are recomputed from the checkpoint; hyperparameters, tokenizer and chat template are
    compared. The exit status is 1 if the file differs.
    """
    from ..storage import check_target
    from ..workbench.certify import certify as compare

    if html is not None:
        check_target(html)
    if (file is None) == (server is None):
        raise ConfigError("give a GGUF file or --server, and --against its checkpoint")
    if server is not None or file is None:
        if imatrix is not None or text is not None or module_diff:
            raise ConfigError(
                "--imatrix, --text and --module-diff are for files; leave them out with --server"
            )
        from ..workbench.certify.server import certify_server

        result = certify_server(server or "", against, models=models)
        _finish(result, html, everything, as_json)
        return
    content = None if text is None else read_text(text, "--text ")
    with progress_bar("certifying") as progress:
        result = compare(
            file,
            against,
            imatrix=imatrix,
            models=models,
            text=content,
            module_diff=module_diff,
            progress=progress,
        )
    _finish(result, html, everything, as_json)


def _finish(result: Certificate, html: str | None, everything: bool, as_json: bool) -> None:
    if html is not None:
        from ..storage import write_text
        from ..workbench.certify.page import page

        write_text(html, page(result))
    report(as_json, result.as_dict(), lambda: _print(result, everything), result.ok)


def _print(c: Certificate, everything: bool) -> None:
    out = console()
    if c.digest:
        out.print(f"sha256 {c.digest}", style="dim")
    for part, what in c.checked.items():
        out.print(f"{part}: {what}{_statuses(c) if part == 'tensors' else ''}")
    if everything and c.tensors:
        rows = [
            (t.name, t.dtype, str(list(t.shape)), f"{t.error:.2e}", f"{t.status}{_kind(t.kind)}")
            for t in c.tensors
        ]
        out.print(table(rows, ("tensor", "type", "shape", "error", "status"), right="3"))
    if c.divergence:
        d = c.divergence
        out.print(
            f"KL divergence {d['mean']:.3g} nats, at most {d['largest']:.3g}; same likeliest token "
            f"{d['same_top']:.1%}"
        )
    if c.modules:
        rows = [(str(m["module"]), f"{m['nmse']:.1e}") for m in c.modules]
        out.print(table(rows, ("module", "NMSE"), right="1", fold=0))
    notes = [f for f in c.findings if not f.fault]
    for title, findings, style in (("fault", c.faults, "bold red"), ("note", notes, "dim")):
        if findings and (title == "fault" or everything):
            out.print(f"{count(len(findings), title)}:", style=style)
            out.print(table([(f"  {f.kind}", f.name, f.message) for f in findings]))
    if notes and not everything:
        out.print(f"{count(len(notes), 'note')}; --all shows them", style="dim")
    for line in c.unchecked:
        out.print(f"not checked: {line}", style="dim")
    out.print(c.verdict, style="bold green" if c.ok else "bold red")


def _statuses(c: Certificate) -> str:
    return "".join(f", {n} {status}" for status, n in sorted(c.counts.items()))


def _kind(kind: str) -> str:
    return f": {kind}" if kind else ""
