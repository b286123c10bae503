"""/v1/messages/batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.routing import Route

from ....errors import Error
from ...batch.jobs import ENDED, Job
from ...endpoint import LINES, Answers, Call, Handler, route
from ...errors import Refused
from ...pages import Page
from ...server import Server
from .schemas import ANTHROPIC, ErrorAnswer, MessageAnswer

_URL, _PREFIX, _PURPOSE = "/v1/messages", "msgbatch_", "messages"
_MOST = 100_000  # requests, as Anthropic's
_PIECE = 256  # results that are read at a time


class BatchedRequest(Struct):
    """A request of a batch. `params` are those of /v1/messages."""

    custom_id: str
    params: dict[str, Any]


class BatchRequest(Struct):
    """Requests to be answered when there is time."""

    requests: list[BatchedRequest]


class BatchCounts(Struct):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int = 0


class MessageBatch(Struct, kw_only=True, tag="message_batch"):
    id: str
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: BatchCounts
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    cancel_initiated_at: datetime | None
    archived_at: datetime | None = None
    results_url: str | None


class BatchPage(Struct):
    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class BatchDeleted(Struct, tag="message_batch_deleted"):
    id: str


class Result(Struct):
    """`message` where it succeeded, `error` where it did not."""

    type: Literal["succeeded", "errored", "canceled"]
    message: MessageAnswer | UnsetType = UNSET
    error: ErrorAnswer | UnsetType = UNSET


class BatchResult(Struct):
    custom_id: str
    result: Result


def routes(server: Server) -> list[Route]:
    """Its endpoints."""
    base = "/v1/messages/batches"

    def kept(method: str, path: str, handler: Handler, answers: Answers) -> Route:
        return route(method, path, handler, server, ANTHROPIC, answers=answers)

    batch = Answers(MessageBatch)
    return [
        route("POST", base, create, server, ANTHROPIC, BatchRequest, answers=batch),
        kept("GET", base, list_batches, Answers(BatchPage)),
        kept("GET", base + "/{id}", show, batch),
        kept("DELETE", base + "/{id}", delete, Answers(BatchDeleted)),
        kept("POST", base + "/{id}/cancel", cancel, batch),
        kept("GET", base + "/{id}/results", results, Answers(None, {LINES: [BatchResult]})),
    ]


async def create(call: Call) -> None:
    """Answer many conversations when there is time."""
    params = await call.decode(BatchRequest)
    if not 1 <= len(params.requests) <= _MOST:
        raise Refused(f"requests: give from 1 to {_MOST:,}", param="requests")
    ids = [one.custom_id for one in params.requests]
    if len({*ids}) < len(ids):
        raise Refused("requests: two have the same custom_id", param="requests")
    for i, one in enumerate(params.requests):
        if one.params.get("stream"):
            at = f"requests[{i}].params.stream"
            raise Refused(f"{at}: a batch has whole answers", param=at)
    data = await asyncio.to_thread(_lines_of, params.requests)
    store = call.server.files
    file = await asyncio.to_thread(store.add, call.key, "requests.jsonl", _PURPOSE, [data])
    fields = {"splits": False, "total": len(ids)}
    try:
        job = call.server.jobs.create(_PREFIX, file, _URL, **fields)
    except Error:
        store.drop(file)
        raise
    await call.json(_shown(call, job))


def _lines_of(requests: list[BatchedRequest]) -> bytes:
    lines = (
        {"custom_id": one.custom_id, "method": "POST", "url": _URL, "body": one.params}
        for one in requests
    )
    return b"".join(msgspec.json.encode(one) + b"\n" for one in lines)


async def list_batches(call: Call) -> None:
    """List the batches."""
    jobs = call.server.jobs.of(call.key, splits=False)
    page = Page.of(jobs, lambda one: one.id, call.query)
    await call.json(BatchPage([_shown(call, one) for one in page.items], *page.rest))


async def show(call: Call) -> None:
    """Tell how far a batch is."""
    await call.json(_shown(call, _job(call)))


async def delete(call: Call) -> None:
    """Remove a batch that has ended, with its answers."""
    job = _job(call)
    if job.status not in ENDED:
        raise Refused("the batch has not ended; cancel it first")
    call.server.jobs.drop(job)
    await call.json(BatchDeleted(job.id))


async def cancel(call: Call) -> None:
    """End a batch before its time; the answers that it has stay."""
    job = _job(call)
    call.server.jobs.cancel(job)
    await call.json(_shown(call, job))


async def results(call: Call) -> None:
    """Send the answers of a batch that has ended, a line each."""
    job = _job(call)
    if job.status not in ENDED:
        raise Refused("the batch has not ended; ask again later")
    lines = _results(call, job)

    def some() -> bytes:
        return b"".join(islice(lines, _PIECE))

    async with call.stream(LINES):
        while piece := await asyncio.to_thread(some):
            await call.send_all([piece])


def _results(call: Call, job: Job) -> Iterator[bytes]:
    for request, answer in call.server.jobs.lines(job):
        if answer is None:
            result: dict[str, Any] = {"type": "canceled"}
            if job.error:
                error = {"type": "api_error", "message": job.error}
                result = {"type": "errored", "error": {"type": "error", "error": error}}
        elif answer.response.status_code < 400:
            result = {"type": "succeeded", "message": answer.response.body}
        else:
            result = {"type": "errored", "error": answer.response.body}
        line = {"custom_id": request.custom_id, "result": result}
        yield msgspec.json.encode(line) + b"\n"


def _job(call: Call) -> Job:
    id = call.path["id"]
    job = call.server.jobs.get(id, call.key)
    if job is None or job.splits:
        raise Refused(f"no batch has the id {id!r:.100}", 404)
    return job


def _shown(call: Call, job: Job) -> MessageBatch:
    ended = job.status in ENDED
    left = job.total - job.good - job.bad
    created = _moment(job.created)
    url = f"{call.base_url}/v1/messages/batches/{job.id}/results"
    return MessageBatch(
        id=job.id,
        processing_status=(
            "ended" if ended else "canceling" if job.status == "cancelling" else "in_progress"
        ),
        request_counts=BatchCounts(
            processing=0 if ended else left,
            succeeded=job.good,
            errored=job.bad + (left if job.error else 0),
            canceled=left if ended and not job.error else 0,
        ),
        created_at=created,
        expires_at=created + timedelta(days=1),
        ended_at=_moment(job.ended) if job.ended else None,
        cancel_initiated_at=_moment(job.cancelled) if job.cancelled else None,
        results_url=url if ended else None,
    )


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)
