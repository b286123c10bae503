"""Models of `ggmodel serve` that replicas on Ray run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .serving import Serving
from .terminal import note, progress_bar

if TYPE_CHECKING:
    from ..serve.replicas import Plan
    from ..serve.server import Settings


def check_options(keep_alive: float | None, pin: list[str] | None, manage: bool) -> None:
    """Raises ConfigError where one of them is given: replicas have no use for it."""
    given = {"--keep-alive": keep_alive is not None, "--pin": pin, "--manage": manage}
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(
                f"leave out {option} or --ray: models on Ray are those that are named, and stay "
                "loaded on all replicas"
            )


def serve_replicas(
    plan: Plan, settings: Settings, serving: Serving, tell: Callable[[str], object]
) -> None:
    """Starts the replicas, and serves until the process is told to end.

    Args:
        tell: called with the URL.
    """
    from ..serve.listening import reserved
    from ..serve.replicas import deployed
    from ..serve.server import Server

    plan.check()
    with reserved(settings, serving.listening()) as serve, ExitStack() as stack:
        with progress_bar("loading") as progress:
            models = stack.enter_context(deployed(plan, progress))
        for name in plan.named:
            note(f"{name} is on {plan.replicas} {'replica' if plan.replicas == 1 else 'replicas'}")
        serve(Server(models, settings), tell)
