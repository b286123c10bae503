"""Downloads from the Hugging Face hub into its cache, with their progress on a terminal.

Files are complete when they get their names. They are linked into the commit's folder, and the
branch points there, when all of them are here and hash to what the hub says: half a download is
taken for none. A terminal sees the size before a download begins, then a bar; a pipe sees nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import DownloadError, FormatError, ModelNotFound
from ..runner.loading.resolved import Progress as Callback
from ..runner.loading.resolved import ResolvedModel, verify
from ..storage import locked, naming, replace, write_text
from . import grammar, hub_cache
from . import hub_cache as own
from .grammar import HubName
from .hub import Content, Repository
from .hub_cache import commit_of, digest_of, in_cache, repo_folder, roots
from .store_files import SPARE, contained, room_at


@contextmanager
def announced(
    name: str, files: int, nbytes: int, progress: Callback | None
) -> Iterator[Callable[[int], None]]:
    """A function to call with bytes as they come.

    Args:
        name: of the model.
        files: how many there are.
        nbytes: to come.
        progress: called with the share instead.
    """
    done = 0

    def share(n: int) -> float:
        nonlocal done
        done += n
        return min(done / max(nbytes, 1), 1.0)

    stream = sys.stderr
    if progress is not None:
        yield lambda n: progress(share(n))
        return
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True, markup=False, highlight=False)
    console.print(f"downloading {name}: {files} file{'s'[: files != 1]}, {nbytes / 1e9:,.2f} GB")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=nbytes)
        yield lambda n: bar.update(task, advance=n)


_TRUE = ("1", "ON", "YES", "TRUE")
_TRIES = 5  # of a download whose files are removed meanwhile


@dataclass(frozen=True)
class Plan:
    """A download before it begins.

    Attributes:
        name: of the model.
        commit: of its revision.
        files: path in the repository → bytes, in the order of the download.
        root: the cache.
    """

    name: HubName
    commit: str
    files: dict[str, int]
    root: Path

    @property
    def repo(self) -> Path:
        """The folder of the repository."""
        return repo_folder(self.root, self.name.repo)

    @property
    def snapshot(self) -> Path:
        """The folder of the commit's files."""
        return self.repo / "snapshots" / self.commit

    @property
    def missing(self) -> list[str]:
        """The files that are not here."""
        return [file for file in self.files if not (self.snapshot / file).exists()]


def download(
    name: HubName, checkpoint: bool = False, progress: Callback | None = None
) -> ResolvedModel:
    """The model of a name of the hub, downloaded.

    Raises:
        DownloadError, ModelNotFound: as for `find`.
    """
    if is_offline():
        raise ModelNotFound(f"{name} is not to be asked of the hub: HF_HUB_OFFLINE forbids it")
    repository = Repository(name)
    plan = _planned(repository, name, checkpoint)
    with naming(plan.root, after="the same command goes on where it stopped"):
        for _ in range(_TRIES):
            blobs = _fetch(repository, plan, progress)
            _verify(plan, blobs)
            if _placed(plan, blobs):
                break
    model = in_cache(plan.root, name, checkpoint)
    if model is None:
        raise DownloadError(f"{name} is not whole in {plan.root}; remove it and pull it again")
    return model


def _title(plan: Plan) -> str:
    """The name that the list of stored models has for it."""
    models = grammar.all_models([*plan.files])
    return plan.name.repo + next((rest for rest, first in models if first in plan.files), "")


