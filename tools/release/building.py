"""Builds sdist and wheels of a commit twice, in other folders: they must be the same bytes."""

from __future__ import annotations

import gzip
import io
import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from ggmodel.builds.builder import unpack

from . import Refused, run

# Builds and compilers take these from the environment, and must not here.
_LENT = ("PYTHON", "GGMODEL_", "CFLAGS", "CPPFLAGS", "LDFLAGS")


def build(root: Path, out: Path, also: Sequence[str] = ()) -> list[Path]:
    """Builds the commit that is checked out.

    Args:
        out: the files are put here once they are complete.
        also: commands that make further wheels in the folder that is added to them. They run in
            the unpacked commit.

    Raises:
        Refused: a build fails, or two builds differ.
    """
    commit = run(["git", "rev-parse", "HEAD"], root).strip()
    works = (out / ".one", out / ".two-longer")
    first, second = (_once(root, commit, work, also) for work in works)
    if [path.name for path in first] != [path.name for path in second]:
        raise Refused(f"two builds made other files: {first} and {second}")
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise Refused(
                f"two builds of {one.name} differ; to see where: diffoscope {one} {other}"
            )
    files = [Path(shutil.move(path, out / path.name)) for path in first]
    for work in works:
        shutil.rmtree(work)
    return files


def _once(root: Path, commit: str, work: Path, also: Sequence[str]) -> list[Path]:
    shutil.rmtree(work, ignore_errors=True)
    source, made = work / "source", work / "made"
    source.mkdir(parents=True)
    made.mkdir()
    time = epoch(root)
    archive = work / "commit.tar"
    run(["git", "archive", "--output", archive, commit], root)
    unpack(archive, source)
    # A C program sorts, a C library formats: in one language.
    env = {n: v for n, v in os.environ.items() if not n.startswith(_LENT)}
    env |= {"SOURCE_DATE_EPOCH": str(time), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    python = [sys.executable, "-m", "build", "--no-isolation", "--outdir", made]
    run([*python, "--sdist", source], work, env)
    [sdist] = made.glob("*.tar.gz")
    settle(sdist, time)
    # The wheel comes from the sdist: what is missing there is noticed.
    unpacked = work / "unpacked"
    unpack(sdist, unpacked)
    [folder] = unpacked.iterdir()
    run([*python, "--wheel", folder], work, env)
    for command in also:
        run([*shlex.split(command), made], source, env)
    return sorted(made.iterdir())


def epoch(root: Path) -> int:
    """The time of the commit that is checked out, in seconds since 1970."""
    return int(run(["git", "log", "-1", "--format=%ct"], root))


def settle(sdist: Path, time: int) -> None:
    """Packs it again without what differs between machines: times, owners, order."""
    with tarfile.open(sdist) as packed:
        members = sorted(packed.getmembers(), key=lambda m: m.name)
        held = {m.name: file.read() for m in members if (file := packed.extractfile(m))}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as again:
        for m in members:
            member = tarfile.TarInfo(m.name)
            member.type, member.linkname, member.size = m.type, m.linkname, m.size
            member.mode = 0o755 if m.isdir() or m.mode & 0o100 else 0o644
            member.mtime = time
            again.addfile(member, io.BytesIO(held[m.name]) if m.name in held else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=time) as zipped:
        zipped.write(plain.getvalue())
