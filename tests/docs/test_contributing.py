"""The recipes of CONTRIBUTING.md name what their files have, and programs that tests run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, read

PAGE = read("CONTRIBUTING.md")
TOPS = (ROOT, ROOT / "sdk" / "ggmodel")
ROW = re.compile(r"^\| (?P<files>`[^|]+`) \| (?P<add>.+) \|$", re.M)
FILE = r"`(?P<file>[\w/]+\.py)`"
# `NAME` or `NAME` in `FILE`; `NAME` (`FILE`)
PLACED = re.compile(rf"`(?P<name>[^`]+)`(?: or `(?P<other>[^`]+)`)?(?: in | \(){FILE}")
# A name as such, a call of it, or a decorator.
NAME = re.compile(r"@?([A-Za-z_]\w*)(?:\(.*\))?", re.S)
# Programs that need what no test has: an own environment, a build of llama.cpp.
UNTESTED = {"tests/mutants.py", "tests.convert.make_quantized"}


def named_files(path: str) -> list[Path]:
    """Files below the root or the SDK; words in capitals stand for any name."""
    pattern = re.sub(r"[A-Z]{2,}", "*", path)
    return [file for top in TOPS for file in top.glob(pattern) if file.is_file()]


def names(spans: str) -> list[str]:
    """The identifiers among texts in backticks."""
    matches = (NAME.fullmatch(span) for span in re.findall(r"`([^`]+)`", spans))
    return [match[1] for match in matches if match]


def promises() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of the recipes, each with the files of which one must have it."""
    for match in PLACED.finditer(PAGE):
        for name in names(f"`{match['name']}` `{match['other']}`" if match["other"] else match[0]):
            yield name, (match["file"],)
    for row in ROW.finditer(PAGE):
        files = tuple(re.findall(r"`([^`]+)`", row["files"]))
        if all(re.search(r"\.py$", file) for file in files):
            for name in names(PLACED.sub("", row["add"])):
                yield name, files


PROMISES = sorted(set(promises()))


def test_the_recipes_name_many_things():
    assert len(PROMISES) > 35
    recipes = {"_DIRECT", "emits", "LAYOUTS", "_ENCODED", "KV_TYPES", "_MIXING", "SHORT", "Source"}
    assert recipes <= {name for name, _ in PROMISES}


@pytest.mark.parametrize(("name", "files"), PROMISES, ids=lambda value: str(value))
def test_a_file_of_a_recipe_has_the_name(name: str, files: tuple[str, ...]):
    texts = [path.read_text("utf-8") for file in files for path in named_files(file)]
    assert texts
    assert any(re.search(rf"\b{name}\b", text) for text in texts)


def programs() -> set[str]:
    """Paths and modules that `python` is asked to run, but for pytest."""
    code = "\n".join([*blocks(PAGE, "sh"), *re.findall(r"`(python [^`]+)`", PAGE)])
    programs_run = re.findall(r"^\s*python (?:-m )?([\w./]+)", code, re.M)
    return {name for name in programs_run if name != "pytest"}


def test_every_program_of_the_recipes_is_run_by_a_test():
    assert len(programs()) > 8 and programs() >= UNTESTED
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    for program in programs() - UNTESTED:
        module = program.removesuffix(".py").replace("/", ".")
        name = module.rpartition(".")[2]
        spelled = rf"\b(?:{re.escape(module)}|{re.escape(program)})\b|[\"']{name}(?:\.py)?[\"']"
        assert any(re.search(spelled, text) for text in texts), program
