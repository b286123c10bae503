"""The state of a repository that is ready for a release."""

from __future__ import annotations

import ast
import datetime
import re
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import Refused, run

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)((?:a|b|rc)\d+)?")
_TITLE = re.compile(r"## (\S+) \((\S+)\)")
_MOST_SHOWN = 10

Version = tuple[int, int, int, float]


def version_of(root: Path) -> str:
    """The version, which stands in one place."""
    path = root / "sdk" / "ggmodel" / "__init__.py"
    for statement in ast.parse(path.read_text("utf-8")).body:
        match statement:
            case ast.Assign(
                targets=[ast.Name("__version__")], value=ast.Constant(str() as version)
            ):
                return version
    raise Refused(f'{path} has no line __version__ = "MAJOR.MINOR.PATCH"; write it')


def parsed(version: str) -> Version:
    """A version as numbers that compare in its order; one that is no candidate ends with infinity.

    Raises:
        Refused: it is not semantic.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise Refused(
            f"the version {version!r} is not semantic: write MAJOR.MINOR.PATCH, such as 1.2.0 or "
            "1.2.0rc1, in sdk/ggmodel/__init__.py"
        )
    major, minor, patch, candidate = match.groups()
    # "a" before "b" before "rc": by the letter's place, then the number.
    rank = float("inf")
    if candidate:
        kind, number = re.fullmatch(r"([a-z]+)(\d+)", candidate).groups()  # type: ignore[union-attr]
        rank = ("a", "b", "rc").index(kind) * 1e6 + int(number)
    return int(major), int(minor), int(patch), rank


def check(root: Path) -> str:
    """The version to release.

    Raises:
        Refused: changes that are not committed, a version that is not semantic, not newer than
            those tagged, or too small a step for what has changed; a changelog without its entries.
    """
    version = version_of(root)
    parsed(version)
    _check_tree(root)
    _check_tags(root, version)
    section = _check_changelog(root, version)
    _check_public(root, version, section)
    return version


def _check_tree(root: Path) -> None:
    changed = run(["git", "status", "--porcelain"], root).splitlines()
    if changed:
        more = f"\n  and {len(changed) - _MOST_SHOWN} more" * (len(changed) > _MOST_SHOWN)
        lines = "\n".join(f"  {line}" for line in changed[:_MOST_SHOWN])
        raise Refused(f"not all is committed; commit, stash or remove:\n{lines}{more}")


def _check_tags(root: Path, version: str) -> None:
    released = _released(root)
    if version in released:
        raise Refused(
            f"version {version} is tagged already, as v{version}: raise __version__ in "
            "sdk/ggmodel/__init__.py, and begin a section of CHANGELOG.md"
        )
    newest = max(released, key=parsed, default=None)
    if newest is not None and parsed(version) < parsed(newest):
        raise Refused(f"version {version} is older than {newest}, which is tagged; raise it")


def _released(root: Path) -> list[str]:
    """The versions that are tagged."""
    tags = run(["git", "tag", "--list", "v*"], root).split()
    return [tag[1:] for tag in tags if _VERSION.fullmatch(tag[1:])]


def _check_changelog(root: Path, version: str) -> str:
    """The section of this version."""
    public = _public(root)
    try:
        section = public["top_section"]((root / "CHANGELOG.md").read_text("utf-8"))
    except ValueError as error:
        raise Refused(str(error)) from None
    title, _, body = section.partition("\n")
    match = _TITLE.fullmatch(title)
    if match is None or match[1] != version:
        raise Refused(
            f"the top section of CHANGELOG.md is {title!r}; it must be that of this version: "
            f"## {version} ({datetime.date.today()})"
        )
    try:
        datetime.date.fromisoformat(match[2])
    except ValueError:
        raise Refused(
            f"CHANGELOG.md says {title!r}: write the day of the release in place of {match[2]!r}, "
            f"as {datetime.date.today()}"
        ) from None
    if not re.search(r"^- \S", body, re.M):
        raise Refused(f"the section {title!r} of CHANGELOG.md has no entry; write what is new: - …")
    return section


def _check_public(root: Path, version: str, section: str) -> None:
    public = _public(root)
    now, listed = public["read"]((root / "docs" / "public.txt").read_text("utf-8"))
    if listed != version:
        raise Refused(f"docs/public.txt is of {listed}: python docs/generate_public.py")
    released = max(_released(root), key=parsed, default=None)
    if released is None:
        return
    before, _ = public["read"](run(["git", "show", f"v{released}:docs/public.txt"], root))
    changes = public["changes"](before, now)
    if missing := public["unnamed"](changes, section):
        shown = "\n".join(f"  {name}" for name in missing[:_MOST_SHOWN])
        raise Refused(
            f"{len(missing)} public names have changed, and the top section of CHANGELOG.md does "
            f"not have them in backquotes:\n{shown}"
        )
    if (needed := least(parsed(released), changes)) > parsed(version)[:3]:
        broken = [name for name, how in changes.items() if how != "new"] or list(changes)
        raise Refused(
            f"{version} is too small a step from {released} for what has changed, such as "
            f"{broken[0]}: the next version is {'.'.join(map(str, needed))} at least"
        )


def least(released: Version, changes: Mapping[str, str]) -> tuple[int, int, int]:
    """The least version after these changes, by semantic versioning: what is gone or changed needs
    a new major version (below 1.0 a minor one), what is new a minor one."""
    major, minor, patch, rank = released
    broken = any(how != "new" for how in changes.values())
    if broken and major:
        return major + 1, 0, 0
    if changes and (broken or major):
        return major, minor + 1, 0
    return major, minor, patch + (rank == float("inf"))


def _public(root: Path) -> dict[str, Any]:
    """The functions of docs/generate_public.py."""
    return runpy.run_path(str(root / "docs" / "generate_public.py"))
