"""Tries every fault, and writes the tables of docs/diff.md.

    python -m tests.faults [--rule NAME] [--file PART] [--sample N] [--show] [--fresh] [--write]

Needs torch and transformers where `.cache/faults` has no results of theirs. Each verdict is saved
at once: a run that was interrupted goes on where it was. `--fresh` forgets the verdicts, as is
needed when the SDK or a golden has changed; those of changed model files are forgotten anyway.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ggmodel.storage import write_text
from tests.faults.healthy import false_alarms
from tests.faults.table import missed, summary, write
from tests.faults.trial import Fault, Result, Trials, faults

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "faults"
_EVERY = 10.0  # seconds between lines of progress


def main() -> None:
    options = _options()
    found = faults(lambda rule, path: options.rule in (None, rule) and options.file in path)
    if options.sample:
        found = random.Random(0).sample(found, min(options.sample, len(found)))
    path = options.verdicts
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for fault in found if options.fresh else ():
        known.pop(fault.key, None)
    trials, last = Trials(CACHE), time.monotonic()
    for i, fault in enumerate(found):
        if fault.key not in known:
            known[fault.key] = asdict(trials.run(fault))
            _save(path, known)
        if time.monotonic() - last > _EVERY:
            last = time.monotonic()
            print(f"{i + 1} of {len(found)}: {fault.path}, {fault.rule}", flush=True)
    results = [Result(**known[fault.key]) for fault in found]
    if options.show:
        _show(found, results)
    for result in missed(results):
        print(f"{result.path}:{result.line}: {result.rule}: {result.said}: {_said(result)}")
    print(summary(results))
    if options.write:
        alarms = false_alarms(CACHE)
        write(ROOT / "docs" / "diff.md", results, alarms)
        print(f"{sum(n for _, n in alarms.values())} false alarms")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rule", help="only this one")
    parser.add_argument("--file", default="", help="only model files with this in their path")
    parser.add_argument("--sample", type=int, help="only so many, chosen at random, seed 0")
    parser.add_argument("--show", action="store_true", help="print the verdict on every fault")
    parser.add_argument("--fresh", action="store_true", help="forget earlier verdicts")
    parser.add_argument(
        "--verdicts", type=Path, default=CACHE / "verdicts.json", help="where they are kept"
    )
    parser.add_argument("--write", action="store_true", help="write docs/diff.md")
    return parser.parse_args()


def _save(path: Path, known: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(known))


def _show(found: list[Fault], results: list[Result]) -> None:
    for fault, result in zip(found, results, strict=True):
        print(f"{fault.path}:{fault.line}: {fault.rule}: {fault.said}: {_said(result)}")


def _said(result: Result) -> str:
    if not result.shown:
        return "no effect"
    place = "" if result.first is None else f", diff names {result.first or 'the model'}"
    wrong = " wrongly" if result.right is False else ""
    note = f" ({result.note})" if result.note else ""
    tools = ", ".join(result.by) or "no tool"
    return f"{result.shown} of {result.case}: {tools}{place}{wrong}{note}"


if __name__ == "__main__":
    sys.exit(main())
