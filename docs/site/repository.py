"""Files of the repository as pages: texts beside docs/, and the source that documents link to."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# Texts of the root that are pages of their own.
ROOT_TEXTS = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".c": "c", ".json": "json", ".toml": "toml", ".sh": "sh"}
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
_NAMED = re.compile(r"\[((?:docs/|\.\./)?[\w-]+\.md)\](?=\()")
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class Texts:
    """Documents of a repository, each known by its path from the root.

    Args:
        root: the folder of the repository.
    """

    def __init__(self, root: Path):
        self.root = root

    def pages(self, generated: Mapping[str, str]) -> dict[str, str]:
        """The pages that docs/ lacks: path in the site → Markdown.

        Args:
            generated: further pages with links.
        """
        texts = {page: (self.root / name).read_text("utf-8") for name, page in ROOT_TEXTS.items()}
        documents = {
            path.relative_to(self.root / "docs").as_posix(): path.read_text("utf-8")
            for path in (self.root / "docs").rglob("*.md")
        }
        shown = {
            target: _shown(target, (self.root / target).read_text("utf-8"))
            for page, text in {**documents, **texts, **generated}.items()
            for target in self._targets(text, page)
            if _page(target).startswith("source/")
        }
        return texts | {_page(target): shown[target] for target in sorted(shown)}

    def _targets(self, text: str, page: str) -> Iterator[str]:
        for part in _FENCED.split(text)[::2]:
            for _, target, _ in _LINK.findall(part):
                if "://" not in target:
                    yield _resolved(target, page)

    def relinked(self, text: str, page: str) -> str:
        """The text of a page, its links to files turned into links to pages of the site.

        A link whose text is the name of a document gets that document's title.
        """
        if page.startswith(("source/", "api/", "commands/")):
            return text

        def changed(link: re.Match[str]) -> str:
            before, target, after = link.groups()
            if "://" in target:
                return link[0]
            place = posixpath.relpath(
                _page(_resolved(target, page)), posixpath.dirname(page) or "."
            )
            return f"{before}{place}{after}"

        def titled(name: re.Match[str]) -> str:
            path = self.root / _resolved(name[1], page)
            title = re.match(r"# (.*)", path.read_text("utf-8")) if path.is_file() else None
            return f"[{title[1]}]" if title else name[0]

        parts = _FENCED.split(text)
        for at in range(0, len(parts), 2):
            parts[at] = _LINK.sub(changed, _NAMED.sub(titled, _ROW.sub(_bare, parts[at])))
        return "".join(parts)


def _bare(row: re.Match[str]) -> str:
    """A row of a table, `|` in its code without the escape that only GitHub wants."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0])


def _resolved(target: str, page: str) -> str:
    """The path from the root of the repository that a link of a page leads to."""
    origin = {page: name for name, page in ROOT_TEXTS.items()}.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))


def _page(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return ROOT_TEXTS.get(path, f"source/{path}.md")


def _shown(path: str, text: str) -> str:
    """A page with a file's source, which searches leave out."""
    fence = "`" * (1 + max([2, *map(len, re.findall(r"`{3,}", text))]))
    language = LANGUAGES.get(Path(path).suffix, "text")
    head = f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# {path}\n\n"
    return f"{head}{fence}{language}\n{text.rstrip()}\n{fence}\n"
