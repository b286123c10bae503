"""What every kind of cache can do, and how a model declares which kind a layer has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..ml import Backend, Context, DType

if TYPE_CHECKING:
    from ..model.batch import Step


@dataclass(frozen=True)
class Size:
    """How much caches have to hold.

    Attributes:
        sequences: they are numbered 0 to sequences − 1.
        capacity: positions a sequence.
        max_batch: the most tokens in a step.
    """

    sequences: int
    capacity: int
    max_batch: int


class CacheSpec(ABC):
    """What one layer remembers: an entry of `Model.caches()`.

    Attributes:
        stores_images: it remembers the rows of images, rather than have them laid over the inputs.
        single_step: a sequence is computed in one step, and not gone on with.
        can_rewind: the latest positions of a sequence can be taken back, one by one.
    """

    stores_images: ClassVar[bool] = False
    single_step: ClassVar[bool] = False
    can_rewind: ClassVar[bool] = True

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Layers of equal kind share one cache."""

    @abstractmethod
    def new_cache(
        self, backend: Backend, layers: Mapping[int, Any], dtype: DType, size: Size
    ) -> Cache:
        """A cache for all layers of this kind.

        Args:
            layers: their declarations, by the number of the layer.
            dtype: of keys and values.

        Raises:
            Unsupported: a dtype that keys and values cannot have.
            OutOfMemory: the host has no memory for its bookkeeping.
        """


class Cache(ABC):
    """What some or all layers of a model remember of several sequences.

    A step goes through `start_forward`, then either `shape_key`, `layers` where no graph of that
    shape has been recorded, and the computation; or `undo`.

    Attributes:
        max_batch: the most tokens in a step.
        advances: whether a step may move on in it.
    """

    max_batch: int
    advances: bool = False

    @abstractmethod
    def start_forward(self, step: Step, reserve: bool = False) -> None:
        """Finds room for the step's tokens and notes it in `step.placed[self]`.

        Args:
            reserve: nothing is stored; the step is laid out as if the cache were full.

        Raises:
            KvCacheFull: there is none; nothing has changed.
        """

    def advance(self, step: Step) -> bool:
        """Moves a step that was computed on, by a token of each of its sequences: `step.positions`
        are those of the new ones already, `step.placed` becomes theirs.

        Returns:
            False where that takes more than another cell, or anything has happened since; the cache
            is as it was then, and the step of no use any more.
        """
        del step
        return False

    @abstractmethod
    def undo(self, step: Step) -> None:
        """Takes back the latest `start_forward` or `advance`: all is as it was before, except that
        what a step that has begun overwrote stays forgotten, which it does not need itself. Without
        effect on a step that this cache has not placed."""

    @abstractmethod
    def shape_key(self, step: Step) -> Hashable:
        """What of a placed step a recorded graph depends on, besides its numbers of tokens and
        outputs."""

    @abstractmethod
    def layers(self, ctx: Context, step: Step) -> dict[int, Any]:
        """By the number of the layer, what stores and returns its memory in a graph being
        recorded for steps like this placed one; what that can do depends on the kind."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """The position that comes next, one more than the highest; 0 if the sequence is empty or
        unknown here."""

    @abstractmethod
    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether `position` can come next, after `remove(sequence, position, None)`: all is there
        that it would see. Always true of 0."""

    def resume_point(self, sequence: int, position: int) -> int:
        """The latest position up to `position` that is known to be one `can_resume` is true of; 0
        if there is no other."""
        position = min(position, self.length(sequence))
        return position if self.can_resume(sequence, position) else 0

    @abstractmethod
    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """Makes positions 0 to n of `source` the whole of `target`; nothing is computed."""

    def check_remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Raises the error with which `remove` would refuse; changes nothing."""
        del sequence, begin, end

    @abstractmethod
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Forgets positions begin to end (None: all from begin on); later ones move down.

        Raises:
            Error: it cannot be done. An empty sequence can go on after
                `remove(sequence, 0, None)`, which never fails.
        """

    @abstractmethod
    def wipe(self, sequence: int) -> None:
        """Forgets a sequence and overwrites what it alone remembered with zeros: NaN left there
        would get through the zero weight that plain attention gives to what is masked."""

    @abstractmethod
    def close(self) -> None:
        """Frees what is remembered; idempotent."""
