"""The map and the recipes for changes name what exists, and all of it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, read

SDK = ROOT / "sdk" / "ggmodel"
MAP = read("docs/architecture.md")
PAGES = {"docs/architecture.md": MAP, "CONTRIBUTING.md": read("CONTRIBUTING.md")}
_SUFFIXES = (".py", ".md", ".toml", ".json", ".txt", ".c")


def code(text: str) -> Iterator[str]:
    """The texts in backticks, and the blocks of commands."""
    yield from blocks(text, "sh")
    yield from re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def paths(text: str) -> set[str]:
    words = {word.strip(",;'\"") for span in code(text) for word in span.split()}
    return {
        word
        for word in words
        if re.fullmatch(r"[\w./*-]+(::\w+)?", word)
        and ("/" in word or word.endswith(_SUFFIXES))
        and not word.startswith(("/", "."))
    }


def exists(path: str) -> bool:
    """Below the root or the SDK; words in capitals stand for any name."""
    pattern = re.sub(r"[A-Z]{2,}", "*", path.partition("::")[0]).rstrip("/")
    return any((top / path).exists() or any(top.glob(pattern)) for top in (ROOT, SDK))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str):
    named = paths(PAGES[page])
    assert len(named) > 30
    assert not sorted(path for path in named if not exists(path))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    targets = re.findall(r"\]\(([^)#]+)\)", PAGES[page])
    folder = (ROOT / page).parent
    assert targets
    assert not [t for t in targets if "://" not in t and not (folder / t).exists()]


def test_the_heart_is_read_in_an_evening():
    """Twelve files of 4,000 lines at most lead from a declaration to a token."""
    section = MAP.partition("## Reading order\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\|[^|]*\| `([^`]+)` \|", section, flags=re.MULTILINE)
    assert len(files) == 12
    found = [next(top / path for top in (SDK, ROOT) if (top / path).is_file()) for path in files]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in found)
    assert lines <= 4000
    told = re.search(r"Twelve files of ([0-9,]+) lines", section)
    assert told and abs(int(told[1].replace(",", "")) - lines) < 250


def test_what_stands_before_a_file_is_defined_there():
    named = re.findall(r"`(\w+)(?:\.(\w+))?`\s\(`([\w/]+\.py)`", MAP)
    assert len(named) > 12
    for name, member, path in named:
        top = SDK if (SDK / path).exists() else ROOT
        text = (top / path).read_text("utf-8")
        assert re.search(rf"^(?:class|def) {name}\b", text, re.MULTILINE), (name, path)
        assert not member or re.search(rf"^    def {member}\b", text, re.MULTILINE), (member, path)


def packages() -> Iterator[str]:
    for folder, names, _ in os.walk(SDK):  # links are named, not followed
        for name in names:
            if (Path(folder) / name / "__init__.py").exists():
                yield (Path(folder) / name).relative_to(SDK).as_posix()


def drawn(whole: str) -> list[str]:
    """The layers of a package in the picture of it."""
    (picture,) = (b for b in blocks(MAP, "text") if b.startswith(f"{whole}\n"))
    lines = picture.splitlines()[1:]
    found = [re.match(r"  (\w+(?: [|:] \w+)*)  ", line) for line in lines]
    assert all(found), lines
    return [match[1] for match in found if match]


def test_every_package_is_in_the_map():
    named = paths(MAP) | set(re.findall(r"\w+", " ".join(drawn("ggmodel"))))
    assert len(list(packages())) > 20
    assert not [
        package
        for package in packages()
        if not any(f"{path}/".startswith(f"{package}/") for path in named)
    ]


def contracts() -> dict[str, list[str]]:
    """Package → the layers within it, as pyproject.toml has them."""
    found = {}
    for table in re.split(r"^\[\[?(?=\w)", read("pyproject.toml"), flags=re.MULTILINE):
        if table.startswith("tool.importlinter.contracts") and "\nlayers = " in table:
            (whole,) = array(table, "containers") or ["ggmodel"]
            found[whole] = [name.replace("ggmodel.", "") for name in array(table, "layers")]
    return found


def array(table: str, key: str) -> list[str]:
    """An array of strings is spelled alike in TOML and in Python."""
    found = re.search(rf"^{key} = (\[.*?\])$", table, re.MULTILINE | re.DOTALL)
    return ast.literal_eval(found[1]) if found else []


def test_the_pictures_are_the_contracts():
    assert "ggmodel" in contracts()
    assert {whole: drawn(whole) for whole in contracts()} == contracts()
