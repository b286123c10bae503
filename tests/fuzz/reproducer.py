"""Files that run a case again: `python -m tests.fuzz --replay FILE`."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.fuzzer import Fuzzer, find, from_json, path_of, seeded, to_json
from tests.fuzz.parent import Children, Finding, Result

_LARGEST = 32 << 20  # characters of a case that a file holds; a larger one is made again


def save(folder: Path, fuzzer: type[Fuzzer], seed: int, found: Finding) -> Path:
    """Writes a finding with its case, and returns the path."""
    case = _made(fuzzer, seed, found.number)
    mark = hashlib.sha256(found.title.encode()).hexdigest()[:8]
    path = folder / f"{fuzzer.name}-{mark}.json"
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "title": found.title,
        "fuzzer": path_of(fuzzer),
        "seed": seed,
        "number": found.number,
        "first": found.first,
        "step": found.step,
        "text": found.text,
        "case": case,
    }
    path.write_text(json.dumps(content, indent=1))
    return path


def replay(path: Path, history: int = 0) -> Result:
    """Runs the case of a file alone in a child, or, with `history`, behind as many cases as its
    child had run before it."""
    content: dict[str, Any] = json.loads(path.read_text())
    fuzzer, seed, number = find(content["fuzzer"]), content["seed"], content["number"]
    if not history and content["case"] is not None:
        return Children(fuzzer, seed).one(from_json(content["case"]), number)
    before = range(content["first"], number, content["step"])
    before = before[-history:] if history else before[:0]
    first = before[0] if before else number
    return Children(fuzzer, seed, jobs=content["step"]).some(first, len(before) + 1)


def _made(fuzzer: type[Fuzzer], seed: int, number: int) -> str | None:
    """The case as text; None if it is too large, or making it was what failed."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            case = to_json(seeded(fuzzer(Path(folder)), seed, number))
        except Exception:
            return None
    return case if len(case) <= _LARGEST else None
