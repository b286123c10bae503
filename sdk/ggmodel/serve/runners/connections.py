"""Connections to a runner: each has a thread that reads and one that sends."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from ...bounds import limits, one_request
from ...chat.messages import have_items
from ...errors import Busy, Cancelled, ConfigError, Error, FormatError
from ...ml.runner_discovery import answer
from ...platforms.processes import give_memory_back
from ...platforms.sockets import own_port
from ...runner import LoadedModel
from ..requests import ChatParams, Failure, State
from .protocol import (
    HELLO_BYTES,
    METHODS,
    VERSION,
    Cancel,
    Events,
    MethodCall,
    Ping,
    Result,
    Splitter,
    Taken,
    Welcome,
    failure_of,
    frame,
    from_client,
    greeting,
    lossy,
    pack_answer,
    requests,
)
from .state import state_of
from .work import GenerationEvents, Work

_READ = 1 << 18  # bytes
_HELLO_SECONDS = 10.0  # until who connects must have said the secret
_LAST_SECONDS = 1.0  # for the last message to one that is refused
_SHORT = 1 << 16  # bytes of a request whose text is encoded in some milliseconds
_LARGE, _TRIMS = 1 << 20, 2  # bytes of a request after which memory is given back, and how often
_KINDS = ("prompt", "text", "media", "template", "grammar", "call")
_PROMPTS = ("generate", "tokenize", "detokenize", "render")


class Pools:
    """The threads in which requests are read and computed, until the engine has them. Short texts
    wait neither for long ones, nor for pictures that are decoded, nor for templates and grammars of
    requests, nor for what the model computes outside of the scheduler."""

    def __init__(self) -> None:
        self._threads = {kind: ThreadPoolExecutor(4, f"ggmodel-{kind}") for kind in _KINDS}

    def submit(self, call: MethodCall, request: Any, work: Callable[[], None]) -> Future[None]:
        """Calls `work` as soon as a thread for requests of this kind is free."""
        return self._threads[self._kind(call, request)].submit(work)

    @staticmethod
    def _kind(call: MethodCall, request: Any) -> str:
        if call.method not in _PROMPTS or getattr(request, "prompt_logprobs", None) is not None:
            return "call"
        if getattr(request, "grammar", None) is not None:
            return "grammar"
        fields = {"tokenize": "text", "render": "chat"}
        prompt = getattr(request, fields.get(call.method, "prompt"), "")
        if isinstance(prompt, ChatParams):
            if prompt.template is not None:
                return "template"
            media = have_items(prompt.messages)
        else:
            parts = prompt if isinstance(prompt, list) else ()
            media = any(not isinstance(part, (int, str)) for part in parts)
        return "media" if media else "prompt" if len(call.body) <= _SHORT else "text"


@dataclass(eq=False)
class _Request:
    """A request that has no complete answer yet.

    Attributes:
        large: it may take much memory.
        events: of a generation that has begun.
    """

    id: int
    method: str
    large: bool = False
    cancelled: bool = False
    future: Future[None] | None = None
    events: GenerationEvents | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raises Cancelled once nobody waits."""
        if self.cancelled:
            raise Cancelled("the caller no longer waits for this")


