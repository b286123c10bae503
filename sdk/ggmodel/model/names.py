"""How the names of nested fields come about."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import TensorField


@dataclass(frozen=True)
class Place:
    """Where in the tree of names a module or tensor stands: its candidate names, the preferred
    one first, and what goes around the names one level down."""

    candidates: tuple[str, ...]
    prefix: str = ""
    suffix: str = ""

    def only(self, candidate: str) -> Place:
        """The same with one of the candidates chosen."""
        return Place((candidate,), self.prefix, self.suffix)

    def field(self, tag: TensorField) -> Place:
        """Where a field stands whose module stands here: outer candidates vary slowest."""
        if not tag.names:
            return Place(self.candidates, self.prefix + tag.prefix, tag.suffix + self.suffix)
        if tag.root:
            return Place(tag.names, tag.prefix, tag.suffix)
        names = [self.prefix + name + self.suffix for name in tag.names]
        joined = tuple(join(c, n) for c in self.candidates for n in names)
        return Place(joined, tag.prefix, tag.suffix)

    def item(self, i: int) -> Place:
        """Where item i stands of the list that stands here."""
        return Place(tuple(join(c, str(i)) for c in self.candidates), self.prefix, self.suffix)


def join(outer: str, name: str) -> str:
    """Both with a dot between; either may be empty."""
    return f"{outer}.{name}" if outer and name else outer or name
