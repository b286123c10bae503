"""`ggmodel steer` and `--steer` as users start them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.documents import ROOT


def test_steering_vectors_are_made_shown_and_applied(program: Any, tmp_path: Path):
    stories, vector = ROOT / "examples" / "assets" / "stories.gguf", tmp_path / "mood.gguf"
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("A happy dog\nThe glad girl\n")
    bad.write_text("A sad dog\n")
    lists = ("--positive", good, "--negative", bad)
    done = program("steer", "make", stories, vector, *lists)
    assert done.returncode == 0 and "4 directions" in done.stderr, done.stderr
    done = program("steer", "show", vector, "--json")
    assert json.loads(done.stdout)["widths"] == [192]
    run = ("run", stories, "Once upon a time", "--raw", "--temperature", "0", "-n", "8")
    plain, same, other = (
        program(*run, *more).stdout
        for more in ((), ("--steer", f"{vector}:0"), ("--steer", f"{vector}:20"))
    )
    assert plain == same != other
    done = program("steer", "make", stories, vector, *lists)
    assert done.returncode == 1 and "exists" in done.stderr
    good.write_text("")
    done = program("steer", "make", stories, vector, *lists, "--force")
    assert done.returncode == 1 and "it has no prompts; give one a line" in done.stderr
