"""Downloads from the Hugging Face hub into its cache, by huggingface_hub.

Files are complete when they get their names, the projector comes before the model, and the branch
points to a commit only when all of its files are there and hash to what the hub says: half a
download is taken for none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, DownloadError, Error, FormatError, ModelNotFound
from . import folder, own
from .digests import verify
from .found import Found, Progress
from .grammar import HubName
from .hub_cache import commit_of, digest_of, in_cache, is_commit, repo_folder, roots
from .inside import inside
from .terminal_progress import announced

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TRUE = ("1", "ON", "YES", "TRUE")
_SPARE = 64 << 20  # bytes of the disk that stay free


@dataclass(frozen=True)
class Plan:
    """A download before it begins.

    Attributes:
        name: of the model.
        commit: of its revision.
        files: path in the repository → bytes, in the order of the download.
        nbytes: those that are not here yet.
        root: the cache.
    """

    name: HubName
    commit: str
    files: dict[str, int]
    nbytes: int
    root: Path

    @property
    def snapshot(self) -> Path:
        """The folder of the commit's files."""
        return repo_folder(self.root, self.name.repo) / "snapshots" / self.commit


def download(name: HubName, checkpoint: bool = False, progress: Progress | None = None) -> Found:
    """The model of a name of the hub, downloaded.

    Raises:
        DownloadError, ModelNotFound: as for `find`.
    """
    if _is_offline():
        raise ModelNotFound(f"{name} is not to be asked of the hub: HF_HUB_OFFLINE forbids it")
    with _told(name):
        api = _api()
        plan = _planned(api, name, checkpoint)
    if plan.nbytes:
        _check_room(plan)
        with announced(str(name), len(plan.files), plan.nbytes, progress) as report, _told(name):
            _fetch(api, plan, report)
    _verify(plan)
    _point(plan)
    found = in_cache(plan.root, name, checkpoint)
    if found is None:
        raise DownloadError(f"{name} is not whole in {plan.root}; remove it and pull it again")
    if plan.nbytes:
        own.remember(plan.snapshot, _title(plan))
    return found


def _title(plan: Plan) -> str:
    """The name that the list of stored models has for it."""
    models = folder.all_models([*plan.files])
    return plan.name.repo + next((rest for rest, first in models if first in plan.files), "")


def _is_offline() -> bool:
    return any(
        os.environ.get(name, "").upper() in _TRUE
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _api() -> HfApi:
    from huggingface_hub import HfApi  # slow

    # Read when it is used, as all other settings are.
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="ggmodel")


def _planned(api: HfApi, name: HubName, checkpoint: bool) -> Plan:
    commit = api.model_info(name.repo, revision=name.revision or None).sha or ""
    if not is_commit(commit):
        raise DownloadError(f"{name}: the hub says no commit; try again later")
    sizes = {}
    for entry in api.list_repo_tree(name.repo, recursive=True, revision=commit):
        size = getattr(entry, "size", None)
        if isinstance(size, int) and _is_plain(entry.path):
            sizes[entry.path] = size
    model, mmproj = folder.chosen([*sizes], name, checkpoint)
    if not model:
        wanted = name.file or name.tag or "model"
        raise ModelNotFound(f"{name.repo} has no {wanted}: {folder.weights_of([*sizes])}")
    if not folder.is_checkpoint(model) and (lacking := folder.missing(model, Path)):
        raise FormatError(f"{model[0]} of {name.repo} is not whole there: {lacking} is missing")
    # A model is not found without its weights: they come last.
    order = [*filter(None, [mmproj]), *sorted(model, key=lambda f: f.endswith(".safetensors"))]
    plan = Plan(name, commit, {f: sizes[f] for f in order}, 0, roots()[0])
    left = sum(n for f, n in plan.files.items() if not (plan.snapshot / f).exists())
    return Plan(name, commit, plan.files, left, plan.root)


def _is_plain(path: str) -> bool:
    """Whether a path of a repository stays below its folder."""
    return "\\" not in path and all(p not in ("", ".", "..") for p in path.split("/"))


