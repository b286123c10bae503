"""Runs `ggmodel port` on the classes of classes.txt, each in a process of its own.

    python benchmarks/port/measure.py            # those without a result; --again all of them
    python benchmarks/port/measure.py --table    # prints the table of results.json
    python benchmarks/port/measure.py --own      # classes of families in models/, into own.json

A class's family is removed from the registry first, if models/ has it. `--own --table` compares
the lines of each result with those of our file.

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
CLASSES = (HERE / "classes.txt").read_text("utf-8").split()
# Classes of families in models/, and our files.
OWN = {
    "LlamaForCausalLM": "llama/model.py",
    "Qwen3ForCausalLM": "qwen/qwen3.py",
    "Gemma3ForCausalLM": "gemma3/model.py",
    "Glm4ForCausalLM": "glm/glm4.py",
    "OlmoeForCausalLM": "olmo/olmoe.py",
}
MOST = 300  # seconds a class


def config(name: str) -> dict[str, Any]:
    """The config.json of a class's defaults."""
    import transformers  # type: ignore[reportMissingImports]

    made = getattr(transformers, name).config_class()
    raw = {"architectures": [name], "model_type": made.model_type}
    return raw | ({"is_decoder": True} if hasattr(made, "is_decoder") else {})


def remove(name: str) -> None:
    """Removes the family of a class, a folder of models/, from this process's registry."""
    from ggmodel.model import registry

    registry.supported()
    registered = registry._registered
    serving = [cls for cls in registered.values() if name in cls.hf_architectures]
    families = {".".join(cls.__module__.split(".")[:3]) for cls in serving}
    for architecture, cls in [*registered.items()]:
        if ".".join(cls.__module__.split(".")[:3]) in families:
            del registered[architecture]


def port(name: str, into: Any) -> None:
    """Sends the result of one class."""
    from ggmodel.errors import Error
    from ggmodel.workbench import port as ported

    remove(name)
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


def own_table(results: dict[str, Any]) -> str:
    """The lines of results beside those of our files, as Markdown."""
    rows = ["| class | green | lines | our file | its lines | ratio |", "|---|---|---|---|---|---|"]
    for name, file in OWN.items():
        ours = len((HERE.parents[1] / "models" / file).read_text("utf-8").splitlines())
        r = results[name]
        lines, green = r["lines"], "yes" if r["ok"] else "no"
        row = f"`{name}` | {green} | {lines} | `models/{file}` | {ours} | {lines / ours:.2f}"
        rows.append(f"| {row} |")
    return "\n".join(rows)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs ggmodel port on the classes.")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    file = HERE / ("own.json" if given.own else "results.json")
    classes = [*OWN] if given.own else CLASSES
    results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if given.table:
        print((own_table if given.own else table)(results))
        return
    from ggmodel.workbench.reference import need

    need("transformers").logging.set_verbosity_error()
    for name in given.names or classes:
        if name in results and not results[name].get("earlier") and not given.again:
            continue
        results[name] = measured(name)
        text = json.dumps({n: results[n] for n in classes if n in results}, indent=1)
        file.write_text(f"{text}\n", "utf-8")
        print(name, results[name], flush=True)


if __name__ == "__main__":
    main()
