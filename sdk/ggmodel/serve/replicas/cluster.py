"""The cluster of Ray: joined where there is one, else started on this machine."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ...errors import ConfigError, Unsupported
from ...imports import install_command

_ROOM_SECONDS = 10.0  # for what others leave behind on the cluster
_CONNECT_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LINE = "\n"
_HOW = "`ray start --head` starts a cluster, and without RAY_ADDRESS this machine is used"


def need_ray() -> Any:
    """The module `ray`, with `ray.serve`; raises Unsupported where it is not installed."""
    # Each request asks for lengths of queues; Ray Serve reads this as it is imported. It would
    # give a whole burst to a replica whose length it remembers, and none to one it has forgotten.
    os.environ.setdefault("RAY_SERVE_QUEUE_LENGTH_CACHE_TIMEOUT_S", "0")
    try:
        import_module("ray.serve")
    except ImportError as error:
        raise Unsupported(f"replicas need {error.name}: {install_command('ray')}") from None
    return import_module("ray")


@contextmanager
def joined() -> Iterator[None]:
    """Belongs to the cluster of RAY_ADDRESS, or of this machine, while the block runs. If there is
    none, the block has one of its own, which ends with it.

    Raises:
        Unsupported: Ray is not installed.
        ConfigError: the cluster cannot be joined.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS is {address}, a client's address, over which answers cannot be streamed; "
            "run this on a machine of the cluster, and give HOST:6379"
        )
    _check_address(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    ray = need_ray()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        with _same_signals():
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        where = f"join the cluster at {address}" if address else "start Ray"
        raise ConfigError(f"cannot {where}: {str(error).partition(_LINE)[0]}; {_HOW}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Whether anybody listens there; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"no cluster answers at RAY_ADDRESS {address}: {error}; {_HOW}"
            ) from None


@contextmanager
def _same_signals() -> Iterator[None]:
    """Keeps what signals do: Ray's own handlers end the process on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    ended = 0
    try:
        yield
    except SystemExit as error:
        if error.code not in (*_SIGNALS,):
            raise
        ended = int(error.code or 0)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if ended:
        signal.raise_signal(ended)


def is_lost(error: BaseException) -> bool:
    """Whether an error says that Ray has lost who answers, and not that the answer failed."""
    ray = need_ray()
    kinds = ray.exceptions.RayError, ray.serve.exceptions.RayServeException
    return isinstance(error, kinds) and not isinstance(error, ray.exceptions.RayTaskError)


def here(ray: Any) -> dict[str, Any]:
    """Options that keep an actor on this machine, so that the loss of others leaves it alone."""
    strategies = import_module("ray.util.scheduling_strategies")
    own = ray.get_runtime_context().get_node_id()
    return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(own, soft=False)}


def check_room(count: int, cpus: float, gpus: float) -> None:
    """Looks whether the cluster has room for so many replicas, and soon will have.

    Args:
        cpus, gpus: that each takes.

    Raises:
        ConfigError: it has not.
    """
    ray = need_ray()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    room = sum(_fitting(node, cpus, gpus) for node in nodes)
    each = f"--ray-cpus {cpus:g}" + f" and --ray-gpus {gpus:g}" * (gpus > 0)
    demand = f"{count} replicas with {each} each are wanted"
    if count > room:
        raise ConfigError(
            f"{demand}, and the cluster of {_counted(nodes)} has room for {room}; give a lower "
            "--ray, or add machines"
        )
    deadline = time.monotonic() + _ROOM_SECONDS
    while _fitting(free := ray.available_resources(), cpus, gpus) < count:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{demand}, and others use the cluster of {_counted(nodes)}: {_amounts(free)} are "
                "free; give a lower --ray, or wait"
            )
        time.sleep(0.2)


def _fitting(resources: Any, cpus: float, gpus: float) -> int:
    """How many replicas fit."""
    shares = {"CPU": cpus, "GPU": gpus}
    slack = 1e-6  # Ray counts in ten-thousandths
    return min(
        math.floor(resources.get(name, 0) / share + slack)
        for name, share in shares.items()
        if share > 0
    )


def _counted(nodes: list[Any]) -> str:
    total = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    machines = "one machine" if len(nodes) == 1 else f"{len(nodes)} machines"
    return f"{_amounts(total)} on {machines}"


def _amounts(resources: Any) -> str:
    return f"{resources.get('CPU', 0):g} processors and {resources.get('GPU', 0):g} GPUs"
