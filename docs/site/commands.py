"""A page for each command of `ggmodel`, made of the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from ggmodel.cli import COMMANDS, app

_STATUS = """
## Exit status

| status | meaning |
|---|---|
| 0 | done |
| 1 | an error of the input or the system, printed as `error: …` |
| 2 | wrong usage |
| 70 | a bug |
| 130, 143 | ended by Ctrl-C, by SIGTERM |
| 141 | the reader of the output has gone |

`GGMODEL_DEBUG=1` shows where an error came from.
"""


def pages() -> dict[str, str]:
    """Path in the site → Markdown: a list of all commands, then one page a command."""
    found = {name: command(name) for name in COMMANDS}
    own = {f"commands/{name}.md": _page(name, found[name]) for name in found}
    return {"commands/index.md": _index(found)} | own


def command(name: str) -> Any:
    """A command as the command line has it, by its name."""
    group: Any = typer.main.get_command(app)
    return group.get_command(typer.Context(group), name)


def _index(found: dict[str, Any]) -> str:
    parts = ["# All commands\n"]
    section = ""
    for name, one in found.items():
        if COMMANDS[name] != section:
            section = COMMANDS[name]
            parts.append(f"\n## {section}\n\n| command | |\n|---|---|")
        parts.append(f"| [`{name}`]({name}.md) | {_plain(one.help.strip().splitlines()[0])} |")
    return "\n".join([*parts, _STATUS])


def _page(name: str, one: Any) -> str:
    parts = [f"# {name}", *_described(f"ggmodel {name}", one, "##")]
    for inner, member in getattr(one, "commands", {}).items():
        parts += [f"## {name} {inner}", *_described(f"ggmodel {name} {inner}", member, "###")]
    return "\n\n".join(parts) + "\n"


def _described(name: str, one: Any, heading: str) -> Iterator[str]:
    """Usage, help, arguments and options of a command."""
    context = typer.Context(one, info_name=name)
    yield f"```text\n{' '.join([name, *one.collect_usage_pieces(context)])}\n```"
    yield _plain(one.help)
    records = [(p.param_type_name, p.get_help_record(context)) for p in one.params]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        rows = [record for of, record in records if of == kind and record is not None]
        if rows:
            yield f"{heading} {title}"
        for names, text in rows:
            yield f"`{' '.join(names.split())}`\n:   {_plain(text)}"


def _plain(text: str) -> str:
    """Help as Markdown: code in backticks stays, other marks lose their meaning."""
    spans = re.split(r"(`[^`]*`)", text.strip())
    spans[::2] = [re.sub(r"([\\*_\[\]<>#|])", r"\\\1", span) for span in spans[::2]]
    return "".join(spans)
