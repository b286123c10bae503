"""The numbers of the code are counted, and ceilings hold them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tools.house import copies
from tools.house.__main__ import CEILINGS, main
from tools.house.circles import circles
from tools.house.counts import Ceilings, Size, count
from tools.house.source import Source


def source(text: str, module: str = "ggmodel.ml.node", name: str = "") -> Source:
    parts = tuple(module.split("."))
    return Source(name or f"sdk/{'/'.join(parts)}.py", parts, text)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", 0),
        ('"""A module."""\n\nimport os\nfrom a import (\n    b,\n)\n\nx = 1  # a comment\n', 1),
        ("# a comment\nx = [\n    1,\n    # a comment\n\n    2,\n]\n", 4),
        ('class A:\n    """A\n    class."""\n\n    x: int\n    """Its x."""\n', 2),
        ('async def f():\n    """It\n    waits."""\n    import os\n    return os\n', 2),
        # A text within an expression is code, whatever its lines look like.
        ('x = """one\n\n# two\n"""\n', 4),
        # Not so the lines between the parts of a text.
        ('x = (\n    "one"\n    # a comment\n\n    f"two"\n)\n', 4),
        ("if TYPE_CHECKING:\n    import os\n", 1),
    ],
)
def test_lines_of_code(text: str, lines: int):
    assert len(source(text).code) == lines


def test_functions_have_all_their_lines():
    text = 'class A:\n    @property\n    def f(self):\n        """It."""\n\n        return 1\n'
    (found,) = source(text, name="a.py").functions()
    assert str(found) == "a.py:3 f (4)"


def test_words_are_counted_as_identifiers():
    text = "found = f(found=1)\n# found\nx.found = 'found'\nfounded = 1\n"
    assert source(text).uses(["found", "given"]) == {"found": 3, "given": 0}


METHOD = """
def {f}({x}, {y}):
    '''{doc}'''
    {z} = {x}.{a}({y}, 1)
    if {z}:
        {z} = {x}.{a}({z}, 1)
    else:
        return {last}
    return {z}
"""


def method(last: str = "y", doc: str = "It.", **names: str) -> str:
    named = {"f": "f", "x": "x", "y": "y", "z": "z", "a": "a", **names}
    return METHOD.format(last=last, doc=doc, **named)


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        (method(), True),
        (method(doc="Another\n\n    text."), True),
        (method(f="g", x="self", y="first", z="result", a="call", last="first"), True),
        (method(last="x"), False),
        (method().replace("1)", "2)"), True),
        (method().replace("1)", "2)", 1), False),  # one constant became two
        (method().replace("    return z\n", ""), False),
    ],
)
def test_equal_pairs_after_renaming(other: str, equal: bool):
    pairs = copies.pairs([source(method(), name="a.py"), source(other, name="b.py")])
    assert len(pairs) == equal
    if equal:
        assert str(pairs[0][0]) == "a.py:2 f (7)" and pairs[0][1].file == "b.py"


def test_short_functions_are_no_pairs():
    short = method().replace("    else:\n        return y\n", "")
    assert not copies.pairs([source(short, name="a.py"), source(short, name="b.py")])


def test_three_equal_ones_are_three_pairs():
    assert len(copies.pairs([source(method(), name=f"{n}.py") for n in "abc"])) == 3


