"""Runs `ggmodel port` on the classes of classes.txt, each in a process of its own.

    python benchmarks/port/measure.py            # those without a result; --again all of them
    python benchmarks/port/measure.py --table    # prints the table of results.json

Needs torch and transformers. A class gets a folder with the config.json of its defaults; classes
that are decoders by a switch have it on. Results that are `earlier` are of an earlier state of the
command, have a star, and are measured again. Files of those with a missing block are not begun.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
CLASSES = (HERE / "classes.txt").read_text("utf-8").split()
MOST = 300  # seconds a class


def config(name: str) -> dict[str, Any]:
    """The config.json of a class's defaults."""
    import transformers  # type: ignore[reportMissingImports]

    made = getattr(transformers, name).config_class()
    raw = {"architectures": [name], "model_type": made.model_type}
    return raw | ({"is_decoder": True} if hasattr(made, "is_decoder") else {})


def port(name: str, into: Any) -> None:
    """Sends the result of one class."""
    from ggmodel.errors import Error
    from ggmodel.workbench import port as ported

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config(name)), "utf-8")
        try:
            result = ported.port(folder, Path(folder, "own"), begin=False)
        except Error as error:
            into.send({"ok": False, "missing": str(error), "largest_error": None, "lines": 0})
            return
        text = result.file.read_text("utf-8") if result.ok and result.file else ""
        largest = max(result.errors.values(), default=None)
        missing = result.missing.replace(folder, "").partition("\nstrict=")[0]
    lines = len(text.splitlines())
    into.send({"ok": result.ok, "missing": missing, "largest_error": largest, "lines": lines})


def measured(name: str) -> dict[str, Any]:
    """The result of one class."""
    began = time.monotonic()
    receive, send = multiprocessing.Pipe(duplex=False)
    # Libraries of half a gigabyte are imported once.
    process = multiprocessing.get_context("fork").Process(target=port, args=(name, send))
    process.start()
    send.close()
    missing = f"no result in {MOST} s"
    result: dict[str, Any] = {"ok": False, "missing": missing, "largest_error": None, "lines": 0}
    try:
        if receive.poll(MOST):
            result = receive.recv()
    except EOFError:
        result["missing"] = "its process ended"
    process.kill()
    process.join()
    return {**result, "seconds": round(time.monotonic() - began, 1)}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    green = [name for name in CLASSES if results.get(name, {}).get("ok")]
    rows = [f"{len(green)} of {len(CLASSES)} are green:\n", "| class | result |", "|---|---|"]
    for name in CLASSES:
        r = results.get(name)
        if r is None:
            text = "not run"
        elif r["ok"]:
            text = f"green, {r['lines']} lines, {r['seconds']:g} s"
        else:
            text = r["missing"] or f"differs, NMSE {r['largest_error']:.0e}"
            text = " ".join(text.replace("|", "/").split())
        star = "*" if (r or {}).get("earlier") else ""
        rows.append(f"| `{name}` | {text}{star} |")
    return "\n".join(rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs ggmodel port on the classes.")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if given.table:
        print(table(results))
        return
    from ggmodel.workbench.reference import need

    need("transformers").logging.set_verbosity_error()
    for name in given.names or CLASSES:
        kept = name in results and not results[name].get("earlier")
        if kept and not given.again:
            continue
        results[name] = measured(name)
        text = json.dumps({n: results[n] for n in CLASSES if n in results}, indent=1)
        RESULTS.write_text(f"{text}\n", "utf-8")
        print(name, results[name], flush=True)


if __name__ == "__main__":
    main()
