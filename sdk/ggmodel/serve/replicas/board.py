"""The news of replicas that start, and the sign that their server lives."""

from __future__ import annotations

from typing import NamedTuple


class News(NamedTuple):
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

    def tell(self, replica: str, share: float) -> None:
        """A replica has loaded so much of its model."""
        self._shares[replica] = share

    def fail(self, error: str, message: str) -> None:
        """A replica cannot load its model.

        Args:
            error: name of the class in `ggmodel.errors`.
        """
        self._failed = self._failed or (error, message)

    def read(self) -> News:
        """The latest."""
        return News(self._shares, self._failed)

    def ping(self) -> None:
        """Answers as long as the server lives."""
