"""The page at /, for people: files of this package."""

from __future__ import annotations

from importlib.resources import files

from starlette.routing import Route

from ..endpoint import Answers, Call, route
from ..errors import Refused
from ..server import Server
from .openai.shapes import OPENAI

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
# Nothing from elsewhere, and no page may frame it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def routes(server: Server) -> list[Route]:
    """Its files."""
    folder = files("ggmodel.serve") / "page"
    known = {one.name: one.read_bytes() for one in folder.iterdir() if _ending(one.name) in _TYPES}

    async def send(call: Call, name: str) -> None:
        if name not in known:
            raise Refused(f"the page has no file {name!r:.100}", 404)
        await call.reply(
            known[name],
            f"{_TYPES[_ending(name)]}; charset=utf-8",
            cache_control="no-cache",
            content_security_policy=_POLICY,
            x_content_type_options="nosniff",
        )

    async def index(call: Call) -> None:
        """The page to chat with models."""
        await send(call, "index.html")

    async def part(call: Call) -> None:
        """A file of the page."""
        await send(call, call.path["name"])

    return [
        route("GET", "/", index, server, OPENAI, answers=Answers(None, [_TYPES["html"]])),
        route(
            "GET", "/page/{name}", part, server, OPENAI, answers=Answers(None, [*_TYPES.values()])
        ),
    ]


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
