"""Slots that are saved to files, restored and erased, as llama-server does it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs

from msgspec import Struct
from starlette.routing import Route

from ...errors import FormatError
from ...platforms import files
from ..endpoint import JSON, Answers, Call, route
from ..errors import Refused
from ..requests import SlotCall, SlotChanged
from ..server import Server
from .openai.schemas import OPENAI

_LONGEST = 200  # characters of a name


class SlotFile(Struct):
    """The file that a slot is saved to or restored from, in the folder of `--slot-save-path`."""

    filename: str = ""
    model: str | None = None


class SavedSlot(Struct):
    """Tokens and bytes that were written."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: dict[str, float]


class RestoredSlot(Struct):
    """Tokens and bytes that were read."""

    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: dict[str, float]


class ErasedSlot(Struct):
    """Tokens that were forgotten."""

    id_slot: int
    n_erased: int


def routes(server: Server) -> list[Route]:
    """Its endpoint."""
    answers = Answers(None, {JSON: [SavedSlot, RestoredSlot, ErasedSlot]})
    return [route("POST", "/slots/{id}", change, server, OPENAI, SlotFile, answers=answers)]


async def change(call: Call) -> None:
    """Save a slot to a file, restore it from one, or erase it: `action` of the query."""
    folder = call.server.settings.slot_save_path
    action = parse_qs(call.query).get("action", [""])[-1]
    if folder is None:
        raise Refused("slots are neither saved nor erased; start with --slot-save-path FOLDER", 403)
    if action not in ("save", "restore", "erase"):
        raise Refused(f"action: {action!a:.50} is none of save, restore and erase", param="action")
    number = call.path["id"]
    if not number.isdecimal() or len(number) > 9:
        raise Refused(f"{number!a:.50} is no number of a slot", param="id")
    id = int(number)
    if action == "erase":
        wanted = await call.decode(SlotFile) if call.body.strip() else SlotFile()
        changed = await _changed(call, wanted.model, SlotCall("erase", id))
        return await call.json(ErasedSlot(id, changed.tokens))
    wanted = await call.decode(SlotFile)
    path = _contained(folder, wanted.filename)
    if action == "restore" and not path.is_file():
        raise Refused(f"filename: there is no {wanted.filename!a:.100}", param="filename")
    call_of = SlotCall("save" if action == "save" else "restore", id, str(path))
    try:
        done = await _changed(call, wanted.model, call_of)
    except FormatError as error:
        raise Refused(str(error).replace(str(path), path.name), param="filename") from None
    timings = {f"{action}_ms": 1000 * done.seconds}
    kind = SavedSlot if action == "save" else RestoredSlot
    await call.json(kind(id, wanted.filename, done.tokens, done.nbytes, timings))


async def _changed(call: Call, model: str | None, wanted: SlotCall) -> SlotChanged:
    async with call.server.models.use(model) as runner:
        if wanted.slot >= runner.state.parallel:
            most = runner.state.parallel
            raise Refused(f"there is no slot {wanted.slot}; the model has {most}", param="id")
        return await runner.slot(wanted)


def _contained(folder: str, name: str) -> Path:
    """The file of this name in the folder.

    Raises:
        Refused: the name is none, or leads elsewhere.
    """
    plain = name and len(name) <= _LONGEST and name.isprintable() and not name.startswith(".")
    if not plain or set(name) & set("/\\:") or files.unfit(name):
        raise Refused(
            f"filename: {name!a:.100} is no plain name of a file, as slot.bin is",
            param="filename",
        )
    path = Path(folder) / name
    if path.is_symlink():
        raise Refused(f"filename: {name!a:.100} is a link", param="filename")
    return path
