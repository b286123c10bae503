"""docs/public.txt is what the code offers; how its changes are found and named."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import ggmodel

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def public() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_public.py"))


def test_the_list_is_what_the_code_offers(public: dict[str, Any]):
    kept, version = public["read"](public["PATH"].read_text("utf-8"))
    assert version == ggmodel.__version__
    changed = public["changes"](kept, public["listing"]())
    assert not changed, (
        "what is public has changed: name it in CHANGELOG.md's top section, and write the list "
        "again with python docs/generate_public.py"
    )


def test_the_list_has_all_kinds(public: dict[str, Any]):
    found, _ = public["read"](public["PATH"].read_text("utf-8"))
    assert found["ggmodel.LoadOptions.threads"] == "int | None = None"
    assert found["ggmodel.Tensor.reshape"].startswith("a function")
    assert found["ggmodel.ml.Tensor"] == "is ggmodel.Tensor"
    assert found["ggmodel.nn.Rope.scale"] == "float = 1.0"
    assert found["ggmodel.errors.LoadError(report)"] == "object | None = None"
    assert found["ggmodel rerank QUERY"] == "needed"
    assert found["ggmodel run --max-tokens -n"] == "int = None"
    assert found["GGMODEL_DEBUG"] == found["GGMODEL_LIMIT_INPUT_BYTES"]


def test_the_list_is_short():
    """Names that nobody needs are not promised."""
    assert len((DOCS / "public.txt").read_text("utf-8").splitlines()) <= 1620


def test_the_file_has_the_whole_list(public: dict[str, Any]):
    listed = public["listing"]()
    assert public["read"](public["text"](listed, "1.2.0")) == (listed, "1.2.0")


FILE = """\
# Public in ggmodel 1.2.0; by docs/generate_public.py
ggmodel batch: a command; --model: str = None
ggmodel run: a command
ggmodel … --threads: int = None; of: batch run
ggmodel … --threads: int = 1; of: serve
ggmodel serve: a command
ggmodel.load: a function -> M; source: str; *: int; also as: ggmodel.runner.load
"""


def test_a_line_has_parameters_options_commands_and_homes(public: dict[str, Any]):
    found, version = public["read"](FILE)
    assert version == "1.2.0"
    assert found == {
        "ggmodel batch": "a command",
        "ggmodel batch --model": "str = None",
        "ggmodel batch --threads": "int = None",
        "ggmodel run": "a command",
        "ggmodel run --threads": "int = None",
        "ggmodel serve": "a command",
        "ggmodel serve --threads": "int = 1",
        "ggmodel.load": "a function -> M",
        "ggmodel.load(*)": "int",
        "ggmodel.load(source)": "str",
        "ggmodel.runner.load": "is ggmodel.load",
    }


def test_what_nobody_uses_is_not_promised(public: dict[str, Any]):
    found, offered = public["listing"](), public["offered"]()
    # Names of a model file, of a page, and of the result of ggmodel.find.
    for name in ("nn.RMSNorm.weight", "ml.refresh_free_memory", "names.ResolvedModel.digests"):
        assert f"ggmodel.{name}" in found
    # A class for the inside, and a member of one that authors use.
    assert "ggmodel.kvcache.WrapperCache" in offered
    assert "ggmodel.kvcache.WrapperCache" not in found
    assert "ggmodel.kvcache.Cache.shape_key" in offered["ggmodel.kvcache.Cache"]
    assert "ggmodel.kvcache.Cache.shape_key" not in found


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("nn.Linear(x, bias=False)  # no word", {"nn", "Linear", "x", "bias"}),
        ("class A(B):\n    c: D = e\n    def f(self): return 'g'", {"A", "B", "c", "D", "e", "f"}),
        ("from a.b import c", {"c"}),
        ("load(path, …)", {"load", "path"}),
    ],
)
def test_the_words_of_code(public: dict[str, Any], code: str, words: set[str]):
    assert public["_code_words"](code) == words


def test_a_line_says_the_same_in_every_process(public: dict[str, Any]):
    text = public["PATH"].read_text("utf-8")
    assert " at 0x" not in text
    assert "<" not in text


BEFORE = {
    "ggmodel.load": "a function",
    "ggmodel.load(source)": "Source",
    "ggmodel.Old": "a class",
    "ggmodel.Old.way": "a function",
    "ggmodel run --echo --no-echo": "boolean = True",
}
NOW = {
    "ggmodel.load": "a function",
    "ggmodel.load(source)": "Source | None",
    "ggmodel.load(seed)": "int = 0",
    "ggmodel.New": "a class",
    "ggmodel.New.way": "a function",
    "ggmodel run --echo --no-echo": "boolean = False",
    "ggmodel sing": "a command",
    "ggmodel sing --loud": "boolean = False",
    "ggmodel sing --file -f": "str = None",
}


def test_changes(public: dict[str, Any]):
    assert public["changes"](BEFORE, NOW) == {
        "ggmodel.load(source)": "changed",
        "ggmodel.load(seed)": "new",
        "ggmodel.Old": "gone",
        "ggmodel.Old.way": "gone",
        "ggmodel.New": "new",
        "ggmodel.New.way": "new",
        "ggmodel run --echo --no-echo": "changed",
        "ggmodel sing": "new",
        "ggmodel sing --loud": "new",
        "ggmodel sing --file -f": "new",
    }
    assert public["changes"](NOW, NOW) == {}


@pytest.mark.parametrize(
    ("section", "left"),
    [
        ("`load(source, seed=1)`, `New` for `Old`, `--no-echo`, `ggmodel sing`", []),
        ("`load(source)`, `New` for `Old`, `--no-echo`, `sing`", ["ggmodel.load(seed)"]),
        # `load` itself is as it was: its parameters are named. Words without backquotes are none.
        (
            "`load`, `New`, Old, `--no-echo`, `sing`",
            ["ggmodel.Old", "ggmodel.Old.way", "ggmodel.load(seed)", "ggmodel.load(source)"],
        ),
        # An option is spelled whole; a member stands for itself alone.
        (
            "`seed` `source` `way` `Old` `echo` `--loud` `--file`",
            ["ggmodel run --echo --no-echo", "ggmodel sing", "ggmodel.New"],
        ),
    ],
)
def test_the_names_that_a_section_lacks(public: dict[str, Any], section: str, left: list[str]):
    assert sorted(public["unnamed"](public["changes"](BEFORE, NOW), section)) == left


def test_a_changelog_without_sections_is_an_error(public: dict[str, Any]):
    assert public["top_section"]("# Changelog\n\n## 2.0.0 (x)\n\n- b\n\n## 1.0.0\n\n- a\n") == (
        "## 2.0.0 (x)\n\n- b\n\n"
    )
    with pytest.raises(ValueError, match="has no section"):
        public["top_section"]("# Changelog\n")
