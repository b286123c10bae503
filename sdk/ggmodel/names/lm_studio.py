"""LM Studio's folders: `models/PUBLISHER/MODEL/FILE.gguf`, or a checkpoint there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import Error, FormatError
from ..runner.loading.resolved import ResolvedModel
from . import grammar, hub_cache, ollama
from .grammar import HubName, hub_name
from .store_files import Stored, contained, files_below, names_in

STORE = "LM Studio's folder"
_POINTER = ".lmstudio-home-pointer"  # a file that says where LM Studio keeps everything


def roots() -> list[Path]:
    """The folders that hold publishers."""
    home = Path(os.path.expanduser("~"))
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with suppress(OSError, ValueError), open(home / _POINTER, encoding="utf-8") as file:
        homes.insert(0, Path(file.read(4096).strip()))
    return [*dict.fromkeys(h / "models" for h in homes if h.is_absolute())]


class LMStudio:
    """The source of names that LM Studio keeps by publisher and model."""

    title = STORE

    def find(self, name: str, checkpoint: bool = False) -> ResolvedModel | None:
        """See `Source.find`."""
        hub = hub_name(name)
        if hub is None or hub.revision:  # there are no revisions
            return None
        for root in roots():
            if model := _in_folder(root, hub, checkpoint):
                return model
        return None

    def stored(self) -> Iterator[Stored]:
        """See `Source.stored`."""
        for root in roots():
            for publisher in names_in(root):
                for model in names_in(root / publisher):
                    if hub_name(f"{publisher}/{model}"):
                        yield from _stored(root, f"{publisher}/{model}")


def _in_folder(root: Path, name: HubName, checkpoint: bool) -> ResolvedModel | None:
    at = root / name.repo
    files = [*files_below(at)]
    model, mmproj = grammar.chosen(files, name, checkpoint)
    if not model:
        return None
    if lacking := grammar.missing(model, at.joinpath):
        raise FormatError(f"{at / model[0]}: {lacking} is missing; download the model again")
    for file in (*model, *filter(None, [mmproj])):
        # Links into the other stores are common: tools make them to keep one copy.
        stores = [root, *hub_cache.roots(), *ollama.roots()]
        if not contained(at / file, stores).stat().st_size:
            raise FormatError(f"{at / file} is empty; download the model again")
    return ResolvedModel(
        name=str(name),
        store=STORE,
        path=at if grammar.is_checkpoint(model) else at / model[0],
        mmproj=at / mmproj if mmproj else None,
    )


def _stored(root: Path, repo: str) -> Iterator[Stored]:
    at = root / repo
    files = [*files_below(at)]
    for rest, first in grammar.all_models(files):
        name = hub_name(repo + rest)
        if name is None:
            continue
        resolved, problem = None, ""
        try:
            resolved = _in_folder(root, name, checkpoint=not first)
        except Error as error:
            problem = str(error)
        model, mmproj = grammar.chosen(files, name, not first)
        paths = tuple(at / f for f in (*model, *filter(None, [mmproj])))
        nbytes = sum(p.stat().st_size for p in paths if p.exists())
        yield Stored(repo + rest, STORE, resolved and resolved.path, nbytes, problem, False, paths)
