"""Adds pages that are not in docs/, and turns links out of docs/ into links of the site.

Run by mkdocs, see mkdocs.yml. `X/*` in its navigation stands for the generated pages below `X/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import api
import architectures
import commands
import repository
from mkdocs.structure.files import File, Files

_pages: dict[str, str] = {}
_texts = repository.Texts(Path(__file__).parents[2])


def on_config(config: Any) -> Any:
    _pages.clear()
    table = architectures.pages()
    _pages.update(table | _texts.pages(table) | commands.pages() | api.pages())
    config.nav = _expanded(config.nav)
    return config


def _expanded(entry: Any) -> Any:
    """The navigation with all generated pages of a folder in place of `folder/*`."""
    if isinstance(entry, list):
        return [_expanded(item) for item in entry]
    if isinstance(entry, dict):
        return {title: _expanded(item) for title, item in entry.items()}
    if not entry.endswith("/*"):
        return entry
    return [page for page in _pages if page.startswith(entry[:-1])]


def on_files(files: Files, *, config: Any) -> Files:
    for path, text in _pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri == "glossary.md":
        page.meta["search"] = {"boost": 20}  # a search for a term finds its explanation
    return _texts.relinked(markdown, page.file.src_uri)
