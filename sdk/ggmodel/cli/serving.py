"""The options of the server: addresses, API keys, limits."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .options import option

if TYPE_CHECKING:
    from ..serve.listening import Listening
    from ..serve.server import Settings

_List = list[str] | None


@dataclass(kw_only=True)
class Serving:
    """How the server listens, and what it allows: a field an option."""

    host: str = option("127.0.0.1", "Address to listen on (0.0.0.0 = all of this machine).")
    port: int = option(8080, "TCP port to listen on (0 = any free one).")
    api_key: _List = option(  # noqa: RUF009  # a field
        None, "API key that requests must have; or GGMODEL_API_KEY; may be repeated.", metavar="KEY"
    )
    api_key_file: str | None = option(None, "File with API keys, one a line.", metavar="FILE")
    allow_host: _List = option(  # noqa: RUF009  # a field
        None, "Host name to accept besides this machine's own; may be repeated.", metavar="NAME"
    )
    cors_origin: _List = option(  # noqa: RUF009  # a field
        None,
        "Origin whose web pages may send requests (CORS): a URL, localhost, * or none; may be "
        "repeated; default: localhost.",
        metavar="URL",
    )
    media_path: _List = option(  # noqa: RUF009  # a field
        None,
        "Folder of images and audio that requests may refer to; may be repeated.",
        metavar="FOLDER",
    )
    media_host: _List = option(  # noqa: RUF009  # a field
        None,
        "Host of images and audio that requests may refer to; may be repeated.",
        metavar="HOST",
    )
    mcp_origin: _List = option(  # noqa: RUF009  # a field
        None,
        "Origin of MCP servers that the page may use besides this machine's, such as "
        "https://tools.example; may be repeated.",
        metavar="ORIGIN",
    )
    max_tokens: int | None = option(
        None, "Tokens of an answer at most; default: until the context is full."
    )
    manage: bool = option(False, "Allow requests to download, create and remove models.")
    file_folder: str | None = option(
        None,
        "Folder for uploaded files and batches, which outlive the server there; default: a "
        "temporary one.",
        "--files",
        metavar="FOLDER",
    )
    slot_save_path: str | None = option(
        None,
        "Folder of files that requests save slots to and restore them from (POST /slots/N).",
        metavar="FOLDER",
    )
    log_requests: bool = option(
        True, "Log each request in a line on standard error.", "--log-requests/--no-log-requests"
    )
    verbose: bool = option(False, "Log the bodies of requests and answers, too, but for media.")
    strict_fields: bool = option(
        False, "Refuse requests with fields that have no effect, in place of a warning."
    )
    metrics: bool = option(
        True, "Show counts for Prometheus at /metrics.", "--metrics/--no-metrics"
    )
    slots: bool = option(True, "Show the answers under way at /slots.", "--slots/--no-slots")
    seed: int = option(-1, "Random seed of requests that give none (-1 = a new one each time).")
    pooling: str | None = option(
        None,
        "How rows of tokens become the one of a text (none = /embedding has all); default: as the "
        "file says.",
        metavar="none|mean|cls|last|max|weightedmean",
    )
    timeout: float = option(3600.0, "Seconds that a request may take (0 = no limit).")
    sse_ping_interval: float = option(
        15.0, "Seconds of silence in a stream of events before a ping (-1 = no pings)."
    )
    drain: int = option(30, "Seconds that running requests have to finish at shutdown.")
    tls_certificate: str | None = option(None, "TLS certificate (PEM), for https.", metavar="FILE")
    tls_key: str | None = option(
        None, "Private key of the certificate, if it is in another file.", metavar="FILE"
    )

    def settings(self) -> Settings:
        """The settings that these options make.

        Raises:
            ConfigError: a key or a folder is of no use, or a number out of its range.
        """
        from ..runner.requests.readout import POOLINGS
        from ..serve.security import read_keys
        from ..serve.server import Settings

        numbers = {"port": 0, "timeout": 0, "drain": 0, "max_tokens": 1, "seed": -1}
        for name, least in numbers.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; give {least} or more")
        if self.port > 65535:
            raise ConfigError(f"port is {self.port}; the highest is 65535")
        for path in self.media_path or ():
            if not os.path.isdir(path):
                raise ConfigError(f"media_path {path}: there is no such folder")
        for origin in self.mcp_origin or ():
            if not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:[0-9]+)?", origin):
                raise ConfigError(
                    f"mcp_origin {origin!r:.100}: give https://HOST or http://HOST:PORT"
                )
        if self.pooling not in (None, "none", *POOLINGS):
            ways = ", ".join(("none", *POOLINGS))
            raise ConfigError(f"pooling is {self.pooling!r}; give one of {ways}")
        folder = self.slot_save_path
        if folder is not None and not os.path.isdir(folder):
            raise ConfigError(f"slot_save_path {folder}: there is no such folder")
        variable = os.environ.get("GGMODEL_API_KEY")
        keys = [*(self.api_key or ()), *([variable] if variable else ())]
        return Settings(
            host=self.host,
            port=self.port,
            keys=tuple(read_keys(keys, self.api_key_file)),
            origins=tuple(self.cors_origin or ("localhost",)),
            hosts=tuple(self.allow_host or ()),
            mcp_origins=tuple(self.mcp_origin or ()),
            media_folders=tuple(self.media_path or ()),
            media_hosts=tuple(self.media_host or ()),
            max_tokens=self.max_tokens,
            timeout=self.timeout,
            ping_seconds=self.sse_ping_interval,
            manage=self.manage,
            log_requests=self.log_requests or self.verbose,
            verbose=self.verbose,
            strict_fields=self.strict_fields,
            metrics=self.metrics,
            slots=self.slots,
            seed=self.seed,
            pooling=self.pooling,
            files=self.file_folder,
            slot_save_path=folder and os.path.abspath(folder),
        )

    def listening(self) -> Listening:
        """How to listen."""
        from ..serve.listening import Listening

        return Listening(self.tls_certificate, self.tls_key, self.drain)
