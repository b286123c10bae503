"""The chat parsers: from the raw text of a reply to content, reasoning and tool calls.

The format of a model's replies comes from its own declaration or its chat template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol

from ...errors import TemplateError
from ..template import KEY as TEMPLATES
from ..template import REPLIES_KEY
from .declaration import Declaration, DeclaredParser, read_declared
from .deltas import CallArguments, CallBegun, Content, Delta, Reasoning, Reply, ToolCall
from .families import BARE, PLAIN, Family, family_of
from .grammars import grammar_of
from .parser import FamilyParser
from .values import Tools

__all__ = [
    "CallArguments",
    "CallBegun",
    "Content",
    "Delta",
    "Reasoning",
    "Reply",
    "ReplyFormat",
    "ReplyParser",
    "ToolCall",
    "read_declared",
    "reply_format",
]

Schemas = Sequence[Mapping[str, Any]]


class ReplyParser(Protocol):
    """Takes a reply in pieces, and gives its parts.

    Nothing that a model writes is an error: a call that is malformed before its arguments comes as
    content, one that is malformed in them with what the model wrote. The same parts come, whatever
    the pieces.
    """

    def feed(self, text: str) -> list[Delta]:
        """The parts that a piece of the reply adds; neighbours of one kind are joined."""
        ...

    def end(self, cut: bool = False) -> list[Delta]:
        """The rest, when the reply is over.

        Args:
            cut: a limit of tokens ended it: a call under way has the beginning of its arguments, or
                is left out if it has no name yet.
        """
        ...


class ReplyFormat:
    """How a model writes thoughts and calls; made by `reply_format`.

    Attributes:
        name: of the family, "declared", or "plain" where all is content.
        special: the parser wants special tokens in the text, since they mark calls and thoughts.
        calls: the family has calls of its own, which its template shows to the model.
        stop: texts that end a reply besides the vocabulary's ends.
        marks: texts that may be special tokens of the vocabulary; see `grammar`.
    """

    def __init__(self, family: Family, declaration: Declaration | None = None):
        self._family, self._declaration = family, declaration
        self.name = family.name if declaration is None else "declared"
        self.special = declaration is not None or family is not PLAIN
        self.calls = declaration is not None or family.blocks != (BARE,)
        self.stop, self.marks = family.stop, family.texts

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], template: str | None = None) -> ReplyFormat:
        """The format of a GGUF file's model.

        Args:
            template: Jinja text to use instead of the file's, or the name of another of the file's.

        Raises:
            TemplateError: the file's declaration is malformed.
        """
        declared = metadata.get(REPLIES_KEY) if template is None else None
        named = {key: text for key, text in metadata.items() if key.startswith(TEMPLATES)}
        if template is not None:
            sources = [named.get(f"{TEMPLATES}.{template}", template)]
        else:  # the one for tools says how they are called
            sources = [named.get(f"{TEMPLATES}.tool_use"), named.get(TEMPLATES)]
        text = "\n".join(source for source in sources if isinstance(source, str))
        return reply_format(text, None if declared is None else read_declared(declared))

    def __repr__(self) -> str:
        return f"<ReplyFormat {self.name!r}>"

    def takes_end(self, text: str) -> bool:
        """Whether the parser wants the text of the token that ended a reply."""
        return self._declaration is not None or text in self.marks

    def parser(self, tools: Schemas | None = None, ending: str = "") -> ReplyParser:
        """A parser for one reply.

        Args:
            tools: as the chat template got them; they tell the types of arguments that a model
                writes as plain text, and which bare objects are calls.
            ending: the end of the prompt, in which the template may have begun a thought.
        """
        if self._declaration is not None:
            return DeclaredParser(self._declaration, Tools(tools), ending)
        return FamilyParser(self._family, Tools(tools), ending)

    def parse(self, text: str, tools: Schemas | None = None, ending: str = "") -> Reply:
        """A whole reply; see `parser`."""
        parser = self.parser(tools, ending)
        return Reply.of([*parser.feed(text), *parser.end()])

    def grammar(
        self,
        tools: Schemas,
        choice: str = "required",
        parallel: bool = True,
        strict: bool = False,
        *,
        special: Mapping[str, int] = MappingProxyType({}),
        ending: str = "",
    ) -> tuple[str, str] | None:
        """The form of replies that call functions; None where any text is allowed.

        Args:
            choice: "required" for at least one call, the name of a function for a call of it, or
                "auto" for any text, in which calls obey the schemas of the functions.
            parallel: more than one call may come.
            strict: calls obey the schemas with "auto", too; so do those of functions that have
                `"strict": true`.
            special: text → id of the vocabulary's special tokens, which no plain text spells.
            ending: see `parser`.

        Returns:
            The kind, as a class method of `Grammar` is called, and the text for it.

        Raises:
            PromptError: there is no such function, or none at all.
        """
        return grammar_of(self._family, Tools(tools), choice, parallel, strict, special, ending)


def reply_format(template: str, declared: Mapping[str, Any] | None = None) -> ReplyFormat:
    """The format of the replies of a model.

    Args:
        template: the chat template's Jinja text.
        declared: the checkpoint's `response_template`, as transformers reads it; it goes before
            what the template tells.

    Raises:
        TemplateError: the declaration is malformed.
    """
    try:
        text = json.dumps(declared)
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"the response_template is no JSON: {error}") from None
    return _format(template, text)


@lru_cache(maxsize=64)
def _format(template: str, declared: str) -> ReplyFormat:
    return ReplyFormat(family_of(template), _declaration(declared))


@lru_cache(maxsize=16)
def _declaration(text: str) -> Declaration | None:
    declared = json.loads(text)
    return None if declared is None else Declaration.of(declared)
