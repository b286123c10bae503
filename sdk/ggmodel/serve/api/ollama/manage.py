"""Changes of the models on this machine: /api/pull, create, copy, delete, blobs. A server does
them only where it was started with --manage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct
from starlette.routing import Route

from ....errors import ModelNotFound, Unsupported
from ....names import ResolvedModel, derived, find, pull, removable, remove
from ....names.blobs import Step, blob_path, check_room, receive_blob
from ....names.grammar import hub_name, ollama_name
from ....names.layers import DerivedModel
from ....names.ollama import REGISTRY
from ...endpoint import LINES, TEXT, Answers, Call, Handler, line, route
from ...errors import Refused
from ...pool import best_name, same_name
from ...server import Server
from .inference import ChatMessage
from .schemas import OLLAMA, Status

_STEP = 0.005  # share of a step after which it is reported again


class NameRequest(Struct, kw_only=True):
    """`name` is the older word for `model`."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None

    @property
    def target(self) -> str:
        """The name of a model.

        Raises:
            Refused: there is none.
        """
        name = self.model or self.name
        if not name:
            raise Refused("model: is missing", param="model")
        return name


class PullRequest(NameRequest, kw_only=True):
    """`insecure` wants registries without TLS, of which there is none here."""

    insecure: bool | None = None


class CopyRequest(Struct):
    source: str
    destination: str


class CreateRequest(NameRequest, kw_only=True, rename={"base": "from"}):
    """A model made from another one (`from`), or from blobs (`files`: name → digest).
    `quantization` is the older word for `quantize`."""

    base: str | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    messages: list[ChatMessage] | None = None
    license: str | list[str] | None = None
    quantize: str | None = None
    quantization: str | None = None


def routes(server: Server) -> list[Route]:
    def add(method: str, path: str, handler: Handler, body: type, answers: Answers) -> Route:
        return route(method, path, handler, server, OLLAMA, body, answers=answers)

    blobs, steps = "/api/blobs/{digest}", Answers(Status, {LINES: [Status]})
    empty, made_anew = Answers(None, {TEXT: [str]}), Answers(None, {TEXT: [str]}, 201)
    return [
        add("POST", "/api/pull", pull_model, PullRequest, steps),
        add("POST", "/api/create", create, CreateRequest, steps),
        add("POST", "/api/copy", copy, CopyRequest, empty),
        add("POST", "/api/push", push, PullRequest, steps),
        add("DELETE", "/api/delete", delete, NameRequest, empty),
        route("HEAD", blobs, has_blob, server, OLLAMA, answers=empty),
        route("POST", blobs, put_blob, server, OLLAMA, uploads=True, answers=made_anew),
    ]


async def pull_model(call: Call) -> None:
    """Download a model of the hub or of Ollama's registry, in Ollama's format."""
    params = await call.decode(PullRequest)
    _allow(call)
    name = params.target
    _check_registry(name, params.insecure)
    await _in_thread(call, params, lambda report: pull(name, report=report), changes=name)


def _check_registry(name: str, insecure: bool | None = None) -> None:
    ours = None if hub_name(name) else ollama_name(name)
    if insecure or (ours and ours.host not in ("", REGISTRY)):
        raise Unsupported(
            f"{name!r:.200} is not pulled: requests name models of the hub and of {REGISTRY}; "
            "`ggmodel pull` reaches other registries"
        )


async def create(call: Call) -> None:
    """Make a model of another one, which is downloaded if it is not here, or of blobs, in Ollama's
    format."""
    params = await call.decode(CreateRequest)
    _allow(call)
    name, base = params.target, params.base
    model = _derived_model(params, await _origin(call, base) if base else "")
    if absent := await asyncio.to_thread(derived.check, name, model):
        _check_registry(absent)

    def work(report: Callable[[Step], None]) -> object:
        return derived.create(name, model, report)

    await _in_thread(call, params, work, changes=name)


async def copy(call: Call) -> None:
    """Give a model another name, in Ollama's format."""
    params = await call.decode(CopyRequest)
    _allow(call)
    source = await _origin(call, params.source)
    await asyncio.to_thread(derived.copy, source, params.destination)
    await call.server.models.changed(params.destination)
    await call.reply(b"", "text/plain")


