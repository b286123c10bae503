"""Kernels of products by all families of instructions give the same bits, and stay within their
operands: compiled without the library, under sanitizers, and for ARM."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ggmodel.ml.ggml import products
from ggmodel.native import build, install

HERE = Path(__file__).parent
SOURCES = ("products", "families", "avx512", "avx2", "neon")
FAMILIES = range(1, len(products.NAMES))
NEON = products.NAMES.index("NEON dot product")
NO_SUCH_FAMILY = 2
ARM, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"


def compiled(target: Path, *compiler: str) -> list[str]:
    """The command that runs the program, compiled into `target`, two sources at a time; none if it
    does not compile."""
    native = Path(build.__file__).parent
    sources = [HERE / "products_alone.c", *(native / f"{name}.c" for name in SOURCES)]
    places = [f"-I{install.packaged().include}", f"-I{native}"]
    options = [*compiler, "-ffp-contract=off", "-w", *places]
    objects = [target.with_name(f"{target.name}-{source.stem}.o") for source in sources]

    def compile(source: Path, into: Path) -> None:
        run(*options, "-c", str(source), "-o", str(into))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(compile, sources, objects))
    run(*options, *map(str, objects), "-o", str(target))
    return [str(target)]


def run(*command: str) -> None:
    """Runs the compiler; skips the test if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this compiler does not: {done.stderr[-300:]}")


def digests(*command: str) -> str | None:
    """The program's lines; None if the processor has no such family."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, NO_SUCH_FAMILY) and not done.stderr, done.stderr
    return None if done.returncode else done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)  # beside other tests, compilers have a part of a core
@pytest.mark.skipif(not products.instructions, reason="no kernels for this processor")
def test_all_families_give_the_same_bits_within_their_operands(tmp_path: Path):
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    program = compiled(tmp_path / "alone", "cc", "-O1", *sanitizers)
    found = {i: got for i in FAMILIES if (got := digests(*program, str(i), "large")) is not None}
    assert products.instructions in found
    small = digests(*program, str(products.instructions), "small")
    assert {small, *found.values()} == {small}
    on_x86 = found.keys() - {NEON}
    rounded = {digests(*program, str(i), "rounded") for i in on_x86}
    assert "" not in rounded and len(rounded) == bool(on_x86)
    if shutil.which(ARM) and shutil.which(EMULATOR):
        emulated = compiled(tmp_path / "arm", ARM, "-O2", "-static")
        assert digests(EMULATOR, "-cpu", "max", *emulated, str(NEON), "large") in found.values()
