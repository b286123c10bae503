"""APIs that other programs speak, and the ASGI application made of them."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match

from ..bodies import EndsUnread
from ..endpoint import WARNINGS, Call, ErrorFormat, refuse
from ..errors import Refused, problem_of
from ..monitoring import ID_HEADERS, NotesRequests
from ..security import Guard, allowed_origins
from .anthropic import ANTHROPIC
from .anthropic.models import asks_anthropic
from .ollama import OLLAMA
from .openai import OPENAI

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.routing import Route

    from ..server import Server


class Api(NamedTuple):
    """A module below `serve.api` with `routes(server)`.

    Attributes:
        prefix: of the paths whose errors have its format, such as those that do not exist. The
            longest that fits counts.
    """

    module: str
    prefix: str
    errors: ErrorFormat


APIS: Sequence[Api] = (
    Api("openai", "/", OPENAI),
    Api("anthropic", "/v1/messages", ANTHROPIC),
    Api("ollama", "/api/", OLLAMA),
    Api("root", "/", OPENAI),
    Api("llama_server", "/", OPENAI),
    Api("operations", "/", OPENAI),
    Api("slots", "/", OPENAI),
)


def errors_of(scope: Any) -> ErrorFormat:
    """The format of errors at a request's path, or at a target that is no path."""
    path = scope["path"]
    if path.startswith("/v1/models") and asks_anthropic(Headers(scope=scope)):
        return ANTHROPIC
    fitting = [api for api in APIS if path.startswith(api.prefix)]
    return max(fitting, key=lambda api: len(api.prefix), default=APIS[0]).errors


def routes(server: Server) -> list[Route]:
    """The endpoints of all APIs."""
    modules = [importlib.import_module(f"{__package__}.{api.module}") for api in APIS]
    return [one for module in modules for one in module.routes(server)]


def make_app(server: Server) -> Any:
    """The application of a server."""

    async def refused(scope: Any, receive: Any, send: Any, error: Exception) -> None:
        await refuse(Call(server, scope, send), errors_of(scope), problem_of(error))

    async def missing(scope: Any, receive: Any, send: Any, error: HTTPException) -> None:
        what = "no such endpoint" if error.status_code == 404 else f"{error.detail}"
        text = f"{what}: {scope['method']} {scope['path']!r:.200}; /openapi.json lists all"
        methods = _methods(scope) if error.status_code == 405 else ()
        await refused(scope, receive, send, Refused(text, error.status_code, allowed=methods))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        server.start()
        yield
        await server.close()

    app = Starlette(
        routes=routes(server),
        middleware=[
            Middleware(NotesRequests, log=server.log, verbose=server.settings.verbose),
            Middleware(EndsUnread),
            *_cors(server.settings.origins),  # pages may read refusals, too
            Middleware(Guard, settings=server.settings, refused=refused),
        ],
        lifespan=lifespan,
    )
    app.add_exception_handler(HTTPException, _handler(missing))
    return app


def _methods(scope: Any) -> list[str]:
    """The methods of the endpoint at a path, whatever the request's."""
    routes = [one for one in scope["app"].routes if one.matches(scope)[0] is not Match.NONE]
    same = [one for one in routes if one.path == routes[0].path]
    return sorted({method for one in same for method in one.methods or ()})


def _handler(answer: Any) -> Any:
    """An ASGI function as starlette's handler of exceptions."""

    async def handle(request: Any, error: Exception) -> Any:
        async def response(scope: Any, receive: Any, send: Any) -> None:
            await answer(scope, receive, send, error)

        return response

    return handle


def _cors(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            _Cors,
            allow_origin_regex=allowed_origins(origins).pattern,
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=[WARNINGS, *ID_HEADERS],
        )
    ]


class _Cors(CORSMiddleware):
    """Answers preflights with status 200, as llama-server does: the missing header is what keeps an
    origin out. Names of headers have capitals, for clients that compare them."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        response.status_code = 200
        response.raw_headers = [(name.title(), value) for name, value in response.raw_headers]
        return response
