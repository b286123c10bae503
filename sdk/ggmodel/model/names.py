"""Names of nested fields in GGUF files, and which of them belong to encoders of other things."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import TensorField

# The towers of images and sounds, and the projector to the width of the text.
_TOWERS = ("v.", "a.", "mm.")


def of_tower(tensor: str) -> bool:
    """Whether the tensor of that name belongs to a tower or its projector."""
    return tensor.startswith(_TOWERS)


@dataclass(frozen=True)
class Names:
    """The candidate names of a module or tensor, the preferred one first, and what goes around
    the names one level down."""

    candidates: tuple[str, ...] = ("",)
    prefix: str = ""
    suffix: str = ""

    def alternates(self, plain: bool) -> tuple[Names, ...]:
        """One for each candidate."""
        if len(self.candidates) == 1:
            return (self,)
        return tuple(Names((name,), self.prefix, self.suffix) for name in self.candidates)

    def field(self, tag: TensorField) -> Names:
        """The names of a field of this module: candidates of the module vary slowest."""
        if not tag.names:
            return Names(self.candidates, self.prefix + tag.prefix, tag.suffix + self.suffix)
        if tag.root:
            return Names(tag.names, tag.prefix, tag.suffix)
        names = [self.prefix + name + self.suffix for name in tag.names]
        joined = tuple(join(c, n) for c in self.candidates for n in names)
        return Names(joined, tag.prefix, tag.suffix)

    def item(self, i: int, number: int) -> Names:
        """The names of item i of this list, which has that number in files."""
        names = tuple(join(c, str(number)) for c in self.candidates)
        return Names(names, self.prefix, self.suffix)


def join(outer: str, name: str) -> str:
    """Both with a dot between; either may be empty."""
    return f"{outer}.{name}" if outer and name else outer or name
