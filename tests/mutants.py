"""Changes a package at random places and runs its tests: a change that passes shows a gap.

    python tests/mutants.py PACKAGE [TESTS …] [--count N] [--seed N] [--only N …]

PACKAGE is a folder, a file or some (ml/*.py) below sdk/ggmodel, TESTS are what runs on each mutant,
tests/PACKAGE if none are given. The changes are made by cosmic-ray (extra `mutation`), in a copy of
the SDK. The same seed gives the same mutants of the same source. A survivor is printed as a diff:
write the test that it needs, unless it changes nothing that anyone could observe.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

import parso.python.tree  # noqa: F401  # cosmic-ray's own import order fails without it
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
SDK = ROOT / "sdk"
# Fails on `except (A, B)`.
_LEFT_OUT = ("core/ExceptionReplacer",)


def main() -> None:
    options = _options()
    package: Path = SDK / "ggmodel" / options.package
    paths = sorted(package.parent.glob(package.name) if package.suffix else package.rglob("*.py"))
    places = [(path, place) for path in paths for place in _places(path.read_text("utf-8"))]
    random.Random(options.seed).shuffle(places)
    tests = options.tests or [f"tests/{options.package}"]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        shutil.copytree(SDK, copy / "sdk", symlinks=True)
        for name in ("models", "native"):
            (copy / name).symlink_to(ROOT / name)
        began = time.monotonic()
        if _run(copy, tests, timeout=3600) != 0:
            sys.exit("the tests fail without any change")
        timeout = 10 + 5 * (time.monotonic() - began)
        survivors = tried = 0
        for number, (path, mutant) in enumerate(_mutants(places, options)):
            if options.only and number not in options.only:
                continue
            there = copy / path.relative_to(ROOT)
            Path(cache_from_source(str(there))).unlink(missing_ok=True)
            source = there.read_text("utf-8")
            there.write_text(mutant, "utf-8")
            survived = _run(copy, tests, timeout, PYTHONDONTWRITEBYTECODE="1") == 0
            there.write_text(source, "utf-8")
            tried += 1
            survivors += survived
            print(number, "SURVIVED" if survived else "killed", path.relative_to(SDK), flush=True)
            if survived or options.only:
                lines = difflib.unified_diff(source.split("\n"), mutant.split("\n"), lineterm="")
                print("\n".join(list(lines)[2:]), flush=True)
    print(f"{options.package}: {tried - survivors} of {tried} mutants killed; {len(places)} places")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package")
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants to run again")
    return parser.parse_args()


def _places(source: str) -> list[list[tuple[str, int]]]:
    """The places that can be changed; for each the operators and which of their occurrences."""
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    nodes, lines = list(ast_nodes(get_ast(source))), source.split("\n")
    for name in operator_names():
        if get_operator(name).arguments() or name in _LEFT_OUT:
            continue
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            if "TYPE_CHECKING" not in lines[start[0] - 1]:
                found.setdefault(start, []).append((name, occurrence))
    return [found[start] for start in sorted(found)]


def _mutants(
    places: list[tuple[Path, list[tuple[str, int]]]], options: argparse.Namespace
) -> Iterator[tuple[Path, str]]:
    chooser, made = random.Random(options.seed), 0
    for path, candidates in places:
        source = path.read_text("utf-8")
        name, occurrence = chooser.choice(candidates)
        mutant = mutate_code(source, get_operator(name)(), occurrence)
        if mutant is not None and _meaning(mutant) not in (None, _meaning(source)):
            yield path, mutant
            made += 1
        if made == options.count:
            return


def _meaning(source: str) -> str | None:
    """The syntax tree without annotations, which nothing evaluates; None if it does not parse."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def _run(copy: Path, tests: list[str], timeout: float, **environment: str) -> int:
    """The exit status of pytest on the copy; tests that failed before run first."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--ff", "-o", f"cache_dir={copy}/cache"]
    try:
        return subprocess.run(
            [*command, *tests],
            cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": str(copy / "sdk")},
            timeout=timeout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return -1


if __name__ == "__main__":
    main()
