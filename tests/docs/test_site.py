"""The site's pages and links, without building it, as tests/browser/test_site.py does."""

from __future__ import annotations

import ast
import posixpath
import re
import runpy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ggmodel import errors
from ggmodel.cli import COMMANDS
from tests.documents import ROOT, read

SITE = ROOT / "docs" / "site"
SDK = ROOT / "sdk" / "ggmodel"


def module(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SITE / f"{name}.py"))


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """All pages that are not in docs/."""
    tables = module("architectures")["pages"]()
    texts = module("repository")["Texts"](ROOT).pages(tables)
    return tables | texts | module("commands")["pages"]() | module("api")["pages"]()


def navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for item in entry.values() if isinstance(entry, dict) else entry:
            yield from navigation(item)


def test_every_page_has_one_place_in_the_navigation(generated: dict[str, str]):
    shown = list(navigation(yaml.safe_load(read("mkdocs.yml"))["nav"]))
    assert len(shown) == len(set(shown))
    folders = tuple(entry.removesuffix("*") for entry in shown if entry.endswith("*"))
    own = {path.name for path in (ROOT / "docs").glob("*.md")}
    made = {page for page in generated if not page.startswith((*folders, "source/"))}
    assert {entry for entry in shown if not entry.endswith("*")} == own | made
    assert len(folders) == 2 and all(any(p.startswith(f) for p in generated) for f in folders)


def exported() -> dict[str, list[str]]:
    """Package → the names in its `__all__`, read from the source."""
    found = {}
    for path in [SDK / "__init__.py", *SDK.glob("*/__init__.py"), *SDK.glob("*/*/__init__.py")]:
        names = re.search(r"^__all__ = (\[.*?\])$", path.read_text("utf-8"), re.M | re.S)
        if names and names[1].strip("[]").strip():
            package = ".".join(path.parent.relative_to(SDK.parent).parts)
            found[package] = ast.literal_eval(names[1])
    return found


# Model files, the server, and the insides of packages that have a page.
INSIDE = re.compile(r"ggmodel\.(models|serve|(ml|runner|convert|chat)\.)")


def test_every_public_name_is_in_the_reference(generated: dict[str, str]):
    public = {p: names for p, names in exported().items() if not INSIDE.match(p)}
    assert len(public) > 15 and "ggmodel.nn" in public
    text = "\n".join(generated[page] for page in generated if page.startswith("api/"))
    described = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    for package, names in public.items():
        page = generated[f"api/{package}.md"]
        for name in names:
            linked = re.search(rf"\[`{name}`\](?:\[(\S+)\]|\(\S+\.md\))", page)
            assert f"{package}.{name}" in described or linked, f"{package}.{name}"
            assert not linked or not linked[1] or linked[1] in described, f"{package}.{name}"
    assert len(described) == text.count("\n::: ")
    assert "ggmodel.errors" in described
    assert issubclass(errors.Busy, errors.Error)  # the module is described as a whole


def test_every_command_and_option_has_its_place(generated: dict[str, str]):
    command = module("commands")["command"]
    pages = {page for page in generated if page.startswith("commands/")}
    assert pages == {"commands/index.md", *(f"commands/{name}.md" for name in COMMANDS)}
    for name in COMMANDS:
        page = generated[f"commands/{name}.md"]
        assert f"[`{name}`]({name}.md)" in generated["commands/index.md"]
        inner = getattr(command(name), "commands", {})
        assert all(f"## {name} {member}\n" in page for member in inner)
        for param in (p for one in (command(name), *inner.values()) for p in one.params):
            option = param.param_type_name == "option"
            shown = max(param.opts, key=len) if option else param.metavar.strip("[]…")
            assert re.search(rf"^`.*{re.escape(shown)}(?!\w).*`$", page, re.M), (name, shown)


def test_the_table_of_architectures_is_that_of_the_page(generated: dict[str, str]):
    page, _, _ = generated["architectures.md"].partition("\nA model whose text")
    table = dict(re.findall(r"^\| `(\S+)` \| .* \| (.*) \| \[", page, re.MULTILINE))
    assert sorted(table) == module("architectures")["built_in"]()
    assert len(table) > 25
    said = dict(re.findall(r"^\| (\w+) \| for (.*?)[;:]", read("docs/supported.md"), re.MULTILINE))
    families = {"qwen35moe": "qwen35", "qwen3vlmoe": "qwen3vl"}
    for kind, row in (("pictures", "images"), ("sounds", "sounds"), ("videos", "videos")):
        listed = set(re.findall(r"[\w-]+", said[row])) - {"and", "SmolVLM"}
        taking = {families.get(name, name) for name, takes in table.items() if kind in takes}
        assert taking == listed, kind


def test_links_to_the_repository_become_links_of_the_site(generated: dict[str, str]):
    texts = module("repository")["Texts"](ROOT)
    pages = {path.name: path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")}
    files = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*")}
    roots = {page: generated[page] for page in ("contributing.md", "changelog.md")}
    count = 0
    for page, text in {**pages, **roots, "architectures.md": generated["architectures.md"]}.items():
        changed = re.sub(r"^```.*?^```$", "", texts.relinked(text, page), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#\s]+)", changed):
            if "://" not in target:
                count += target.startswith("source/")
                place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
                assert place in generated or place in files, (page, target)
    assert count > 30
    assert "class Experts(nn.GatedExperts)" in generated["source/models/llama/model.py.md"]


@pytest.mark.parametrize(
    ("page", "text", "changed"),
    [
        ("run.md", "[a](../CONTRIBUTING.md#speed)", "[a](contributing.md#speed)"),
        ("run.md", "[a](../models/llama/model.py)", "[a](source/models/llama/model.py.md)"),
        ("contributing.md", "[a](docs/run.md)", "[a](run.md)"),
        ("run.md", "see [chat.md](chat.md#a)", "see [Chat](chat.md#a)"),
        ("contributing.md", "[docs/chat.md](docs/chat.md)", "[Chat](chat.md)"),
        ("run.md", "[a](https://b.example/c) [d](#e)", "[a](https://b.example/c) [d](#e)"),
        ("run.md", "```\n[a](../b.py)\n```", "```\n[a](../b.py)\n```"),
        ("run.md", r"| `a \| b` | c \| d |", r"| `a | b` | c \| d |"),
        ("api/ggmodel.md", "[a](../b.md)", "[a](../b.md)"),
    ],
)
def test_a_link_leads_to_the_same_place(page: str, text: str, changed: str):
    assert module("repository")["Texts"](ROOT).relinked(text, page) == changed


def test_a_file_may_hold_fences():
    shown = module("repository")["_shown"]("a.md", "x\n````\ny\n````\n")
    assert "\n`````text\nx\n````\ny\n````\n`````\n" in shown


def test_help_is_no_markdown():
    plain = module("commands")["_plain"]
    assert plain("a_b [x] <y> `--c_d`") == r"a\_b \[x\] \<y\> `--c_d`"


def test_the_site_loads_nothing_from_elsewhere():
    config = yaml.safe_load(read("mkdocs.yml"))
    assert config["theme"]["font"] is False and config["strict"] is True
    for path in SITE.glob("*.*"):
        if path.suffix in (".css", ".js"):
            assert "//" not in re.sub(r"^\s*//.*$", "", path.read_text("utf-8"), flags=re.M), path
    assert sys.modules.get("mkdocs") is None  # all of this is known without it
