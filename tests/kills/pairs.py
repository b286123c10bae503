"""Runs random pairs of writers against one store, each in a process of its own.

`python -m tests.kills.pairs --count 1000 --seed 1`, which `make pairs` runs, has two of create,
copy, delete, upload, pull and remove begin at once, in a store with many models; one in ten is
ended by kill -9. After each pair every manifest's blobs and every link's file exist and have the
right content, and what succeeded holds. Prints a table; the exit status is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ggmodel import Error
from ggmodel.errors import ModelNotFound
from ggmodel.names import derived, find_stored, pull, remove
from ggmodel.names.blobs import blob_path, receive_blob
from ggmodel.names.hub_cache import HubCache, roots
from ggmodel.names.layers import DerivedModel
from tests.children import wait
from tests.names.hub_server import Hub, serving
from tests.names.stores import EMPTY

NAMES, REPO = ("a", "b", "c"), "org/repo"
TAGS = ("Q8_0", "Q4_K_M")  # models of the repository, which share a projector
CONTENTS = tuple(EMPTY + bytes([i]) * 50_000 for i in range(3))
FILES = {f"m-{tag}.gguf": b"GGUF of " + tag.encode() for tag in TAGS}
FILES["mmproj-F16.gguf"] = b"GGUF that sees"
KILLED, JITTER, PATIENCE = 0.1, 0.01, 60.0  # share; seconds before a writer begins; for its end
DONE, KILL = "done", "killed"
_FREE = ("create", "copy", "delete")  # ways that may remove blobs, those of a model they replace
WAYS = ("create", "copy", "delete", "upload", "pull", "remove")


@dataclass(frozen=True)
class Operation:
    """The work of one writer: `way` to a model or a blob, from a model or with a content."""

    way: str
    target: str
    source: str = ""
    content: int = 0

    def run(self) -> None:
        """Does it."""
        work: dict[str, Callable[[], object]] = {
            "create": self._create,
            "copy": lambda: derived.copy(self.source, self.target),
            "delete": lambda: derived.delete(self.target),
            "upload": self._upload,
            "pull": lambda: pull(self.target),
            "remove": self._remove,
        }
        work[self.way]()

    def _upload(self) -> None:
        with receive_blob(digest(CONTENTS[self.content])) as blob:
            blob.write(CONTENTS[self.content])

    def _create(self) -> None:
        self._upload()
        files = {"m.gguf": digest(CONTENTS[self.content])}
        derived.create(self.target, DerivedModel(files=files))

    def _remove(self) -> None:
        models = {model.name: model for model in HubCache().stored()}
        if self.target not in models:
            raise ModelNotFound(f"{self.target} is not there")
        remove(models[self.target])

    @property
    def removes(self) -> bool:
        """Whether files go."""
        return self.way in ("delete", "remove")

    def may_undo(self, other: Operation) -> bool:
        """Whether the other's effect may be gone after this one."""
        if other.way == "upload":
            return self.way in _FREE
        return self.target == other.target and self.removes != other.removes

    def may_refuse(self, other: Operation) -> bool:
        """Whether the other one may fail beside this one, which takes its files or its model."""
        if self.way in _FREE:
            return other.way in _FREE
        return self.way == "remove" and other.way in ("pull", "remove")

    def holds(self) -> bool:
        """Whether its effect is there, if nothing has undone it."""
        if self.way == "upload":
            return blob_path(digest(CONTENTS[self.content])).is_file()
        if self.way in ("create", "copy"):
            return find_stored(self.target) is not None
        if self.way == "pull":
            model = HubCache().find(self.target)
            return model is not None and model.mmproj is not None
        return self.target not in (stored() if self.way == "remove" else created())


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def created() -> list[str]:
    """The models of the pairs that are in the store."""
    return [name for name in NAMES if derived._entry_of(name).path.exists()]


def stored() -> list[str]:
    """The models of the hub that are in its cache."""
    return [name for tag in TAGS if HubCache().find(name := f"{REPO}:{tag}")]


def chosen(rng: random.Random) -> Operation:
    """An operation that can be done now."""
    present = {"copy": created(), "delete": created(), "remove": stored()}
    way = rng.choice([way for way in WAYS if present.get(way, True)])
    if way in ("delete", "remove"):
        return Operation(way, rng.choice(present[way]))
    source = rng.choice(present[way]) if way == "copy" else ""
    target = f"{REPO}:{rng.choice(TAGS)}" if way == "pull" else rng.choice(NAMES)
    return Operation(way, target, source, rng.randrange(len(CONTENTS)))


