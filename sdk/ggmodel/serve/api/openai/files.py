"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from msgspec import Meta, Struct
from starlette.routing import Route

from ...batch import URLS
from ...batch.jobs import ENDED, Job, Status
from ...batch.store import StoredFile
from ...endpoint import Answers, Call, Handler, route
from ...errors import Refused
from ...pages import Page
from ...server import Server
from .schemas import OPENAI

_WORD = 64  # characters of a purpose
# The limits of OpenAI's metadata.
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class FileObject(Struct, tag_field="object", tag="file"):
    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: None = None


class FileList(Struct, tag_field="object", tag="list"):
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class FileDeleted(Struct, tag_field="object", tag="file"):
    id: str
    deleted: bool = True


class FileForm(Struct):
    """The fields of a form."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: str


class BatchRequest(Struct):
    """A request."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"] = "24h"
    metadata: Metadata | None = None


class BatchError(Struct):
    message: str
    code: str = "invalid_request"
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, tag_field="object", tag="list"):
    data: list[BatchError]


class RequestCounts(Struct):
    total: int
    completed: int
    failed: int


class Batch(Struct, kw_only=True, tag_field="object", tag="batch"):
    id: str
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(Struct, tag_field="object", tag="list"):
    data: list[Batch]
    has_more: bool
    first_id: str | None
    last_id: str | None


def routes(server: Server) -> list[Route]:
    """Its endpoints."""

    def kept(method: str, path: str, handler: Handler, answers: Answers) -> Route:
        return route(method, path, handler, server, OPENAI, answers=answers)

    files, batches = "/v1/files", "/v1/batches"
    content = Answers(None, {"application/octet-stream": [str]})
    batch = Answers(Batch)
    return [
        kept("POST", files, upload, Answers(FileObject, form=FileForm)),
        kept("GET", files, list_files, Answers(FileList)),
        kept("GET", files + "/{id}", show_file, Answers(FileObject)),
        kept("DELETE", files + "/{id}", delete_file, Answers(FileDeleted)),
        kept("GET", files + "/{id}/content", file_content, content),
        route("POST", batches, create_batch, server, OPENAI, BatchRequest, answers=batch),
        kept("GET", batches, list_batches, Answers(BatchList)),
        kept("GET", batches + "/{id}", show_batch, batch),
        kept("POST", batches + "/{id}/cancel", cancel_batch, batch),
    ]


async def upload(call: Call) -> None:
    """Keep a file, such as one of requests; a form with it."""
    form = await call.form()
    purpose, data = form.text("purpose"), form.file()
    if not purpose or len(purpose) > _WORD:
        raise Refused("purpose: give one, such as 'batch'", param="purpose")
    name = form.filename or "file"
    file = await asyncio.to_thread(call.server.files.add, call.key, name, purpose, [data])
    await call.json(_shown(file))


async def list_files(call: Call) -> None:
    """List the files that are kept."""
    (purpose,) = parse_qs(call.query).get("purpose", [None])[-1:]
    files = [one for one in call.server.files.of(call.key) if purpose in (None, one.purpose)]
    page = Page.of(files, lambda one: one.id, call.query, "after", "before")
    await call.json(FileList([_shown(one) for one in page.items], *page.rest))


async def show_file(call: Call) -> None:
    """Describe a file."""
    await call.json(_shown(_file(call, call.path["id"])))


async def delete_file(call: Call) -> None:
    """Remove a file."""
    file = _file(call, call.path["id"])
    await asyncio.to_thread(call.server.files.drop, file)
    await call.json(FileDeleted(file.id))


async def file_content(call: Call) -> None:
    """Send a file, as it is."""
    path = call.server.files.path(_file(call, call.path["id"]))
    with open(path, "rb") as source:
        async with call.stream("application/octet-stream"):
            while piece := await asyncio.to_thread(source.read, 1 << 20):
                await call.send_all([piece])


async def create_batch(call: Call) -> None:
    """Answer a file of requests; `/v1/batches/ID` tells how far it is."""
    params = await call.decode(BatchRequest)
    if params.endpoint not in URLS:
        known = ", ".join(sorted(URLS))
        message = f"endpoint: {params.endpoint!r:.100} is none of {known}"
        raise Refused(message, param="endpoint")
    file = _file(call, params.input_file_id, "input_file_id")
    job = call.server.jobs.create(
        "batch_",
        file,
        params.endpoint,
        splits=True,
        window=params.completion_window,
        metadata=params.metadata,
    )
    await call.json(_batch(job))


async def list_batches(call: Call) -> None:
    """List the batches."""
    jobs = call.server.jobs.of(call.key, splits=True)
    page = Page.of(jobs, lambda one: one.id, call.query, "after", "before")
    await call.json(BatchList([_batch(one) for one in page.items], *page.rest))


async def show_batch(call: Call) -> None:
    """Tell how far a batch is."""
    await call.json(_batch(_job(call)))


async def cancel_batch(call: Call) -> None:
    """End a batch before its time; the answers that it has stay."""
    job = _job(call)
    call.server.jobs.cancel(job)
    await call.json(_batch(job))


def _file(call: Call, id: str, param: str | None = None) -> StoredFile:
    file = call.server.files.get(id, call.key)
    if file is None:
        status = 404 if param is None else 400
        raise Refused(f"{param or 'file'}: no file has the id {id!r:.100}", status, param=param)
    return file


def _job(call: Call) -> Job:
    id = call.path["id"]
    job = call.server.jobs.get(id, call.key)
    if job is None or not job.splits:
        raise Refused(f"no batch has the id {id!r:.100}", 404)
    return job


def _shown(file: StoredFile) -> FileObject:
    return FileObject(file.id, file.nbytes, file.created, file.filename, file.purpose)


def _batch(job: Job) -> Batch:
    ended: Mapping[str, Any] = {f"{job.status}_at": job.ended} if job.status in ENDED else {}
    return Batch(
        id=job.id,
        endpoint=job.url,
        errors=BatchErrors([BatchError(job.error)]) if job.error else None,
        input_file_id=job.input,
        completion_window=job.window,
        status=job.status,
        output_file_id=job.answers or None,
        error_file_id=job.rejects or None,
        created_at=job.created,
        in_progress_at=job.begun or None,
        finalizing_at=int(time.time()) if job.status == "finalizing" else None,
        cancelling_at=job.cancelled or None,
        request_counts=RequestCounts(job.total, job.good, job.bad),
        metadata=job.metadata,
        **ended,
    )
