"""The server: settings and parts that all endpoints share, and stored answers."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette

from ..bounds import limits
from .background import Background, EventLog
from .batch.jobs import Jobs
from .batch.store import FileStore
from .bodies import Bodies
from .errors import Refused
from .media import Media
from .metrics import Metrics
from .monitoring import NotesRequests, RequestLog
from .pool import Models


@dataclass(frozen=True)
class Stored:
    """An answer with the conversation that led to it.

    Attributes:
        owner: the client's key: others cannot see it.
        answer: as its API put it. input: the items that its request added.
        history: all messages up to the answer and with it, as runners take them; None without an
            answer.
        nbytes: an estimate of its memory.
        events: those of an answer in the background that is streamed.
    """

    owner: str
    answer: bytes
    input: list[Any]
    history: list[dict[str, Any]] | None
    nbytes: int
    events: EventLog | None = None


class ResponseStore:
    """Answers by their id."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._nbytes = 0

    def put(self, id: str, response: Stored) -> bool:
        """Keeps an answer in place of one with its id, unless it alone exceeds the limit; whether
        it does."""
        if response.nbytes > limits.serve_stored_bytes:
            return False
        if before := self._stored.pop(id, None):
            self._nbytes -= before.nbytes
        self._stored[id] = response
        self._nbytes += response.nbytes
        while len(self._stored) > limits.serve_stored or self._nbytes > limits.serve_stored_bytes:
            _, oldest = self._stored.popitem(last=False)
            self._nbytes -= oldest.nbytes
        return True

    def get(self, id: str, owner: str) -> Stored | None:
        """An answer of this client; None if there is none, or no longer."""
        response = self._stored.get(id)
        if response is None or response.owner != owner:
            return None
        self._stored.move_to_end(id)
        return response

    def drop(self, id: str, owner: str) -> bool:
        """Forgets an answer; whether there was one."""
        response = self.get(id, owner)
        if response is None:
            return False
        del self._stored[id]
        self._nbytes -= response.nbytes
        return True


_CHANGES = 4  # models that are downloaded or made at a time


@dataclass(frozen=True)
class Settings:
    """Choices that were made at the start.

    Attributes:
        keys: API keys; without any, everybody may ask.
        origins: of web pages that may use the server besides its own; "*" for all, "localhost" for
            those of this machine and its programs.
        hosts: names under which the server may be reached besides its address. Without any, a
            server that others can reach answers to addresses and this machine's own names, and
            to all names where it wants keys.
        mcp_origins: of MCP servers that the page may use besides those of the browser's machine.
        media_folders: folders whose files requests may name.
        media_hosts: hosts whose images and sounds requests may name.
        max_tokens: the longest answer; None for what has room in the context.
        timeout: seconds that a request may take; 0 for no limit.
        ping_seconds: of silence in a stream of events, after which a ping keeps clients and proxies
            waiting; 0 or less for no pings.
        manage: requests may download, make and remove models of this machine.
        files: the folder of uploaded files and batches; None for a temporary one.
        slot_save_path: the folder of saved slots; None for none.
        log_requests: a line for each on standard error. verbose: their bodies and those of answers,
            too.
        strict_fields: a field without effect is an error.
        metrics, slots: those who may ask may see /metrics and /slots.
        seed: of requests that give none; −1 is a new one each time.
        pooling: as `Embed` has it.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ("localhost",)
    hosts: tuple[str, ...] = ()
    mcp_origins: tuple[str, ...] = ()
    media_folders: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()
    max_tokens: int | None = None
    timeout: float = 3600.0
    ping_seconds: float = 15.0
    manage: bool = False
    log_requests: bool = False
    verbose: bool = False
    files: str | None = None
    slot_save_path: str | None = None
    strict_fields: bool = False
    metrics: bool = True
    slots: bool = True
    seed: int = -1
    pooling: str | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Options of requests that give none."""
        return {} if self.seed < 0 else {"seed": self.seed}

    @property
    def one_row(self) -> str | None:
        """`pooling` for an answer that has a row a text.

        Raises:
            Refused: it gives a row a token.
        """
        if self.pooling == "none":
            raise Refused("the server pools nothing (--pooling none); ask /embedding for all rows")
        return self.pooling


@dataclass
class Server:
    """Models behind APIs.

    Attributes:
        stored: answers that later requests go on from.
        files: that clients have uploaded. jobs: their batches. background: answers that nobody
            waits for.
        changes: threads that download and make models; others have to wait for nothing there.
    """

    models: Models
    settings: Settings = field(default_factory=Settings)
    metrics: Metrics = field(default_factory=Metrics)
    bodies: Bodies = field(default_factory=Bodies)
    stored: ResponseStore = field(default_factory=ResponseStore)
    changes: Executor = field(default_factory=lambda: ThreadPoolExecutor(_CHANGES, "changes"))
    media: Media = field(init=False)
    files: FileStore = field(init=False)
    jobs: Jobs = field(init=False)
    background: Background = field(init=False)
    log: RequestLog | None = field(init=False)

    def __post_init__(self) -> None:
        self.log = RequestLog() if self.settings.log_requests else None
        self.files = FileStore(self.settings.files)
        self.background = Background()
        self.jobs = Jobs(self.files, self._app)
        self.media = Media(self.settings.media_folders, self.settings.media_hosts)

    def start(self) -> None:
        """Begins what need not wait for requests."""
        self.models.start()
        self.jobs.start()

    def _app(self) -> Any:
        """Answers requests without checks of their keys and hosts; each has its own record."""
        from .api import routes

        app = Starlette(routes=routes(self))
        return NotesRequests(app, self.log, self.settings.verbose)

    async def close(self) -> None:
        """Ends all runners."""
        self.background.close()
        await self.jobs.close()
        self.media.close()
        self.changes.shutdown(wait=False, cancel_futures=True)
        await self.models.close()
        self.files.close()
        if self.log is not None:
            self.log.close()
