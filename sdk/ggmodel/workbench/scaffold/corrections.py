"""Fields of a new architecture that its checkpoint calls otherwise than the template."""

from __future__ import annotations

from ...model import Module
from .files import CALLED, Files
from .names import annotation, declaration
from .source import field_text, quoted, with_name
from .translate import Correction


def correct(files: Files) -> list[str]:
    """Gives fields their names in the checkpoint, and lists them."""
    corrections, said = files.fit.translation.corrections.values(), list[str]()
    shared: dict[type[Module], list[Correction]] = {}
    for c in corrections:
        if files.file_of(files.called(c.field.owner)) is None:
            shared.setdefault(c.field.owner, []).append(c)
        else:
            said.append(_correct_field(files, files.called(c.field.owner), c))
    for owner, several in shared.items():
        said += _subclass(files, owner, several)
    return said


def _correct_field(files: Files, cls: str, c: Correction) -> str:
    path = files.file_of(cls)
    assert path is not None
    kind, line = field_text(files.sources[path], cls, c.field.name)
    if line is None:
        line = declaration(c.field, kind or annotation(files.sources[path], c.field))
    line = with_name(line, c.field.own, c.hf)
    if c.gguf is not None and c.field.tag.names:
        line = line.replace(quoted(c.field.tag.names[0]), quoted(c.gguf), 1)
    files.declare(cls, c.field.name, line, CALLED)
    before = f"{quoted(c.field.own)} → " if c.field.own else ""
    return f"{cls}.{c.field.name}: hf={before}{quoted(c.hf)}"


def _subclass(files: Files, owner: type[Module], corrections: list[Correction]) -> list[str]:
    """A subclass with other names, in place of a class that other architectures share."""
    said = "With other names in checkpoints."
    own = files.subclass(owner, corrections[0].field.holder, said)
    if own is None:
        files.left += [f"{owner.__name__}.{c.field.name} is called {c.hf}" for c in corrections]
        return []
    return [_correct_field(files, own, c) for c in corrections]
