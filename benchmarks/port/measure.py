"""Runs `ggmodel port` on the classes of classes.txt, each in a process of its own.

    python benchmarks/port/measure.py            # those without a result; --again all of them
    python benchmarks/port/measure.py --table    # prints the table of results.json
    python benchmarks/port/measure.py --own      # classes of families in models/, into own.json
    python benchmarks/port/measure.py --mended   # files of mended/, into mended.json

mended/ has what a person added where a block is missing: CLASS.json has the keys that config.json
needs (`set`), and those with which port gets further (`begin`), CLASS.py the file as it was mended.
Its lines are those that differ from what port or `ggmodel new` writes, and the keys of both kinds;
lines that were only taken out do not count.

A class's family is removed from the registry first, if models/ has it. `--own --table` compares
the lines of each result with those of our file.

Needs torch and transformers. A class gets a folder with the config.json of its defaults; classes
that are decoders by a switch have it on. Results that are `earlier` are of an earlier state of the
command, have a star, and are measured again. Files of those with a missing block are not begun.
"""

from __future__ import annotations

import argparse
import difflib
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
MENDED = HERE / "mended"
MOST = 300  # seconds a class
FEW = 20  # lines of a person
SEED = 101  # of weights that no file was compared with before


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


def mend(name: str, into: Any) -> None:
    """Sends the result of one class with what a person added."""
    from ggmodel.errors import Error
    from ggmodel.workbench import port as ported

    remove(name)
    file, keys = MENDED / f"{name}.py", MENDED / f"{name}.json"
    added = json.loads(keys.read_text("utf-8")) if keys.exists() else {}
    raw, mended = config(name) | added.get("set", {}), None
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "own")
        begin = raw | added.get("begin", {})
        Path(folder, "config.json").write_text(json.dumps(begin), "utf-8")
        begun = ported.port(folder, models)
        texts = [p.read_text("utf-8") for p in models.rglob("*.py") if "goldens" not in p.parts]
        if file.exists():
            models, mended = MENDED, file.read_text("utf-8")
        lines = by_a_person(added, "\n".join(texts), mended)
        Path(folder, "config.json").write_text(json.dumps(raw), "utf-8")
        try:
            result = ported.prove(folder, models, seed=SEED)
        except Error as error:
            into.send({"ok": False, "missing": str(error), "largest_error": None, "lines": lines})
            return
    largest = max(result.errors.values(), default=None)
    row = {"ok": result.ok, "missing": result.missing or result.first, "largest_error": largest}
    into.send({**row, "lines": lines, "begun": "new" if begun.missing else "port"})


def by_a_person(added: dict[str, dict[str, Any]], begun: str, mended: str | None) -> int:
    """The lines that a person added: keys of config.json, and lines of a mended file, if any."""
    keys = sum(map(len, added.values()))
    return keys if mended is None else keys + written(begun, mended)


def written(begun: str, file: str) -> int:
    """The lines of a file that differ from the one that was begun; empty ones do not count."""
    a, b = ([line for line in text.splitlines() if line.strip()] for text in (begun, file))
    changes = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return sum(end - start for kind, _, _, start, end in changes if kind != "equal")


def measured(name: str, target: Any = port) -> dict[str, Any]:
    """The result of one class."""
    began = time.monotonic()
    receive, send = multiprocessing.Pipe(duplex=False)
    # Libraries of half a gigabyte are imported once.
    process = multiprocessing.get_context("fork").Process(target=target, args=(name, send))
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


def table(results: dict[str, Any], mended: dict[str, Any]) -> str:
    """The results as Markdown."""
    green = {name for name in CLASSES if results.get(name, {}).get("ok")}
    few = {name for name, r in mended.items() if r["ok"] and r["lines"] <= FEW}
    heading = f"{len(green)} of {len(CLASSES)} are green without a line by a person, "
    changed = {name for name in few - green if not (MENDED / f"{name}.py").exists()}
    heading += f"{len(green | few)} with at most {FEW}, "
    heading += f"of which {len(changed)} by a changed config.json:\n"
    rows = [heading, "| class | result |", "|---|---|"]
    for name in CLASSES:
        r = results.get(name)
        if r is None:
            text = "not run"
        elif r["ok"]:
            text = f"green, {r['lines']} lines, {r['seconds']:g} s"
        else:
            text = r["missing"] or f"differs, NMSE {r['largest_error']:.0e}"
            text = " ".join(text.replace("|", "/").split())
        if name in changed:
            text += "; green with a changed config.json"
        elif name not in green and mended.get(name, {}).get("ok"):
            text += f"; green with {mended[name]['lines']} lines by a person"
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
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    file = HERE / ("own.json" if given.own else "mended.json" if given.mended else "results.json")
    classes = [*OWN] if given.own else CLASSES
    classes = sorted({p.stem for p in MENDED.iterdir()}) if given.mended else classes
    results = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if given.table:
        mended = json.loads((HERE / "mended.json").read_text("utf-8"))
        print(own_table(results) if given.own else table(results, mended))
        return
    from ggmodel.workbench.reference import need

    need("transformers").logging.set_verbosity_error()
    for name in given.names or classes:
        if name in results and not results[name].get("earlier") and not given.again:
            continue
        results[name] = measured(name, mend if given.mended else port)
        text = json.dumps({n: results[n] for n in classes if n in results}, indent=1)
        file.write_text(f"{text}\n", "utf-8")
        print(name, results[name], flush=True)


if __name__ == "__main__":
    main()
