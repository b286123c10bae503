"""Batches that clients ask for: files of requests, answered one after another."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ...bounds import limits
from ...errors import Error, FormatError
from ...storage import naming
from ..errors import Refused
from . import AnswerFile, AnswerLine, RequestFile, RequestLine, answer_all, ask
from .store import FileStore, StoredFile

logger = logging.getLogger("ggmodel.serve")

_WIDTH = 8  # requests of a batch that are asked at a time; other clients' wait beside them
_RECORD, _ANSWERS, _PART = ".batch", ".answers", ".answers.part"
_line = msgspec.json.Decoder(AnswerLine)

Status = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled"
]
ENDED = frozenset({"completed", "failed", "cancelled"})


class Job(Struct, kw_only=True):
    """A batch.

    Attributes:
        owner: see `Call.key`.
        input: the id of the file of requests. answers, rejects: those of the files of good answers
            and of others, where `splits`; "" for none.
        url: that all requests ask.
        splits: answers become files of the client.
        created, begun, ended, cancelled: seconds since 1970; 0 where that has not happened.
        error: the reason why the batch could not be answered.
    """

    id: str
    owner: str
    input: str
    url: str
    splits: bool
    created: int
    window: str = "24h"
    metadata: dict[str, str] | None = None
    status: Status = "validating"
    begun: int = 0
    ended: int = 0
    cancelled: int = 0
    total: int = 0
    good: int = 0
    bad: int = 0
    answers: str = ""
    rejects: str = ""
    error: str = ""


class Jobs:
    """Batches by their id. One is answered at a time."""

    def __init__(self, store: FileStore, make_app: Callable[[], Any]):
        """Reads what an earlier server left.

        Args:
            make_app: makes the ASGI application that answers.
        """
        self._store, self._make_app = store, make_app
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._free, self._closed = asyncio.Lock(), False
        if store.stays:
            found = list[Job]()
            for record in store.folder.glob(f"*{_RECORD}"):
                with suppress(msgspec.DecodeError):
                    found.append(msgspec.json.decode(record.read_bytes(), type=Job))
            self._jobs = {one.id: one for one in sorted(found, key=lambda one: one.created)}

    def start(self) -> None:
        """Goes on with batches that an earlier server has begun; in the loop of all requests."""
        for job in self._jobs.values():
            if job.status not in ENDED:
                self._begin(job)

    async def close(self) -> None:
        """Stops; what has been answered stays."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def create(self, prefix: str, file: StoredFile, url: str, **fields: Any) -> Job:
        """Begins a batch.

        Args:
            prefix: of its id. file: of requests. fields: of `Job`.

        Raises:
            Refused: there are too many.
        """
        if len(self._jobs) >= limits.serve_files:
            own = (one for one in self._jobs.values() if one.owner == file.owner)
            ended = next((one for one in own if one.status in ENDED), None)
            if ended is None:
                raise Refused("the server keeps too many batches; try again later", 429)
            self.drop(ended)
        id, now = f"{prefix}{secrets.token_hex(12)}", int(time.time())
        job = Job(id=id, owner=file.owner, input=file.id, url=url, created=now, **fields)
        self._save(job)
        self._jobs[job.id] = job
        self._begin(job)
        return job

    def get(self, id: str, owner: str) -> Job | None:
        """A batch of a client; None if there is none."""
        job = self._jobs.get(id)
        return job if job is not None and job.owner == owner else None

    def of(self, owner: str, splits: bool) -> list[Job]:
        """The batches of a client, the newest first."""
        found = [one for one in self._jobs.values() if (one.owner, one.splits) == (owner, splits)]
        return found[::-1]

    def cancel(self, job: Job) -> None:
        """Ends a batch soon; the answers that it has stay."""
        if job.status in ENDED or job.status in ("cancelling", "finalizing"):
            return
        job.status, job.cancelled = "cancelling", int(time.time())
        self._save(job)
        if task := self._tasks.get(job.id):
            task.cancel()

    def drop(self, job: Job) -> None:
        """Forgets a batch that has ended, but not the files of its client."""
        self._jobs.pop(job.id, None)
        if not job.splits and (file := self._store.get(job.input, job.owner)):
            self._store.drop(file)
        self._remove(job, _RECORD, _ANSWERS, _PART)

    def lines(self, job: Job) -> Iterator[tuple[RequestLine, AnswerLine | None]]:
        """The requests of a batch that has ended, each with its answer; None where it has none."""
        file = self._store.get(job.input, job.owner)
        if file is None:
            return
        answers = self._answers(job)
        for request in RequestFile(self._store.path(file)).lines():
            yield request, next(answers, None)

    def _answers(self, job: Job) -> Iterator[AnswerLine]:
        for ending in (_ANSWERS, _PART):
            with suppress(FileNotFoundError), open(self._path(job, ending), "rb") as file:
                yield from (_line.decode(line) for line in file if line.endswith(b"\n"))
                return

    def _remove(self, job: Job, *endings: str) -> None:
        for ending in endings:
            self._path(job, ending).unlink(missing_ok=True)

    def _path(self, job: Job, ending: str) -> Path:
        return self._store.folder / (job.id + ending)

    def _save(self, job: Job) -> None:
        path = self._path(job, _RECORD)
        with naming(path):
            path.write_bytes(msgspec.json.encode(job))

    def _begin(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))

    async def _run(self, job: Job) -> None:
        status: Status = "failed"
        try:
            # An earlier server may have ended after the last answer.
            if job.status != "cancelling" and not self._path(job, _ANSWERS).exists():
                async with self._free:
                    await self._answer(job)
            status = "cancelled" if job.status == "cancelling" else "completed"
        except asyncio.CancelledError:
            if job.status != "cancelling":  # the server ends
                raise
            status = "cancelled"
        except Error as error:
            job.error = str(error)
        except Exception:
            logger.exception("a bug of the server")
            job.error = "the server failed; see its log"
        if status != "cancelled":
            job.status = "finalizing"
        await asyncio.to_thread(self._finish, job, status)  # goes on though it is cancelled

    async def _answer(self, job: Job) -> None:
        file = self._store.get(job.input, job.owner)
        if file is None:
            raise FormatError("the file of requests was deleted")
        requests = await asyncio.to_thread(self._checked, file, job.url)
        job.status, job.begun, job.total = "in_progress", int(time.time()), requests.count
        await asyncio.to_thread(self._count, job)
        self._save(job)
        app = self._make_app()
        room = limits.serve_files_bytes

        async def answer(url: str, body: bytes) -> tuple[int, bytes]:
            nonlocal room
            status, text = await ask(app, url, body, job.owner)
            if self._closed or job.status == "cancelling":
                raise asyncio.CancelledError  # the request may have ended with an error of its own
            room -= len(text)
            if room < 0:
                raise FormatError("the answers exceed the limit serve_files_bytes")
            return status, text

        def count(done: int) -> None:
            job.bad = bad + answers.bad
            job.good = done - job.bad

        path, bad = self._path(job, _ANSWERS), job.bad
        with await asyncio.to_thread(AnswerFile, path, requests, force=True) as answers:
            await answer_all(requests, answers, answer, _WIDTH, count)

    def _checked(self, file: StoredFile, url: str) -> RequestFile:
        """The requests of a file, all of which ask one URL.

        Raises:
            FormatError: one does not, or is no request.
        """
        path = self._store.path(file)
        try:
            requests = RequestFile(path)
        except Error as error:
            raise FormatError(str(error).replace(str(path), file.filename)) from None
        wrong = next((one for one in requests.lines() if one.url != url), None)
        if wrong is not None:
            raise FormatError(f"{wrong.custom_id!r:.100} asks {wrong.url}, not {url}")
        return requests

    def _count(self, job: Job) -> None:
        """Counts the answers that are there."""
        statuses = [one.response.status_code for one in self._answers(job)]
        job.bad = sum(status >= 400 for status in statuses)
        job.good = len(statuses) - job.bad

    def _finish(self, job: Job, status: Status) -> None:
        self._count(job)
        try:
            if job.splits:
                self._split(job)
        except (Error, OSError) as error:
            status, job.error = "failed", str(error)
        job.ended, job.status = int(time.time()), status
        self._save(job)
        if job.splits:
            self._remove(job, _ANSWERS, _PART)

    def _split(self, job: Job) -> None:
        """Makes files of the client of good answers and of others, unless they are there."""
        kinds = ((True, "answers", "output", job.good), (False, "rejects", "error", job.bad))
        for is_good, field, name, count in kinds:
            if not count or getattr(job, field):
                continue
            lines = (
                msgspec.json.encode(one) + b"\n"
                for one in self._answers(job)
                if (one.response.status_code < 400) == is_good
            )
            name = f"{job.id}_{name}.jsonl"
            setattr(job, field, self._store.add(job.owner, name, "batch_output", lines).id)
            self._save(job)
