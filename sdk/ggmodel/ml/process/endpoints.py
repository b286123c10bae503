"""Addresses of workers, and probes of them."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Sequence

from ...errors import ConfigError

_SLACK = 0.2  # seconds
_SILENCE = (
    "no answer within {:g} s; its machine is off or behind a firewall, or other clients wait for it"
)
_ENDPOINT = re.compile(r"([^\s:\[\]/@]+):([0-9]{1,5})")


def parse_endpoints(endpoints: Sequence[str]) -> tuple[str, ...]:
    """The endpoints, checked.

    Raises:
        ConfigError: one is not "host:port" with a port from 1 to 65535, or occurs twice.
    """
    if isinstance(endpoints, str):
        raise ConfigError(f"workers are a list of 'host:port', not the string {endpoints!r}")
    for endpoint in endpoints:
        match = _ENDPOINT.fullmatch(endpoint) if isinstance(endpoint, str) else None
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise ConfigError(
                f"worker {endpoint!r}: it must be 'host:port', a name or an IPv4 address and a "
                "port from 1 to 65535"
            )
        if list(endpoints).count(endpoint) > 1:
            raise ConfigError(f"worker {endpoint} is given twice")
    return tuple(endpoints)


def unreachable(endpoints: Sequence[str], timeout: float) -> dict[str, str]:
    """The endpoints that cannot be connected to, and why.

    A worker that serves a client accepts two more, which wait; after that it answers nobody.

    Args:
        timeout: seconds, for all together.
    """
    reasons = {e: _SILENCE.format(timeout) for e in endpoints}

    def probe(endpoint: str) -> None:
        reasons[endpoint] = _reason(endpoint, timeout)

    threads = [threading.Thread(target=probe, args=(e,), daemon=True) for e in endpoints]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout + _SLACK
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))  # looking up a name has no timeout
    return {endpoint: reasons[endpoint] for endpoint in endpoints if reasons[endpoint]}


def _reason(endpoint: str, timeout: float) -> str:
    host, _, port = endpoint.rpartition(":")
    # IPv4 as in ggml.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout)
        try:
            probe.connect((host, int(port)))
        except TimeoutError:
            return _SILENCE.format(timeout)
        except ConnectionRefusedError:
            return f"connection refused; start it with `ggmodel worker --port {port}` there"
        except OSError as error:  # unknown names included
            return (error.strerror or str(error)).lower()
    return ""
