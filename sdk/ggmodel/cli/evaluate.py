"""`ggmodel eval`: choices by log-likelihood and answers by exact match, of a file of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .loading import Loading
from .options import File, Json, expanded
from .terminal import count, printable, progress_bar, report

if TYPE_CHECKING:
    from ..workbench.evaluation import Result


@expanded("parallel", "mmproj")
def evaluate(
    file: File,
    tasks: Annotated[
        str,
        typer.Argument(
            metavar="TASK.jsonl",
            help='Lines of {"prompt", "choices", "answer"}, or {"prompt", "answer"}.',
            show_default=False,
        ),
    ],
    results: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Write each result there at once; those that it has are not computed again.",
        ),
    ] = None,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Evaluate a model on a file of tasks.

    Choices are taken by log-likelihood (acc; acc_norm by character), other answers generated and
    compared (exact_match), as lm-eval does. Prompts that begin alike are computed once.
    """
    from ..runner.requests.receipt import digest_of
    from ..workbench.evaluation import evaluate as each
    from ..workbench.evaluation import read_documents, summary

    documents = read_documents(tasks)
    done: list[Result] = []
    with (
        loading.load(file, mmproj="") as model,
        _Results(results, digest_of(model.source)) as kept,
        progress_bar("evaluating") as progress,
    ):
        for result in each(model, documents, kept.known):
            kept.add(result)
            done.append(result)
            progress(len(done) / len(documents))
    values: dict[str, Any] = summary(done)
    report(as_json, values, lambda: _print(values))


class _Results:
    """A file of results that grows line by line; the first line is the digest of the model."""

    def __init__(self, path: str | None, model: str):
        self.known: list[Result] = []
        self._written: set[tuple[int, str]] = set()
        self._file = None if path is None else self._opened(Path(path), model)

    def _opened(self, path: Path, model: str) -> Any:
        from ..errors import ConfigError
        from ..reading import parse_json, read_file
        from ..storage import check_target, naming
        from ..workbench.evaluation import Result

        check_target(path, force=True)
        whole = b""
        if path.exists():
            content = read_file(path, "input_bytes")
            whole = content[: content.rfind(b"\n") + 1]  # the last line may be cut off
        first, *lines = whole.splitlines() or [b""]
        if first and parse_json(first, str(path)).get("model") != model:
            raise ConfigError(f"{path} has results of another model; give another file")
        self.known = [Result.read(line, f"{path}, line {i}") for i, line in enumerate(lines, 2)]
        self._written = {(r.line, r.digest) for r in self.known}
        with naming(path, path):
            file = open(path, "r+b" if path.exists() else "wb")  # noqa: SIM115  # closed below
            file.truncate(len(whole))
            file.seek(len(whole))
        if not first:
            file.write(json.dumps({"model": model}).encode() + b"\n")
        return file

    def __enter__(self) -> _Results:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, result: Result) -> None:
        """Writes a result, unless it is known."""
        if self._file is not None and (result.line, result.digest) not in self._written:
            self._file.write(json.dumps(result.as_dict()).encode() + b"\n")
            self._file.flush()


def _print(values: dict[str, Any]) -> None:
    print(count(values.pop("documents"), "document"))
    for name, share in values.items():
        print(printable(f"{name} {share['value']:.4f} ± {share['error']:.4f}"))
