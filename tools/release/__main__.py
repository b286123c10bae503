"""Makes the files of a release, and checks them.

    python -m tools.release OUT [--rehearse] [--also COMMAND]...

OUT gets the sdist, the wheels, the bill of materials, all licences and checksums, once all checks
have passed. It must be new or empty.

    --rehearse       say what is wrong with the repository (uncommitted changes, a version that is
                     tagged, the changelog …), and go on with the commit that is checked out
    --also COMMAND   makes another wheel in the folder that is added to the command; it runs in the
                     unpacked commit, twice, and its wheel is checked like the others

This Python needs build, twine, cyclonedx-bom and what pyproject.toml needs to build (`make release`
sees to that). Nothing is published: the last lines say how.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
import time
import venv
from pathlib import Path

from . import ROOT, Refused, building, contents, licences, run, sbom, state

EXTRAS = "structured,audio,video,serve"  # not `ray`, which is for clusters


def release(out: Path, rehearse: bool, also: list[str]) -> None:
    """Makes all files in `out`."""
    if out.exists() and any(out.iterdir()):
        raise Refused(f"{out} is not empty: remove what is in it, or name another folder")
    try:
        version = state.check(ROOT)
    except Refused as reason:
        if not rehearse:
            raise
        say(f"only a rehearsal: {reason}")
        version = state.version_of(ROOT)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".ggmodel-", dir=out.parent) as name:
        work = Path(name)
        made = work / "made"
        made.mkdir()
        _make(made, work, version, also)
        out.mkdir(exist_ok=True)
        for path in sorted(made.iterdir()):
            shutil.move(path, out / path.name)
    say(f"{out} has all files. To publish version {version}:")
    say(f"  git tag -a v{version} -m 'ggmodel {version}' && git push origin v{version}")
    # The index takes no wheels of a Linux that is not named.
    files = [p for p in out.glob("*.whl") if "-linux_" not in p.name] + [*out.glob("*.tar.gz")]
    say(f"  python -m twine upload {' '.join(str(p) for p in sorted(files))}")
    say("then begin the next version: CONTRIBUTING.md, Releases")


def _make(made: Path, work: Path, version: str, also: list[str]) -> None:
    say("building sdist and wheels twice")
    files = building.build(ROOT, made, also)
    bundled = {path: contents.check(path, version) for path in files}
    run([sys.executable, "-m", "twine", "check", "--strict", *files])
    epoch = building.epoch(ROOT)
    for wheel in (path for path in files if path.suffix == ".whl"):
        say(f"installing {wheel.name} into an empty environment")
        python = _installed(wheel, work / "environment")
        output = run([python, "-I", "-m", "ggmodel", "--version"], work).strip()
        if output != f"ggmodel {version}":
            raise Refused(f"{wheel.name} says {output!r} of its version, not {version}")
        texts = contents.texts(wheel, bundled[wheel])
        listed = licences.document(licences.installed(python), texts)
        (made / f"{wheel.stem}-licences.txt").write_text(listed, "utf-8")
        (made / f"{wheel.stem}.cdx.json").write_text(sbom.make(python, epoch, texts), "utf-8")
    sums = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in sorted(made.iterdir())
    ]
    (made / "SHA256SUMS").write_text("".join(sums), "utf-8")


def _installed(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment with the wheel and its extras."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = [python, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    run([*pip, f"{wheel}[{EXTRAS}]"])
    return python


_began = time.monotonic()


def say(text: str) -> None:
    """Prints a line, with the seconds since the start."""
    print(f"[{time.monotonic() - _began:4.0f} s] {text}", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", usage=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--also", action="append", default=[])
    options = parser.parse_args()
    try:
        release(options.out.absolute(), options.rehearse, options.also)
    except Refused as reason:
        sys.exit(f"refused: {reason}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
