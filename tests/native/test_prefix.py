"""The choice of ggml, and errors of headers and libraries that do not belong together."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ggmodel import native

SHOW = "from ggmodel import native; print(native.describe()['module'], native.prefix)"


def python(code: str, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, without a loaded ggml."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {name: str(value) for name, value in environment.items()},
    )


def refusal(**environment: str | Path) -> str:
    """The `NativeError` of an import of the binding."""
    done = python("import ggmodel.native", **environment)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()
    start = next(i for i, line in enumerate(last) if line.startswith("ggmodel.errors.NativeError"))
    return "\n".join(last[start:])


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A copy of the installed ggml."""
    return shutil.copytree(native.prefix, tmp_path / "another ggml")


@pytest.fixture
def changed(prefix: Path) -> Path:
    """An installed ggml whose headers differ, so that it has no compiled binding yet."""
    header = prefix / "include" / "ggml.h"
    header.write_text(header.read_text() + "\n#define GGML_FROM_ANOTHER_PREFIX 4711\n")
    return prefix


def test_another_prefix_of_the_same_version_uses_the_same_module(
    prefix: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    # The default prefix may need to compile; both processes share one cache.
    default = python(SHOW, XDG_CACHE_HOME=cache).stdout
    other = python(SHOW, GGMODEL_GGML=prefix, XDG_CACHE_HOME=cache).stdout
    assert other.split(".so")[0] == default.split(".so")[0]
    assert other.strip().endswith(str(prefix))


@pytest.mark.slow
def test_other_headers_are_compiled_into_the_cache_once(changed: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = SHOW + "; print(native.lib.GGML_FROM_ANOTHER_PREFIX)"
    first = python(code, GGMODEL_GGML=changed, XDG_CACHE_HOME=cache)
    assert first.stdout.endswith("\n4711\n"), first.stderr
    [module] = (cache / "ggmodel" / "native").iterdir()
    assert first.stdout.startswith(str(module))
    # The second time no compiler is needed.
    again = python(code, GGMODEL_GGML=changed, XDG_CACHE_HOME=cache, CC="no-such-compiler")
    assert again.stdout == first.stdout


def test_a_missing_compiler_is_named(changed: Path, tmp_path: Path) -> None:
    message = refusal(GGMODEL_GGML=changed, XDG_CACHE_HOME=tmp_path, CC="no-such-compiler")
    assert "the C compiler 'no-such-compiler' cannot be started" in message
    assert "apt-get install gcc" in message
    assert list((tmp_path / "ggmodel" / "native").iterdir()) == []


def test_a_failing_compiler_shows_what_it_said(changed: Path, tmp_path: Path) -> None:
    (changed / "include" / "ggml.h").write_text("#error this is no ggml\n")
    message = refusal(GGMODEL_GGML=changed, XDG_CACHE_HOME=tmp_path)
    assert "#error this is no ggml" in message
    assert list((tmp_path / "ggmodel" / "native").iterdir()) == []


def test_headers_and_library_of_different_versions_are_refused(prefix: Path) -> None:
    [stated] = prefix.glob("lib*/cmake/ggml/ggml-config-version.cmake")
    stated.write_text(stated.read_text().replace(native.version, "9.8.7"))
    message = refusal(GGMODEL_GGML=prefix)
    assert "of ggml 9.8.7" in message
    assert f"is ggml {native.version}" in message
    assert str(prefix) in message


@pytest.mark.slow
def test_headers_that_describe_another_layout_are_refused(prefix: Path, tmp_path: Path) -> None:
    header = prefix / "include" / "ggml.h"
    text = header.read_text()
    changed = re.sub(r"(define GGML_MAX_NAME) +64", r"\1 128", text)
    assert changed != text
    header.write_text(changed)
    message = refusal(GGMODEL_GGML=prefix, XDG_CACHE_HOME=tmp_path)
    assert "another layout of tensors" in message


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("include/ggml.h", "include/ggml.h is missing"),
        ("include/ggml-backend.h", "has no ggml-backend.h"),
        ("lib*/libggml-base.so", "libggml-base.so is in none of"),
        ("lib*/libggml.so", "cannot load ggml from"),
        ("lib*/cmake/ggml/ggml-config-version.cmake", "the version is unknown"),
    ],
)
def test_an_incomplete_prefix_is_refused(prefix: Path, missing: str, message: str) -> None:
    [path] = prefix.glob(missing)
    path.unlink()
    assert message in refusal(GGMODEL_GGML=prefix)


def test_an_unknown_prefix_is_refused() -> None:
    assert "/no/such/place" in refusal(GGMODEL_GGML="/no/such/place")


def test_a_library_that_is_none_is_refused(prefix: Path) -> None:
    for path in prefix.glob("lib*/libggml-base.so*"):
        path.write_bytes(b"not a library")
    message = refusal(GGMODEL_GGML=prefix)
    assert "cannot load ggml from" in message
    assert "libggml-base.so" in message


def test_a_library_without_a_version_is_refused(prefix: Path, tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int ggml_nothing;")
    for path in prefix.glob("lib*/libggml*.so"):
        path.unlink()
        subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    assert "too old to tell its version" in refusal(GGMODEL_GGML=prefix)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="sees other libraries in /proc")
def test_two_ggmls_in_one_process_are_refused(prefix: Path) -> None:
    [library] = prefix.glob("lib*/libggml-base.so")
    done = python(f"import ctypes; ctypes.CDLL({str(library)!r}); import ggmodel.native")
    assert done.returncode == 1
    assert f"already loaded another ggml, {library}" in done.stderr


def test_each_source_of_a_binding_is_in_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from ggmodel.native import build, install
    from ggmodel.platforms import machine

    prefix, sources = install.packaged(), build._SHAPED_BY
    assert Path(machine.__file__) in sources
    names = {build.module_name(prefix)}
    for i, source in enumerate(sources):
        changed = tmp_path / f"{i}-{source.name}"
        changed.write_bytes(source.read_bytes() + b"\n")
        monkeypatch.setattr(build, "_SHAPED_BY", (*sources[:i], changed, *sources[i + 1 :]))
        names.add(build.module_name(prefix))
    assert len(names) == 1 + len(sources)


def test_make_compiles_again_after_changes_of_the_same_sources():
    from ggmodel.native import build

    root = Path(__file__).parents[2]
    [listed] = re.findall(r"^BINDING := ((?:.*\\\n)*.*)", (root / "Makefile").read_text(), re.M)
    sources = {str(source.resolve().relative_to(root.resolve())) for source in build._SHAPED_BY}
    assert set(listed.replace("\\\n", " ").split()) == {"setup.py", *sources}
