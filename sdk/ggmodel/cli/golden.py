"""`ggmodel golden`: compare a model with its golden outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..errors import ConfigError, Error
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
            help="Folder of goldens, with NAME/cases.py or that of the architecture's file. "
            "Default: DIR/goldens of --models, else goldens or tests/golden.",
        ),
    ] = None,
    models: Models = None,
    case: Annotated[str | None, typer.Option(metavar="NAME", help="Run only this case.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the golden files anew with transformers.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare the golden files with transformers; write nothing."),
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the tiny checkpoint of a case to DIR instead."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show all runs of each prompt.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Run it in deterministic mode.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare a model with its golden outputs.

    Runs it on the tiny checkpoints of its goldens, in float32, and compares logits, greedy
    continuations, image embeddings and text embeddings with those of transformers. Each prompt is
    also computed in small batches, token by token, in a batch with a second sequence, after a
    context shift, and with weights in F16, BF16 and Q8_0. Pictures and sounds are prepared from
    their files, and compared with the processor of transformers. The exit status is 1 if a result
    differs. Where all are equal, each hyperparameter and weight is changed in turn, and those that
    no case can see are named; --update refuses such cases. --update and --verify need torch and
    transformers.
    """
    if (checkpoint is not None) + update + verify > 1:
        raise ConfigError("give one of --update, --verify and --checkpoint")
    cases = _cases(name, goldens, models, case)
    if checkpoint is not None:
        _write_checkpoint(cases, case, Path(checkpoint))
    elif update or verify:
        _make(cases, case, models, verify, as_json)
    else:
        _compare(cases, case, models, everything, deterministic, as_json)


def _make(cases: Cases, case: str | None, models: str | None, verify: bool, as_json: bool) -> None:
    """Computes goldens with transformers; writes them, or compares those that there are."""
    from ..workbench.golden.update import update

    def make(tell: Callable[[str], None]) -> Iterator[Made]:
        return update(cases.folder, case, verify, models=models, tell=tell)

    made, error = _followed(make, cases, case, lines=True)
    rows = [{**vars(m), "path": str(m.path)} for m in made]
    same = error is None and not any(m.differs for m in made)
    if not verify and error is None:
        error = _refused(cases, models)
    _report(as_json, rows, lambda: _print_made(made, verify), error, same)


def _compare(
    cases: Cases,
    case: str | None,
    models: str | None,
    everything: bool,
    deterministic: bool,
    as_json: bool,
) -> None:
    """Runs the model on its goldens; names the numbers that they cannot see."""
    from ..workbench.golden import check

    given = {"deterministic": True} if deterministic else {}
    outcomes, error = _followed(lambda _: check(cases.folder, case, models, **given), cases, case)
    rows = [{**asdict(o), "ok": o.ok} for o in outcomes]
    same = error is None and all(o.ok for o in outcomes)
    _report(as_json, rows, lambda: _print(outcomes, everything), error, same)
    if same and case is None and not as_json:
        _print_unseen(cases, models)


def _refused(cases: Cases, models: str | None) -> Error | None:
    """The error of goldens that cannot see a number."""
    from ..workbench.golden.coverage import hold

    try:
        with progress_bar("changing numbers", lines=True) as progress:
            hold(cases, models, progress)
    except Error as error:
        return error
    return None


def _print_unseen(cases: Cases, models: str | None) -> None:
    """Prints the numbers of the goldens that could be others without a difference."""
    from ..workbench.golden.coverage import unseen

    with progress_bar("changing numbers") as progress:
        numbers = unseen(cases, models, progress)
    for one in numbers or ():
        style = "dim" if one.reason else "yellow"
        console().print(printable(f"{one} ({one.reason})" if one.reason else str(one)), style=style)
    if numbers is None:
        console().print("coverage not judged: a case differs in float64", style="yellow")
    elif not numbers:
        line = "every weight, and every hyperparameter that a case's file has, is seen by a case"
        console().print(line, style="dim")


def _report(
    as_json: bool, rows: list[Any], show: Callable[[], None], error: Error | None, same: bool
) -> None:
    """Prints the cases that could be computed, then the error of those that could not."""
    if rows or error is None:
        report(as_json, rows, show, same or error is not None)
    if error is not None:
        raise error


