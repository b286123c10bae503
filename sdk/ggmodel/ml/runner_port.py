"""A runner that is known by its port: asked over HTTP, on this machine."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from ..errors import ComputeError, ConfigError, FormatError
from .devices import DeviceID, DeviceInfo

_SOON = 3.0  # seconds for what a runner answers at once
_LONGEST = 16 << 20  # bytes of an answer


class RunnerAtPort:
    """A `FilteredRunnerDiscovery` for a process of `ggmodel runner`, or one of `ggmodel serve`.

    Args:
        port: where it listens.

    Raises:
        ConfigError: it is no port.
    """

    def __init__(self, port: int):
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 1 << 16:
            raise ConfigError(f"a runner's port is a number from 1 to 65535, not {port!r:.80}")
        self._port = port

    def get_port(self) -> int:
        return self._port

    def has_exited(self) -> bool:
        """Whether nobody listens at the port."""
        import socket  # slow to import

        try:
            socket.create_connection(("127.0.0.1", self._port), _SOON).close()
        except OSError:
            return True
        return False

    def get_device_infos(self, timeout: float) -> list[DeviceInfo]:
        """See `RunnerDiscovery`.

        Raises:
            ComputeError: the runner does not answer in time, or cannot list devices.
            FormatError: it says something else.
        """
        found = self._asked("/info", timeout)
        try:
            return [DeviceInfo.from_json(one) for one in found]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise FormatError(f"{self} lists no devices: {error!r}") from None

    def get_active_device_ids(self) -> list[DeviceID]:
        """See `FilteredRunnerDiscovery`; raises as `get_device_infos`."""
        found = self._asked("/active", _SOON)
        try:
            return [DeviceID(str(one["id"]), str(one["backend"])) for one in found]
        except (TypeError, KeyError) as error:
            raise FormatError(f"{self} lists no devices: {error!r}") from None

    def __str__(self) -> str:
        return f"the runner at port {self._port}"

    def _asked(self, path: str, timeout: float) -> Any:
        from http.client import HTTPConnection, HTTPException  # slow to import

        with closing(HTTPConnection("127.0.0.1", self._port, timeout=timeout)) as connection:
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                text = answer.read(_LONGEST)
            except (OSError, HTTPException) as error:
                raise ComputeError(f"{self} does not answer: {error!r}") from None
        if answer.status != 200:
            raise ComputeError(f"{self} answers {path} with {answer.status}: {text[:200]!r}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise FormatError(f"{self} answers {path} with no JSON: {text[:80]!r}") from None