def run(operations: list[Operation], rng: random.Random) -> list[str]:
    """The end of each: DONE, KILL, or an error."""
    children = []
    for operation in operations:
        ready, result = os.pipe()
        delay = rng.random() * JITTER
        process = os.fork()
        if process == 0:
            _child(operation, delay, result)
        os.close(result)
        children.append((process, ready))
    if rng.random() < KILLED * 2:
        time.sleep(rng.random() * JITTER * 3)
        os.kill(rng.choice(children)[0], signal.SIGKILL)
    results = []
    for process, ready in children:
        status = wait(process, PATIENCE)
        with os.fdopen(ready, "rb") as file:
            results.append(file.read().decode() or ("crash: hung" if status == 124 else KILL))
    return results


def _child(operation: Operation, delay: float, result: int) -> None:
    """The forked process; never returns."""
    message = DONE
    try:
        time.sleep(delay)
        operation.run()
    except Error as error:
        message = f"{type(error).__name__}: {error}"
    except BaseException:
        message = f"crash: {traceback.format_exc()}"
    finally:
        os.write(result, message.encode()[:4000])
        os._exit(0)


def faults(operations: list[Operation], results: list[str]) -> list[str]:
    """Errors that nothing explains, and effects that are gone after a pair."""
    wrong = []
    for one, result, other in zip(operations, results, reversed(operations), strict=True):
        if result not in (DONE, KILL) and (result.startswith("crash") or not other.may_refuse(one)):
            wrong.append(result)
        elif result == DONE and not other.may_undo(one) and not one.holds():
            wrong.append(f"{one} succeeded, and its effect is gone")
    return wrong


def broken_files() -> list[str]:
    """Blobs of manifests, and files behind links, that are missing or have another content."""
    contents = {hashlib.sha256(data).hexdigest() for data in FILES.values()}
    links = [p for p in (roots()[0]).glob("models--*/snapshots/*/*") if p.is_symlink()]
    wrong = [f"{p} is broken" for p in links if not p.exists() or _sha256(p) not in contents]
    blobs = {blob_path(d): m for m in derived._manifests() for d in derived._digests(m)}
    for blob, manifest in blobs.items():
        if not blob.is_file() or f"sha256-{_sha256(blob)}" != blob.name:
            wrong.append(f"{blob.name} of {manifest} is missing or damaged")
    return wrong


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fill(models: int) -> None:
    """Makes a store with many models."""
    Operation("create", "other").run()
    first = derived._entry_of("other").path
    for i in range(models - 1):
        first.with_name(f"t{i}").write_text(first.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="pairs")
    parser.add_argument("--seed", type=int, default=1, help="of what is done, and when")
    parser.add_argument("--models", type=int, default=300, help="that the store has besides")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(
            HOME=folder, XDG_DATA_HOME=f"{folder}/data", XDG_CACHE_HOME=f"{folder}/cache",
            HF_HOME=f"{folder}/hf", OLLAMA_MODELS=f"{folder}/ollama", HF_ENDPOINT=_serve()
        )  # fmt: skip
        fill(arguments.models)
        sys.exit(bool(_run(arguments)))


def _serve() -> str:
    """The address of a hub in a process of its own, which ends with this one."""
    ready, address = os.pipe()
    parent = os.getpid()
    if os.fork() == 0:
        with serving(Hub({REPO: FILES})) as hub:
            os.write(address, hub.url.encode())
            while os.getppid() == parent:
                time.sleep(0.2)
        os._exit(0)
    os.close(address)
    with os.fdopen(ready, "rb", 0) as file:
        return file.read(100).decode()


def _run(arguments: argparse.Namespace) -> list[str]:
    rng, began = random.Random(arguments.seed), time.monotonic()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: list[str] = []
    for number in range(arguments.count):
        operations = [chosen(rng), chosen(rng)]
        results = run(operations, rng)
        try:
            problems = broken_files() + faults(operations, results)
        except Error as error:
            problems = [str(error)]
        row = rows[" and ".join(sorted(operation.way for operation in operations))]
        for result in results:
            row[result if result in (DONE, KILL) else "refused"] += 1
        row["pairs"] += 1
        row["wrong"] += len(problems)
        wrong += [f"pair {number}, {operations}, {results}: {problem}" for problem in problems]
        if problems:
            print(wrong[-1], flush=True)
    columns = ("pairs", DONE, "refused", KILL, "wrong")
    total = sum(rows.values(), Counter())
    for name, row in [*sorted(rows.items()), ("all", total)]:
        print(f"{name:20}" + "".join(f"{row[column]:6} {column}" for column in columns))
    seconds = time.monotonic() - began
    print(f"seed {arguments.seed}, {arguments.models} other models, {seconds:.0f} s", end=": ")
    print(f"{len(wrong)} wrong" if wrong else "nothing was lost")
    return wrong


if __name__ == "__main__":
    main()