class Session:
    """Serves one connection.

    Args:
        token: the secret that it must begin with.
    """

    def __init__(
        self, connection: socket.socket, token: str, work: Work, state: State, pools: Pools
    ):
        self._socket, self._token = connection, token
        self._work, self._state, self._pools = work, state, pools
        self._requests: dict[int, _Request] = {}
        self._trims = 0  # to come
        self._outbox: SimpleQueue[_Request | bytearray | None] = SimpleQueue()

    def serve(self, first: bytes) -> None:
        """Serves until the client ends.

        Args:
            first: bytes that were read already.
        """
        sender = threading.Thread(target=self._send, name="ggmodel-send", daemon=True)
        sender.start()
        try:
            splitter, messages = self._greeted(first)
            self._socket.settimeout(None)
            while True:
                for message in messages:
                    self._take(message)
                data = self._socket.recv(_READ)
                if not data:
                    return
                messages = splitter.feed(data)
        except OSError:
            pass  # the client has gone
        except (Error, msgspec.MsgspecError) as error:
            if isinstance(error, msgspec.MsgspecError):
                error = FormatError(f"a message is malformed: {error}")
            self._post(Result(0, failure=failure_of(error)))  # 0 is no request's number
        finally:
            for request in list(self._requests.values()):
                self._cancel(request)
            self._outbox.put(None)
            sender.join(_LAST_SECONDS)
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            sender.join()
            self._socket.close()

    def _greeted(self, first: bytes) -> tuple[Splitter, list[bytes]]:
        """Reads the hello; the messages that came right after it.

        Raises:
            FormatError: it is none, or the secret is wrong.
        """
        self._socket.settimeout(_HELLO_SECONDS)
        splitter = Splitter(HELLO_BYTES)
        messages = splitter.feed(first)
        while not messages:
            data = self._socket.recv(_READ)
            if not data:
                raise OSError("the connection ended")
            messages = splitter.feed(data)
        hello = greeting.decode(messages[0])
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise FormatError("this is not the runner's secret")
        if hello.version != VERSION:
            raise FormatError(f"the runner speaks version {VERSION}, not {hello.version}")
        splitter.most = limits.frame_bytes
        self._outbox.put(frame(Welcome(self._state)))
        return splitter, messages[1:]

    # requests; in the thread that reads

    def _take(self, encoded: bytes) -> None:
        message = from_client.decode(encoded)
        if isinstance(message, MethodCall):
            self._begin(message)
        elif isinstance(message, Ping):
            self._outbox.put(frame(message))
            if self._trims and not any(one.large for one in list(self._requests.values())):
                self._trims -= 1  # one that was cancelled may still be at work: once more
                give_memory_back()
        elif (request := self._requests.get(message.id)) is None:
            return  # its answer was on the way
        elif isinstance(message, Cancel):
            self._cancel(request)
        elif isinstance(message, Taken) and request.events is not None:
            request.events.granted += message.count
            self._outbox.put(request)

    def _begin(self, call: MethodCall) -> None:
        if call.method not in METHODS or call.id in self._requests or call.id < 1:
            raise FormatError(f"no request can be {call.method[:40]!r} with number {call.id}")
        if len(self._requests) >= limits.runner_requests:
            error = Busy(
                f"a runner takes {limits.runner_requests:,} requests (limits.runner_requests)"
            )
            self._post(Result(call.id, failure=failure_of(error)))
            return
        large = len(call.body) > _LARGE
        self._trims = _TRIMS if large else self._trims
        try:
            body = requests[call.method].decode(call.body)
        except msgspec.MsgspecError as wrong:  # others' requests go on
            malformed = FormatError(f"the request is malformed: {wrong}")
            self._post(Result(call.id, failure=failure_of(malformed)))
            return
        request = self._requests[call.id] = _Request(call.id, call.method, large)
        request.future = self._pools.submit(call, body, lambda: self._run(request, body))

    def _cancel(self, request: _Request) -> None:
        with request.lock:
            request.cancelled = True
        self._requests.pop(request.id, None)
        if request.future is not None:
            request.future.cancel()
        if request.events is not None:
            request.events.generation.cancel()

    # in a thread of the pool

    def _run(self, request: _Request, body: Any) -> None:
        try:
            request.check()
            with one_request():
                if request.method == "generate":
                    self._generate(request, body)
                    return
                answer = getattr(self._work, request.method)(body, request.check)
            result = Result(request.id, pack_answer(answer))
        except BaseException as error:
            result = Result(request.id, failure=failure_of(error))
        if self._requests.pop(request.id, None) is not None:
            self._post(result)

    def _generate(self, request: _Request, body: Any) -> None:
        events = self._work.prepare(body, request.check)
        with request.lock:  # either side sees what the other did
            request.events = events
            request.check()
        self._outbox.put(request)
        if not events.complete:
            events.generation.watch(lambda: self._outbox.put(request), events.progress)

    def _post(self, result: Result) -> None:
        try:
            self._outbox.put(frame(result))
        except FormatError as error:
            self._outbox.put(frame(Result(result.id, failure=failure_of(error))))

    # in the thread that sends

    def _send(self) -> None:
        with suppress(OSError):
            while (first := self._outbox.get()) is not None:
                waiting: list[_Request | bytearray | None] = [first]
                with suppress(Empty):
                    while True:
                        waiting.append(self._outbox.get_nowait())
                if data := self._framed(waiting):
                    self._socket.sendall(data)
                if None in waiting:
                    break
        with suppress(OSError):  # the reader ends, too
            self._socket.shutdown(socket.SHUT_RDWR)

    def _framed(self, waiting: list[_Request | bytearray | None]) -> bytes:
        """Results, and what has come of answers: all of one step in one message."""
        parts: list[bytearray] = []
        events: list[tuple[int, Any]] = []
        for one in {id(one): one for one in waiting}.values():
            if isinstance(one, bytearray):
                parts.append(one)
            elif one is not None and one.events is not None and not one.cancelled:
                events += [(one.id, event) for event in one.events.take()]
                if one.events.over:
                    self._requests.pop(one.id, None)
        if events:
            parts.append(self._frame_of(events))
        return b"".join(parts)

    def _frame_of(self, events: list[tuple[int, Any]]) -> bytearray:
        """A message of events; a request whose events cannot be sent fails, and no other."""
        try:
            return frame(Events(events))
        except Exception as error:
            first = events[0][0]
            if others := [event for event in events if event[0] != first]:
                own = [event for event in events if event[0] == first]
                return self._frame_of(own) + self._frame_of(others)
            if (request := self._requests.get(first)) is not None:
                self._cancel(request)
            return frame(Events([(first, failure_of(error))]))