def _cases(name: str, goldens: str | None, models: str | None, case: str | None) -> Cases:
    from ..workbench.golden import Cases

    if goldens is not None or models is not None:
        folders = [Path(goldens) if goldens is not None else Path(models or "") / "goldens"]
    else:
        folders = [Path("goldens"), Path("tests", "golden")]
    names = [name.replace("-", "_"), *_files_of(name, models)]
    tried = [base / own for own in names for base in folders]
    there = [folder for folder in tried if (folder / "cases.py").is_file()]
    cases = Cases((there or tried)[0])
    if case is not None and case not in cases.names:
        others = ", ".join(cases.names)
        raise ConfigError(f"{cases.folder / 'cases.py'} has no case {case!r}, only {others}")
    return cases


def _files_of(name: str, models: str | None) -> list[str]:
    """The names of the file and the folder that a registered architecture is in: `ggmodel new`
    names goldens after them, and the name in files may be another."""
    from ..errors import ArchitectureError
    from ..model import find
    from ..model.source_code import file_of

    try:
        file = Path(file_of(find(name, models)) or "")
    except ArchitectureError:
        return []
    return [file.stem, file.parent.name]


def _write_checkpoint(cases: Cases, case: str | None, target: Path) -> None:
    from ..workbench.golden import checkpoint

    name, n = case or cases.names[0], len(cases.names)
    golden = cases.load(name)
    checkpoint(target, golden.config, golden.weights())
    more = "" if case or n < 2 else f" (the first of {n} cases)"
    print(printable(f"{target}: the checkpoint of {name}{more}, {len(golden.tensors)} tensors"))


def _followed(
    compute: Callable[[Callable[[str], None]], Iterator[R]],
    cases: Cases,
    case: str | None,
    lines: bool = False,
) -> tuple[list[R], Error | None]:
    """All results, and the error of the cases that have none, with a progress bar by cases.

    Args:
        lines: see `progress_bar`.
    """
    n = 1 if case else len(cases.names)
    done = set[str]()
    collected: list[R] = []
    with progress_bar("computing", lines) as progress:
        results = compute(lambda text: progress(len(done) / n, text))
        try:
            for result in results:
                collected.append(result)
                done.add(result.case.partition(",")[0])
                progress(len(done) / n, result.case)
        except Error as error:
            return collected, error
    return collected, None


def _print(outcomes: list[Outcome], everything: bool) -> None:
    rows: list[tuple[str, ...]] = []
    for o in outcomes:
        if o.differs:
            rows.append((o.case, str(o.rows), *[""] * 4, "DIFFERS"))
            continue
        agree = sum(run.ok for run in o.runs)
        rows.append(
            (
                o.case,
                str(o.rows),
                f"{o.nmse:.1e}",
                f"{o.bound:.0e}",
                "" if o.greedy is None else f"{o.greedy[0]} of {o.greedy[1]}",
                f"{agree} of {len(o.runs)}" if o.runs else "",
                "equal" if o.ok else "DIFFERS",
            )
        )
        for run in o.runs:
            if everything or not run.ok:
                numbers = ("", "") if run.note else (f"{run.nmse:.1e}", f"{run.bound:.0e}")
                verdict = run.note or ("equal" if run.ok else "DIFFERS")
                rows.append((f"  {run.name}", "", *numbers, "", "", verdict))
    header = ("case", "rows", "NMSE", "bound", "greedy", "runs", "")
    console().print(table(rows, header, right="1234", fold=0))
    for o in outcomes:
        if o.differs:
            console().print(printable(f"{o.case}: {o.differs}"), style="bold red")
    for made_with in dict.fromkeys(_named(o.versions) for o in outcomes):
        console().print(f"goldens made with {made_with}", style="dim")


def _named(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _print_made(made: list[Made], verify: bool) -> None:
    for m in made:
        what = f"differs in {', '.join(m.differs)}" if m.differs else "equal" if verify else "made"
        figures = ""
        if m.margin is not None:
            figures = f"; margin {m.margin:.3f}, weights in F16 {m.f16:.1e}, in Q8_0 {m.q8_0:.1e}"
        if verify and m.before != m.versions:
            figures += f"; made with {_named(m.before)}"
        print(printable(f"{m.path}: {what}{figures}"))
    for made_with in dict.fromkeys(_named(m.versions) for m in made):
        print(printable(f"computed with {made_with}"))
