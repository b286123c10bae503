"""Replicas of models on Ray Serve: deployed, supervised, removed."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ...errors import ConfigError, DeviceLost, LoadError
from ..models.catalogue import Catalogue
from ..requests import Failure
from ..runners.engines import Engines
from ..runners.protocol import error_of
from .cluster import check_room, here, is_lost, joined, need_ray
from .models import Replicas, ReplicatedModels
from .replica import Replica

__all__ = ["Plan", "deployed"]


class LoadProgress(NamedTuple):
    """How far the replicas are.

    Attributes:
        shares: of the model that each has loaded; a replica that waits for its turn is missing.
        failed: class and message of the first error that kept one from starting.
    """

    shares: dict[str, float]
    failed: tuple[str, str] | None


class Board:
    """An actor of Ray that lives as long as the server's connection to the cluster."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}
        self._failed: tuple[str, str] | None = None

    def report(self, replica: str, share: float) -> None:
        """A replica has loaded so much of its model."""
        self._shares[replica] = share

    def fail(self, error: str, message: str) -> None:
        """A replica cannot load its model.

        Args:
            error: name of the class in `ggmodel.errors`.
        """
        self._failed = self._failed or (error, message)

    def read(self) -> LoadProgress:
        """The latest."""
        return LoadProgress(self._shares, self._failed)

    def ping(self) -> None:
        """Answers as long as the server lives."""


Progress = Callable[[float], object]

_LOOK_SECONDS = 0.2  # between two looks at the replicas that start
_HEALTH_SECONDS = 2.0  # between two looks at one that runs
_HANGING_SECONDS = 30.0  # after which one that does not answer is given up
_END_SECONDS = 20.0  # for taking all away


@dataclass(frozen=True)
class Plan:
    """Models, and the replicas that are to hold them.

    Attributes:
        named: name → path or name of each model, as every machine of the cluster knows it.
        replicas: of each model.
        options: of loading. engine: as `Engines` takes it.
        cpus, gpus: that a replica takes; Ray hides other GPUs from it.
        any_name: a name that no model has means the first.
        queue: requests to one model at a time.
    """

    named: Mapping[str, str]
    replicas: int
    options: Mapping[str, Any] = field(default_factory=dict)
    engine: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0
    any_name: bool = False
    queue: int = 512

    def check(self) -> None:
        """Raises ConfigError where no cluster can do it, and Unsupported without Ray."""
        if not self.named:
            raise ConfigError("name the models that the replicas are to run")
        for what, value, least in (
            ("--ray", self.replicas, 1),
            ("--ray-cpus", self.cpus, 0.001),
            ("--ray-gpus", self.gpus, 0),
        ):
            if not value >= least:
                raise ConfigError(f"{what} is {value:g}; give {least:g} or more")
        Engines(self.engine)
        if self.options.get("rpc"):
            raise ConfigError(
                "replicas cannot share workers, each of which serves one client at a time; leave "
                "out --rpc or --ray"
            )
        need_ray()


@contextmanager
def deployed(plan: Plan, progress: Progress | None = None) -> Iterator[ReplicatedModels]:
    """The models of a plan, loaded by all replicas; they end with the block.

    Args:
        progress: called with the share that is loaded.

    Raises:
        Unsupported: Ray is not installed.
        ConfigError: the plan is impossible, or the cluster has no room for it.
        DeviceLost: the cluster ends.
        Error: a model cannot be loaded.
    """
    plan.check()
    with joined():
        check_room(plan.replicas * len(plan.named), plan.cpus, plan.gpus)
        deployment = _Deployment(plan)
        try:
            yield deployment.start(progress or (lambda share: None))
        except Exception as error:
            if not is_lost(error):
                raise
            raise DeviceLost(f"the cluster was lost: {str(error).splitlines()[0]}") from None
        finally:
            deployment.end()


class _Deployment:
    """An application of Ray Serve for each model."""

    def __init__(self, plan: Plan):
        ray = need_ray()
        self._plan, self._ray, self._serve = plan, ray, ray.serve
        self._board = ray.remote(Board).options(num_cpus=0, **here(ray)).remote()
        token = secrets.token_hex(4)  # others may serve the same model on the cluster
        self._applications = {name: f"ggmodel-{token}-{i}" for i, name in enumerate(plan.named)}

    def start(self, progress: Progress) -> ReplicatedModels:
        """Deploys, and waits until all replicas are there."""
        plan = self._plan
        self._serve.start(proxy_location="Disabled")
        handles = self._serve.run_many(
            [self._target(name) for name in plan.named],
            wait_for_ingress_deployment_creation=True,
            wait_for_applications_running=False,
        )
        self._wait(progress)
        replicas = {
            name: Replicas(
                name, handle, plan.replicas, is_lost=is_lost, lack=partial(self.lack, name)
            )
            for name, handle in zip(plan.named, handles, strict=True)
        }
        catalogue = Catalogue(plan.named, stores=False, any_name=plan.any_name)
        return ReplicatedModels(catalogue, replicas, plan.options, plan.queue)

    def _target(self, name: str) -> Any:
        plan, quiet = self._plan, {"log_level": "WARNING", "enable_access_log": False}
        deployment = self._serve.deployment(
            Replica,
            name="Replica",
            num_replicas=plan.replicas,
            ray_actor_options={"num_cpus": plan.cpus, "num_gpus": plan.gpus},
            user_config={
                "name": name,
                "source": plan.named[name],
                "options": dict(plan.options),
                "engine": plan.engine,
            },
            # Runners have queues of their own: that of Ray Serve only chooses among them.
            max_ongoing_requests=plan.queue,
            max_constructor_retry_count=1,
            health_check_period_s=_HEALTH_SECONDS,
            health_check_timeout_s=_HANGING_SECONDS,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=1.0,
            logging_config=quiet,
        )
        application = deployment.bind(self._board)
        return self._serve.RunTarget(application, self._applications[name], route_prefix=None)

    def _wait(self, progress: Progress) -> None:
        """Until all replicas have loaded their model."""
        total = self._plan.replicas * len(self._plan.named)
        while True:
            load = self._ray.get(self._board.read.remote())
            if load.failed is not None:
                raise error_of(Failure(*load.failed))
            status = self._serve.status().applications
            applications = [status[name] for name in self._applications.values() if name in status]
            for one in applications:
                if one.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                    raise LoadError(f"Ray cannot start the replicas: {_reason(one)}")
            if sum(map(_runs, applications)) == len(self._applications):
                return
            progress(sum(load.shares.values()) / total)
            time.sleep(_LOOK_SECONDS)

    def lack(self, name: str) -> str:
        """The reason why no replica of a model runs; "" where one does."""
        application = self._serve.status().applications.get(self._applications[name])
        if application is None:
            return "they were removed from Ray Serve"
        states = [one.replica_states for one in application.deployments.values()]
        if any(one.get("RUNNING", 0) for one in states):
            return ""
        return _reason(application) or "they are being started again"

    def end(self) -> None:
        """Takes all away."""

        def delete() -> None:
            for name in self._applications.values():
                self._serve.delete(name, _blocking=False)
            for name in self._applications.values():
                self._serve.delete(name)

        ending = threading.Thread(target=delete, daemon=True)
        ending.start()
        ending.join(_END_SECONDS)  # the cluster may be gone


def _runs(application: Any) -> bool:
    return application.status == "RUNNING"


def _reason(application: Any) -> str:
    """Ray's own words, shortened."""
    texts: Sequence[str] = [
        application.message,
        *(one.message for one in application.deployments.values()),
    ]
    return " ".join(" ".join(text.split())[:300] for text in texts if text)
