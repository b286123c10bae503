"""`ggmodel golden`: does a model still equal its reference?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ..errors import ConfigError
from .options import Json, Models
from .terminal import console, printable, progress_bar, report, table

if TYPE_CHECKING:
    from ..workbench.golden import Cases, Outcome
    from ..workbench.golden.update import Made

R = TypeVar("R", "Outcome", "Made")


def golden(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The architecture.", show_default=False)
    ],
    goldens: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where the folder NAME with cases.py lies; DIR/goldens of --models, else goldens.",
        ),
    ] = None,
    models: Models = None,
    case: Annotated[str | None, typer.Option(metavar="NAME", help="Only this case.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Make the files anew with transformers.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare the files with transformers, change nothing.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the tiny checkpoint of a case there instead."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Hold a model against its golden files.

    Runs it on the tiny checkpoints of its goldens, in float32, and compares logits, continuations,
    rows of images and embeddings with those of transformers. The exit status is 1 if one differs.
    --update and --verify need torch and transformers.
    """
    if (checkpoint is not None) + update + verify > 1:
        raise ConfigError("give one of --update, --verify and --checkpoint")
    cases = _cases(name, goldens, models, case)
    if checkpoint is not None:
        _write_checkpoint(cases, case, Path(checkpoint))
    elif update or verify:
        from ..workbench.golden.update import update as computed

        made = _followed("computing", computed(cases.folder, case, verify), cases, case)
        rows = [{**vars(m), "path": str(m.path)} for m in made]
        same = not any(m.differs for m in made)
        report(as_json, rows, lambda: _print_made(made, verify), same)
    else:
        from ..workbench.golden import check

        outcomes = _followed("running", check(cases.folder, case, models), cases, case)
        rows = [{**vars(o), "ok": o.ok} for o in outcomes]
        report(as_json, rows, lambda: _print(outcomes), all(o.ok for o in outcomes))


def _cases(name: str, goldens: str | None, models: str | None, case: str | None) -> Cases:
    from ..workbench.golden import Cases

    base = Path(goldens) if goldens is not None else Path(models or ".") / "goldens"
    cases = Cases(base / name.replace("-", "_"))
    if case is not None and case not in cases.names:
        known = ", ".join(cases.names)
        raise ConfigError(f"{cases.folder / 'cases.py'} has no case {case!r}, only {known}")
    return cases


def _write_checkpoint(cases: Cases, case: str | None, target: Path) -> None:
    from ..workbench.golden import checkpoint

    name, n = case or cases.names[0], len(cases.names)
    golden = cases.load(name)
    checkpoint(target, golden.config, golden.weights())
    more = "" if case or n < 2 else f" (the first of {n} cases)"
    print(printable(f"{target}: the checkpoint of {name}{more}, {len(golden.tensors)} tensors"))


def _followed(what: str, results: Iterator[R], cases: Cases, case: str | None) -> list[R]:
    """All results, with a progress bar by cases."""
    n = 1 if case else len(cases.names)
    done = set[str]()
    found: list[R] = []
    with progress_bar(what) as progress:
        for one in results:
            found.append(one)
            done.add(one.case.partition(",")[0])
            progress(len(done) / n, one.case)
    return found


def _print(outcomes: list[Outcome]) -> None:
    rows = [
        (
            o.case,
            str(o.rows),
            f"{o.nmse:.1e}",
            f"{o.bound:.0e}",
            "" if o.greedy is None else f"{o.greedy[0]} of {o.greedy[1]}",
            "equal" if o.ok else "DIFFERS",
        )
        for o in outcomes
    ]
    header = ("case", "rows", "NMSE", "bound", "greedy", "")
    console().print(table(rows, header, right="1234", fold=0))


def _print_made(made: list[Made], verify: bool) -> None:
    for m in made:
        what = f"differs in {', '.join(m.differs)}" if m.differs else "equal" if verify else "made"
        figures = ""
        if m.margin is not None:
            figures = f"; margin {m.margin:.3f}, weights in F16 {m.f16:.1e}, in Q8_0 {m.q8_0:.1e}"
        print(printable(f"{m.path}: {what}{figures}"))