async def _origin(call: Call, name: str) -> str | ResolvedModel:
    """The model that another one is made from: one that was named at start, or a store's."""
    listed = await call.server.models.listed()
    best = best_name(name, (one.name for one in listed))
    served = next((one for one in listed if one.name == best), None)
    if served is None or "store" in served.details:
        return name
    return await asyncio.to_thread(find, served.source or served.path, download=False)


async def push(call: Call) -> None:
    """Refuse to send a model to a registry."""
    params = await call.decode(PullRequest)
    raise Unsupported(
        f"{params.target!r:.200} is not pushed: this server sends no models; `ollama push` sends "
        "those of Ollama's own store"
    )


async def delete(call: Call) -> None:
    """Remove a model that was downloaded or made here, in Ollama's format."""
    params = await call.decode(NameRequest)
    _allow(call)
    name = params.target
    model = await asyncio.to_thread(removable, name)
    if not model.own:
        raise Unsupported(f"{model.name} was not downloaded here; `ggmodel rm` removes it")
    for one in await call.server.models.listed():
        if one.state is not None and same_name(one.name, model.name):
            await call.server.models.unload(one.name)
    await asyncio.to_thread(remove, model)
    await call.server.models.changed(model.name)
    await call.reply(b"", "text/plain")


async def has_blob(call: Call) -> None:
    """Tell whether a blob is here."""
    if not blob_path(call.path["digest"]).is_file():
        raise ModelNotFound("there is no such blob")
    await call.reply(b"", "text/plain")


async def put_blob(call: Call) -> None:
    """Take a blob, such as a GGUF file, for /api/create."""
    _allow(call)
    digest = call.path["digest"]
    if blob_path(digest).is_file():
        await call.reply(b"", "text/plain")
        return
    length = int(call.headers.get("content-length") or 0)
    await asyncio.to_thread(check_room, length)
    with receive_blob(digest) as blob:
        async for chunk in call.chunks():
            await asyncio.to_thread(blob.write, chunk)
    await call.reply(b"", "text/plain", 201)


def _allow(call: Call) -> None:
    if not call.server.settings.manage:
        raise Refused("this server changes no models; start it with --manage", 403)


def _derived_model(params: CreateRequest, base: str | ResolvedModel) -> DerivedModel:
    texts = [params.license] if isinstance(params.license, str) else params.license or []
    return DerivedModel(
        base=base,
        files=params.files or {},
        adapters=params.adapters or {},
        template=params.template or "",
        system=params.system or "",
        params=params.parameters or {},
        messages=[{"role": m.role, "content": m.content or ""} for m in params.messages or ()],
        licenses=[text for text in texts if text],
        quantize=params.quantize or params.quantization or "",
    )


async def _in_thread(
    call: Call,
    params: NameRequest,
    work: Callable[[Callable[[Step], None]], object],
    changes: str | None = None,
) -> None:
    """Does work in a thread; its steps are the lines of a stream, where one is wanted.

    Args:
        changes: the name that stands for something else afterwards.
    """
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[Step | None]()
    last = Step("")

    def put(step: Step | None) -> None:
        loop.call_soon_threadsafe(steps.put_nowait, step)

    def report(step: Step) -> None:
        nonlocal last
        came = step.completed - last.completed
        done = step.completed == step.total
        if step.status != last.status or done or came >= _STEP * step.total:
            last = step
            put(step)

    def run() -> None:
        try:
            work(report)
        finally:
            put(None)

    async def done() -> None:
        await loop.run_in_executor(call.server.changes, run)
        if changes is not None:
            await call.server.models.changed(changes)

    task = asyncio.ensure_future(done())
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # if nobody waits
    if params.stream is False:
        await asyncio.shield(task)  # goes on where the client leaves
        await call.json(Status())
        return
    async with call.stream(LINES):
        while (step := await steps.get()) is not None:
            await call.send_all([line(_status(step))])
        await asyncio.shield(task)
        await call.send_all([line(Status())])


def _status(step: Step) -> Status:
    digest = step.digest or UNSET
    if not step.total:
        return Status(step.status, digest)
    return Status(step.status, digest, step.total, step.completed)
