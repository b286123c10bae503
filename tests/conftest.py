"""Fixtures that write models into files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.gguf_file import Array, MemorySource, TensorSource
from tests.children import import_path
from tests.rows import choose, in_row

# 64 tokens, as the goldens' models have; all but two are characters.
_TOKENS = [
    "<|bos|>",
    *"abcdefghijklmnopqrstuvwxyz",
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    *"012345.,ĠĊ",
    "th",
]
VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.token_type": [3] + [1] * (len(_TOKENS) - 1),
    "tokenizer.ggml.merges": ["t h"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
}

# A background process ignores Ctrl-C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
_LOST = pytest.StashKey[bool]()  # a process of several ended within a test

WriteGGUF = Callable[..., Path]
Vary = Callable[..., MemorySource]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make test`: how much of it runs."""
    group = parser.getgroup("rows")
    said = "take one of N rows of each test's cases, and of the slow tests; N rows are all"
    group.addoption("--rows", type=int, default=1, metavar="N", help=said)
    group.addoption("--row", type=int, metavar="K", help="which, from 0; default: by the commits")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Which row of the tests this is."""
    row, rows = config.option.row, config.option.rows
    return f"row {row} of {rows}: make test ROWS={rows} ROW={row}" if rows > 1 else None


def pytest_configure(config: pytest.Config) -> None:
    """Options of this run are none of the pytests that tests start, but the workers' as well."""
    choose(config)
    if not config.getoption("numprocesses", None):
        os.environ.pop("PYTEST_ADDOPTS", None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Calls a test that is marked `alone` in a process of its own: it measures its whole process,
    where threads of earlier tests may still be ending."""
    inside = "GGMODEL_TEST_ALONE"
    if pyfuncitem.get_closest_marker("alone") is None or inside in os.environ:
        return None
    options = ["-q", "-rs", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {inside: "1", "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        timeout=280,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    if " skipped" in done.stdout.splitlines()[-1]:
        pytest.skip(done.stdout)
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases of other rows, but none of those that failed and run again. Puts long files
    first where several processes share the files: none is left for the end."""
    row, rows = config.option.row, config.option.rows
    if rows > 1 and not config.getoption("lf", False):
        slow = {item.nodeid for item in items if item.get_closest_marker("slow")}
        kept = in_row([item.nodeid for item in items], row, rows, slow)
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
    if not hasattr(config, "workerinput"):
        return
    weights: Counter[Path] = Counter()
    for item in items:
        weights[item.path] += 1 if item.get_closest_marker("slow") is None else 40
    items.sort(key=lambda item: -weights[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Notes that a process ended within a test: the rest of its file is not run."""
    node.config.stash[_LOST] = bool(error) or node.config.stash.get(_LOST, False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Forgets which tests failed if not all have run: then a second run of these proves nothing."""
    cache = getattr(session.config, "cache", None)
    lost = exitstatus not in (0, 1) or session.config.stash.get(_LOST, False)
    if lost and cache is not None:
        cache.set("cache/lastfailed", {})


@pytest.fixture(scope="session")
def vocabulary() -> dict[str, Any]:
    """Metadata of a vocabulary of 64 tokens, for the goldens' models."""
    return dict(VOCABULARY)


@pytest.fixture(scope="session")
def write_gguf() -> WriteGGUF:
    """`write_gguf(path, source) -> path` writes a tensor source into a GGUF file."""
    return _write


@pytest.fixture(scope="session")
def vary() -> Vary:
    """`vary(source, drop=(), rename={}, tensors={}, metadata={})` is a source that differs; a key
    whose metadata is None goes."""
    return _vary


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder, as in containers that run under any number."""

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)


@pytest.fixture(scope="session")
def rpc_ggml() -> Path:
    """The prefix of a ggml that was built with the RPC backend, and its binding compiled: no test
    that measures time has to wait for the compiler."""
    chosen = os.environ.get("GGMODEL_TEST_RPC_GGML")
    prefix = Path(chosen) if chosen else ROOT / ".cache" / "ggml-native"
    if not prefix.is_dir():
        pytest.fail(f"no ggml with RPC in {prefix}: `make native` builds one", pytrace=False)
    command = [sys.executable, "-c", "import ggmodel.native"]
    subprocess.run(command, env=rpc_environment_of(prefix), check=True, timeout=120)
    return prefix


@pytest.fixture(scope="session")
def rpc_environment(rpc_ggml: Path) -> dict[str, str]:
    """Environment variables for processes that use that ggml."""
    return rpc_environment_of(rpc_ggml)


def rpc_environment_of(ggml: Path) -> dict[str, str]:
    """Environment variables for processes that use the ggml with this prefix."""
    others = {k: v for k, v in os.environ.items() if not k.startswith("GGMODEL_")}
    return others | {"GGMODEL_GGML": str(ggml), "PYTHONPATH": import_path()}


def _write(path: Path, source: TensorSource) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, str(source.metadata.get("general.architecture", "")))
    kinds = gguf.GGUFValueType
    # The writer puts the architecture it was given there by itself.
    if "general.architecture" not in source.metadata:
        writer.kv_data[0].clear()
    for key, value in source.metadata.items():
        if key == "general.architecture":
            continue
        if isinstance(value, Array):
            writer.add_array(key, value.tolist())
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_key_value(key, value, kinds.UINT32 if 0 <= value < 1 << 32 else kinds.INT64)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, info in source.tensors.items():
        rows = np.frombuffer(source.data(name), np.uint8).reshape(*info.shape[:0:-1], -1)
        writer.add_tensor(name, rows, raw_dtype=gguf.GGMLQuantizationType(info.dtype.value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vary(
    source: TensorSource,
    drop: tuple[str, ...] = (),
    rename: Mapping[str, str] | None = None,
    tensors: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> MemorySource:
    kept = {
        (rename or {}).get(name, name): (t.dtype, t.shape, bytes(source.data(name)))
        for name, t in source.tensors.items()
        if name not in drop
    }
    keys = {**source.metadata, **(metadata or {})}
    return MemorySource(
        {k: v for k, v in keys.items() if v is not None}, {**kept, **(tensors or {})}
    )


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper with a vocabulary, as a Hugging Face folder."""
    from tests.transcript.whispers import goldens, write

    tensors = {name: tuple(shape) for name, shape in goldens()["tensors"].items()}
    return write(tmp_path_factory.mktemp("whisper"), tensors)


@pytest.fixture(scope="session")
def voxtral_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Voxtral with tekken.json, as a Hugging Face folder."""
    from tests.transcript.voxtrals import write

    return write(tmp_path_factory.mktemp("voxtral"))


@pytest.fixture(scope="session")
def whisper_file(whisper_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as GGUF."""
    from ggmodel.convert import convert

    path = tmp_path_factory.mktemp("gguf") / "whisper.gguf"
    convert(whisper_folder, path)
    return path
