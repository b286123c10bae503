"""`ggmodel golden`: does a model still equal its reference?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError
from .options import Json, Models
from .terminal import console, print_json, printable, progress_bar, table

if TYPE_CHECKING:
    from ..workbench.golden import Cases, Outcome
    from ..workbench.golden.update import Made


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
        made = _made(cases, case, verify)
        _print_made(made, verify, as_json)
        if any(m.differs for m in made):
            raise typer.Exit(1)
    else:
        outcomes = _checked(cases, case, models)
        _print(outcomes, as_json)
        if not all(o.ok for o in outcomes):
            raise typer.Exit(1)


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


def _made(cases: Cases, case: str | None, verify: bool) -> list[Made]:
    from ..workbench.golden.update import update

    n = 1 if case else len(cases.names)
    made: list[Made] = []
    with progress_bar("computing") as progress:
        for one in update(cases.folder, case, verify):
            made.append(one)
            if progress is not None:
                progress(len(made) / n, one.case)
    return made


def _checked(cases: Cases, case: str | None, models: str | None) -> list[Outcome]:
    from ..workbench.golden import check

    n, done = 1 if case else len(cases.names), set()
    outcomes: list[Outcome] = []
    with progress_bar("running") as progress:
        for outcome in check(cases.folder, case, models):
            outcomes.append(outcome)
            done.add(outcome.case.partition(",")[0])
            if progress is not None:
                progress(len(done) / n, outcome.case)
    return outcomes


def _print(outcomes: list[Outcome], as_json: bool) -> None:
    if as_json:
        print_json([{**vars(o), "ok": o.ok} for o in outcomes])
        return
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


def _print_made(made: list[Made], verify: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**vars(m), "path": str(m.path)} for m in made])
        return
    for m in made:
        what = f"differs in {', '.join(m.differs)}" if m.differs else "equal" if verify else "made"
        figures = ""
        if m.margin is not None:
            figures = f"; margin {m.margin:.3f}, weights in F16 {m.f16:.1e}, in Q8_0 {m.q8_0:.1e}"
        print(printable(f"{m.path}: {what}{figures}"))
