"""Makes the files of a release and checks them; see `python -m tools.release --help`.

    state        what the repository must be like: version, tag, changelog, what is public
    building     sdist and wheels, twice, the same bytes
    contents     what may be in them
    licences     licences of dependencies, and of binaries that a wheel brings
    sbom         the bill of materials, CycloneDX

Nothing is published, tagged or changed outside of the folder of results.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """The release cannot be made; says what to do."""


def run(
    command: Sequence[str | Path],
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
) -> str:
    """The output of a program.

    Raises:
        Refused: it fails; with the end of what it said.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)
    except OSError as error:
        raise Refused(f"{words[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-4000:]
        raise Refused(f"{output}\n\n{shlex.join(words)} failed, as said above")
    return done.stdout