def is_offline() -> bool:
    """Whether the user forbids downloads."""
    return any(
        os.environ.get(name, "").upper() in _TRUE
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _planned(repository: Repository, name: HubName, checkpoint: bool) -> Plan:
    commit = repository.commit()
    sizes, refused = repository.files(commit)
    model, mmproj = grammar.chosen([*sizes], name, checkpoint)
    if not model:
        missing = name.file or name.tag or "model"
        odd = f"; {refused[0]!r:.200} is no path of a file" if refused else ""
        raise ModelNotFound(f"{name.repo} has no {missing}: {grammar.weights_of([*sizes])}{odd}")
    if not grammar.is_checkpoint(model) and (lacking := grammar.missing(model, Path)):
        raise FormatError(f"{model[0]} of {name.repo} is not whole there: {lacking} is missing")
    # A model is not found without its weights: they come last.
    order = [*filter(None, [mmproj]), *sorted(model, key=lambda f: f.endswith(".safetensors"))]
    return Plan(name, commit, {f: sizes[f] for f in order}, roots()[0])


def _check_room(plan: Plan, nbytes: int) -> None:
    at, free = room_at(plan.root)
    if nbytes + SPARE > free:
        raise DownloadError(
            f"{plan.name} takes {nbytes:,} bytes more, and {at} has {free:,} left; free some, "
            "or set HF_HUB_CACHE to a folder elsewhere"
        )


def _fetch(repository: Repository, plan: Plan, progress: Callback | None) -> dict[str, Path]:
    """The blobs of the files that are not here yet."""
    if not (missing := plan.missing):
        return {}
    nbytes = sum(plan.files[file] for file in missing)
    repository.allow(len(missing))
    contents = [repository.content(plan.commit, file, plan.files[file]) for file in missing]
    blobs = [plan.repo / "blobs" / content.digest for content in contents]
    _check_room(plan, nbytes - sum(map(_present, blobs)))
    with announced(str(plan.name), len(plan.files), nbytes, progress) as report:
        for content, blob in zip(contents, blobs, strict=True):
            # huggingface_hub takes this lock, too.
            lock = plan.root / ".locks" / plan.repo.name / f"{blob.name}.lock"
            with locked(lock, f"downloading {plan.name!s:.100}", content.seconds):
                _fetch_blob(repository, content, blob, report)
    return dict(zip(missing, blobs, strict=True))


def _fetch_blob(
    repository: Repository, content: Content, blob: Path, report: Callable[[int], None]
) -> None:
    if blob.exists():
        report(content.size)
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    try:
        repository.download(content, _part(blob), report)
        replace(_part(blob), blob)
    finally:
        if not _present(blob):
            _part(blob).unlink(missing_ok=True)


def _part(blob: Path) -> Path:
    """A blob as far as it came."""
    return blob.with_name(f"{blob.name}.incomplete")


def _present(blob: Path) -> int:
    """Bytes of a blob that need no download."""
    for path in (blob, _part(blob)):
        with suppress(OSError):
            return os.lstat(path).st_size
    return 0


def _verify(plan: Plan, blobs: Mapping[str, Path]) -> None:
    """Removes what is not as the hub says: else it would be found again."""
    damaged = []
    for file in plan.files:
        at = plan.snapshot / file
        if file not in blobs and not at.exists():
            continue  # removed meanwhile
        blob = contained(blobs.get(file, at), [plan.root])
        try:
            verify({blob: d} if (d := digest_of(blob)) else {})
        except FormatError:
            damaged.append(file)
            with suppress(OSError):
                at.unlink(missing_ok=True)
                blob.unlink(missing_ok=True)
    if damaged:
        raise DownloadError(
            f"{damaged[0]} of {plan.name.repo} arrived damaged, and was removed; pull it again"
        )


def _placed(plan: Plan, blobs: Mapping[str, Path]) -> bool:
    """Links the blobs, and has the branch point to the commit; False if some file has gone."""
    branch = plan.name.revision or "main"
    is_current = branch == plan.commit or commit_of(plan.repo, branch) == plan.commit
    if not blobs and is_current:
        return not plan.missing
    with hub_cache.locked(f"adding {plan.name!s:.100}"):
        if any(file not in blobs or not blobs[file].exists() for file in plan.missing):
            return False
        for file in plan.missing:
            _link(blobs[file], plan.snapshot / file)
        if branch != plan.commit:
            path = plan.repo / "refs" / branch
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, plan.commit)
        if blobs:
            own.remember(plan.snapshot, _title(plan))
    return True


def _link(blob: Path, path: Path) -> None:
    """Gives a blob the name of a file; it moves there where the system has no links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # a link to a blob that was removed
    try:
        path.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:
        replace(blob, path)
