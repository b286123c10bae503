"""`ggmodel ps` and `stop`: the models that a server has loaded."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from datetime import datetime
from typing import Annotated, Any

import typer

from ..errors import ConfigError, ModelNotFound
from ..reading import read_stream
from .options import Json
from .terminal import console, note, report, size, table

_SECONDS = 60.0  # for an answer

Server = Annotated[
    str,
    typer.Option(
        "--server", metavar="URL", help="Its address; a key of it is taken from GGMODEL_API_KEY."
    ),
]
_HERE = "http://127.0.0.1:8080"


def ps(server: Server = _HERE, as_json: Json = False) -> None:
    """List the models that a server has loaded.

    The server is one of `ggmodel serve`, or Ollama's.
    """
    models = _asked(server, "/api/ps").get("models") or []

    def show() -> None:
        rows = [
            (
                str(one.get("name")),
                size(int(one.get("size") or 0)),
                str(one.get("context_length") or ""),
                _until(str(one.get("expires_at") or "")),
            )
            for one in models
        ]
        if rows:
            console().print(table(rows, ("name", "size", "context", "until"), right="12"))
        else:
            note("no model is loaded; a request loads one")

    report(as_json, models, show)


def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `ggmodel ps` lists it.")],
    server: Server = _HERE,
) -> None:
    """Have a server unload a model.

    Requests that run go on to their end.
    """
    _asked(server, "/api/generate", {"model": name, "keep_alive": 0})


def _until(text: str) -> str:
    """A time as people read it; that of a model that stays lies centuries ahead, or behind."""
    try:
        then = datetime.fromisoformat(text[:19])
    except ValueError:
        return text
    ahead = then.year - datetime.now().year
    return then.strftime("%Y-%m-%d %H:%M:%S") if abs(ahead) < 50 else "forever"


def _asked(server: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of a server.

    Raises:
        ConfigError: nothing answers there, or something else than such a server.
        ModelNotFound: it has no model of the name.
    """
    url = server.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--server {server}: give an address such as {_HERE}")
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("GGMODEL_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, headers)
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            told = json.loads(read_stream(answer, url, "input_bytes"))
    except urllib.error.HTTPError as error:
        with error:
            said = _message(error.read(4096))
        if error.code == 404:
            raise ModelNotFound(f"{server}: {said}; `ggmodel ps` lists names") from None
        raise ConfigError(f"{server} answers {error.code}: {said}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"no server at {server} ({reason}); start one by `ggmodel serve`, or give --server URL"
        ) from None
    return told if isinstance(told, dict) else {}


def _message(data: bytes) -> str:
    try:
        error = json.loads(data)["error"]
    except (ValueError, LookupError, TypeError):
        return data.decode("utf-8", "replace")
    return str(error.get("message") if isinstance(error, dict) else error)