def _check_room(plan: Plan) -> None:
    at = plan.root
    while not at.exists() and at != at.parent:
        at = at.parent
    free = shutil.disk_usage(at).free
    if plan.nbytes + _SPARE > free:
        raise DownloadError(
            f"{plan.name} takes {plan.nbytes:,} bytes more, and {at} has {free:,} left; free some, "
            "or set HF_HUB_CACHE to a folder elsewhere"
        )


def _fetch(api: HfApi, plan: Plan, report: Callable[[int], None]) -> None:
    counter = _counter(report)
    for file in plan.files:
        if not (plan.snapshot / file).exists():
            api.hf_hub_download(
                plan.name.repo,
                file,
                revision=plan.commit,
                cache_dir=plan.root,
                tqdm_class=counter,
            )


def _counter(report: Callable[[int], None]) -> type[Any]:
    """A class in place of tqdm's bars, which counts bytes."""

    class Counter:
        def __init__(self, *args: Any, initial: float = 0, **options: Any):
            report(int(initial or 0))

        def update(self, n: float | None = 1) -> None:
            report(int(n or 0))

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., None]:
            if name.startswith("_") or name == "update_transfer":
                raise AttributeError(name)
            return lambda *args, **options: None

    return Counter


def _verify(plan: Plan) -> None:
    """Removes what is not as the hub says: else it would be found again."""
    damaged = []
    for file in plan.files:
        blob = inside(plan.snapshot / file, [plan.root])
        try:
            verify({blob: d} if (d := digest_of(blob)) else {})
        except FormatError:
            damaged.append(file)
            with suppress(OSError):
                (plan.snapshot / file).unlink()
                blob.unlink(missing_ok=True)
    if damaged:
        raise DownloadError(
            f"{damaged[0]} of {plan.name.repo} arrived damaged, and was removed; pull it again"
        )


def _point(plan: Plan) -> None:
    """Has the branch point to the commit."""
    if plan.name.revision == plan.commit:
        return
    from ..atomic import write_text

    repo = repo_folder(plan.root, plan.name.repo)
    branch = plan.name.revision or "main"
    if commit_of(repo, branch) != plan.commit:
        path = repo / "refs" / branch
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, plan.commit)


@contextmanager
def _told(name: HubName) -> Iterator[None]:
    """Errors of huggingface_hub in our words.

    Raises:
        ModelNotFound: there is no such repository, revision or file, or it is private.
        DownloadError: any other one.
    """
    from huggingface_hub import errors

    login = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError:
        raise DownloadError(
            f"{name.repo} is gated: ask for access on its page of the hub, then {login}"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelNotFound(
            f"{name.repo} has no revision {name.revision or 'main'!r}; see its page of the hub"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFound(
            f"the hub has no repository {name.repo}, or it is private: check the name; if you "
            f"have access, {login}"
        ) from None
    except errors.LocalEntryNotFoundError as error:  # of a request that failed
        raise _failed(name, error.__cause__ or error) from error
    except errors.EntryNotFoundError:
        raise ModelNotFound(f"a file of {name} has gone from the hub; try again") from None
    except (errors.HFValidationError, errors.OfflineModeIsEnabled) as error:
        raise ConfigError(f"{name}: {_first_line(error)}") from None
    except Error:
        raise
    except Exception as error:  # of its HTTP library, too, whose names change
        raise _failed(name, error) from error


def _failed(name: HubName, error: BaseException) -> DownloadError:
    code = getattr(getattr(error, "response", None), "status_code", None)
    if code is not None:
        return DownloadError(f"{name}: {_status(code, error)}")
    return DownloadError(
        f"{name} cannot be downloaded: {_first_line(error)}; the same command goes on where it "
        "stopped"
    )


def _status(code: int, error: BaseException) -> str:
    if code == 401:
        return "the hub refuses the token; log in again with `hf auth login`, or set HF_TOKEN"
    if code == 403:
        return "the token has no access; ask for it on the model's page of the hub"
    if code == 429:
        return "the hub has had too many requests from here; wait some minutes, or log in"
    return f"the hub answers {code}: {_first_line(error)}; try again later"


def _first_line(error: BaseException) -> str:
    """Without addresses: they may hold a password or a signature."""
    text = re.sub(r"( for url)?:? '?\w+://\S+", "", str(error)).strip()
    return (text.partition("\n")[0] or type(error).__name__)[:300]