def test_circles_of_imports():
    texts = {
        "a": "from .b import x",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import c",
        "c": "def f():\n    import ggmodel.ml.a",
        "d": "from .a import y\nfrom ..ml import e",
        "e": "import os\nfrom . import unknown",
    }
    sources = [source(text, f"ggmodel.ml.{name}") for name, text in texts.items()]
    sources.append(source("from .d import z", "ggmodel.ml", "sdk/ggmodel/ml/__init__.py"))
    assert circles(sources) == [
        # The module `unknown` does not exist: the package itself is imported.
        [f"sdk/ggmodel/ml/{name}.py" for name in ("__init__", "d", "e")],
        [f"sdk/ggmodel/ml/{name}.py" for name in "abc"],
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose numbers are their ceilings."""
    files = {
        "sdk/ggmodel/__init__.py": "x = 1\n",
        "sdk/ggmodel/ml/__init__.py": "x = 1\ny = 2\n",
        "sdk/ggmodel/ml/ggml/part.py": "x = 1\n",
        "native/__init__.py": "x = 1\n",
        "models/llama/model.py": method(),
        "docs/public.txt": "a\nb\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "sdk/ggmodel/native").symlink_to(tmp_path / "native")
    (tmp_path / CEILINGS).parent.mkdir(parents=True)
    counts = count(tmp_path)
    lines = {name: size.lines for name, size in counts.packages().items()}
    Ceilings(lines, counts.held()).write(tmp_path / CEILINGS)
    return tmp_path


def test_sizes_of_packages(root: Path):
    assert count(root).packages() == {
        "ml": Size(2, 3),
        "top level": Size(1, 1),
        "native": Size(1, 1),
        "models": Size(1, 7),
    }


def test_numbers_at_their_ceilings_pass(root: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--check"], root) == 0
    assert capsys.readouterr() == ("", "")


def test_a_line_too_many_names_the_package_and_the_remedy(
    root: Path, capsys: pytest.CaptureFixture[str]
):
    (root / "sdk/ggmodel/ml/__init__.py").write_text("x = 1\ny = 2\nz = 3\n")
    assert main(["--check"], root) == 1
    assert capsys.readouterr().err == (
        "ml has 4 lines of code, and its ceiling is 3: remove code, or raise the ceiling in "
        f"{CEILINGS} and give the reason in the commit\n"
    )


def test_a_new_package_needs_a_ceiling(root: Path, capsys: pytest.CaptureFixture[str]):
    (root / "sdk/ggmodel/agents").mkdir()
    (root / "sdk/ggmodel/agents/__init__.py").write_text("x = 1\n")
    assert main(["--check"], root) == 1
    assert "agents has 1 lines of code and no ceiling: enter one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("sdk/ggmodel/ml/empty.py", "", "files of the SDK: 4, and the ceiling is 3"),
        ("docs/public.txt", "a\nb\nc\n", "lines of docs/public.txt: 3, and the ceiling is 2"),
        ("models/llama/__init__.py", "#\n" * 501, "files above 500 lines: 1, and the ceiling is 0"),
        (
            "native/__init__.py",
            "def f():\n" + "    # a comment\n" * 59 + "    x\n",
            "functions above 60 lines: 1, and the ceiling is 0",
        ),
        ("models/copy.py", method(), "equal pairs of 6 lines in models: 1, and the ceiling is 0"),
        (
            "sdk/ggmodel/ml/ggml/part.py",
            "from . import other",
            "circles of imports in ml, kvcache, runner: 1, and the ceiling is 0",
        ),
    ],
)
def test_other_numbers_are_held(
    root: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, fault: str
):
    (root / file).write_text(text)
    if "circles" in fault:
        (root / "sdk/ggmodel/ml/ggml/other.py").write_text("from .part import x")
    assert main(["--check"], root) == 1
    assert f"{fault}: mend that" in capsys.readouterr().err


def test_ceilings_are_lowered_and_never_raised(root: Path):
    (root / "sdk/ggmodel/ml/__init__.py").write_text("x = 1\n")
    (root / "native/__init__.py").write_text("x = 1\ny = 2\n")
    assert main(["--lower"], root) == 0
    lines = json.loads((root / CEILINGS).read_text())["lines"]
    assert lines == {"ml": 2, "top level": 1, "native": 1, "models": 7}


def test_the_table_has_numbers_goals_and_names(root: Path, capsys: pytest.CaptureFixture[str]):
    (root / "models/copy.py").write_text(method())
    assert main(["--static", "--pairs"], root) == 0
    printed = capsys.readouterr().out
    assert "ml (2 files)" in printed and "38,500" in printed
    assert "models/copy.py:2 f (7) = models/llama/model.py:2 f (7)" in printed
    assert "\x1b" not in printed
