"""A server with a fault that the fuzzer must find: `python -m tests.fuzz.http.faulty serve …`."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from ggmodel.__main__ import main
from ggmodel.serve.endpoint import Call
from tests.fuzz.http.bodies import MODELS
from tests.fuzz.http.fuzzer import Http

_decode = Call.decode
_held: list[Any] = []


class FaultyHttp(Http):
    """Asks this server, which has the fault that GGMODEL_FUZZ_FAULT names."""

    requests = 40
    module = __name__
    models = {"stories": MODELS["stories"]}


def block() -> None:
    time.sleep(2.0)  # long also for a machine that others make several times slower


def error() -> None:
    raise KeyError("metadata")


def forget() -> None:
    async def fail() -> None:
        raise KeyError("metadata")

    asyncio.get_running_loop().create_task(fail())


def leak() -> None:
    """More files at once than `check_growth` lets pools take: a case may have one such request."""
    _held.extend(open(os.devnull) for _ in range(64))  # noqa: SIM115 (stay open)


def leave() -> None:
    os._exit(3)


async def _decode_wrongly(call: Call, kind: Any) -> Any:
    if b"fox" in call.body:
        globals()[os.environ["GGMODEL_FUZZ_FAULT"]]()
    return await _decode(call, kind)


if __name__ == "__main__":
    setattr(Call, "decode", _decode_wrongly)  # noqa: B010 (of the same parameters but T)
    main()