_CONNECTIONS = 64
_FIRST_SECONDS = 10.0  # until who connects must have sent something


class Listener:
    """Listens on this machine alone.

    Args:
        token: the secret with which requests begin.
        port: 0 is any that is free.

    Attributes:
        port: the one that it is.

    Raises:
        ConfigError: the port cannot be had.
    """

    def __init__(self, token: str, port: int = 0):
        self._token = token
        self._socket = socket.socket()
        own_port(self._socket)
        try:
            self._socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ConfigError(f"the port {port} cannot be used: {error}") from None
        self._socket.listen(_CONNECTIONS)
        self.port: int = self._socket.getsockname()[1]
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        self._pools = Pools()
        self._loaded: tuple[Work, State] | None = None
        self._answers: dict[str, Callable[[], Any]] = {
            "/info": _devices,
            "/active": lambda: [],
            "/state": lambda: None,
        }
        threading.Thread(target=self._listen, name="ggmodel-listen", daemon=True).start()

    def ready(self, model: LoadedModel) -> None:
        """From now on requests are taken."""
        devices = [{"id": d.id, "backend": d.library} for d in model.backend.backend_devices()]
        work, state = Work(model), state_of(model)
        described = lossy(msgspec.json.encode, state)
        self._answers |= {"/active": lambda: devices, "/state": lambda: described}
        self._loaded = work, state

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection,), name="ggmodel-connection", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(_FIRST_SECONDS)
                first = connection.recv(HELLO_BYTES)
                if first.startswith(b"GET "):
                    answer(connection, first, self._answers)
                elif self._loaded is not None:
                    work, state = self._loaded
                    Session(connection, self._token, work, state, self._pools).serve(first)
                elif first:
                    failure = Failure("Busy", "the model is still being loaded")
                    connection.sendall(frame(Result(0, failure=failure)))
        finally:
            self._places.release()


def _devices() -> list[dict[str, Any]]:
    """The devices that ggml knows, with their present memory."""
    from ...ml.ggml.hardware import discover

    return [device.to_json() for device in discover(cpu=True)]
