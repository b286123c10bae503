"""A stand-in for the vocabulary that goldens lack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """A vocabulary that has some texts, and no other."""

    ids: dict[str, int]

    def id_of_text(self, text: str) -> int | None:
        return self.ids.get(text)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Tokens of a text that a model lays among rows: its longest known beginnings."""
        found: list[int] = []
        while text:
            known = max((t for t in self.ids if text.startswith(t)), key=len)
            found.append(self.ids[known])
            text = text[len(known) :]
        return found
