"""Runs all of llama.cpp's tests of its server, those too that are known to fail.

    python -m tests.peers.llama_server FOLDER [FILE …]

FOLDER receives the copy. Printed is each outcome, and the reason of a failure that is known.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import newest

from .suite import ROOT, copied, outcomes, reason


def main(folder: Path, files: list[str]) -> None:
    tests = copied(newest.source(ROOT / ".cache" / "source"), folder)
    for file in files or sorted(path.stem for path in (tests / "unit").glob("test_*.py")):
        found, said = outcomes(tests, file)
        (folder / f"{file}.log").write_text(said)
        for name, outcome in found.items():
            print(f"{outcome:8} {name}  {reason(name) or ''}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
