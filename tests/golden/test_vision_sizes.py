"""Hyperparameters of vision towers that belong to other tensors: no image is made of them.

One number of a small file could ask for a picture of 65,536² pixels at load.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import ggmodel
from ggmodel.errors import ConfigError, Error, LoadError, OutOfMemory
from ggmodel.gguf_file import MemorySource
from ggmodel.model.registry import find, supported
from ggmodel.workbench.golden import source_of
from tests.golden.files import cases, load_golden

SEEING = "gemma3", "gemma3n", "gemma4", "llama4", "mllama", "mistral3"
GOLDENS: dict[str, str] = dict.fromkeys(SEEING, "images")
GOLDENS |= {"glm_ocr": "published", "idefics3": "tiles", "internvl": "qwen2"}
GOLDENS |= {"lfm2vl": "published", "paddleocr": "pages", "qwen2vl": "qwen25"}
VALUES = (0, 1, 7, 3000, 65_536, 2**31 - 1)


def source(architecture: str, **changes: int) -> MemorySource:
    name = next(name for name in cases(architecture) if name.startswith(GOLDENS[architecture]))
    made = source_of(load_golden(architecture, name))
    tensors = {t.name: (t.dtype, t.shape, bytes(made.data(t.name))) for t in made.tensors.values()}
    return MemorySource({**made.metadata, **changes}, tensors)


def keys(architecture: str) -> list[str]:
    found = source(architecture).metadata
    return [
        key
        for key, value in found.items()
        if isinstance(value, int) and ("vision." in key or "mm." in key)
    ]


def test_all_architectures_with_eyes_are_here():
    classes = {name: find(name) for name in supported()}
    seeing = {
        name
        for name, cls in classes.items()
        # Other tests register classes of their own.
        if cls.__module__.startswith("ggmodel.") and "vision" in getattr(cls, "__annotations__", {})
    }
    assert seeing == set(GOLDENS)


@pytest.mark.parametrize(
    ("architecture", "tensor"),
    [
        ("gemma3", "v.position_embedding.weight"),
        ("llama4", "v.positional_embedding_vlm"),
        ("mllama", "v.position_embd.weight"),
    ],
)
@pytest.mark.parametrize("size", [280, 3000, 65_536])
def test_the_size_of_an_image_is_that_of_its_positions(architecture: str, tensor: str, size: int):
    key = f"{architecture}.vision.image_size"
    with pytest.raises(LoadError, match=rf"{tensor} .*, not \[.* by .*vision\.image_size = {size}"):
        ggmodel.load(source(architecture, **{key: size}), context_length=64)


@pytest.mark.parametrize("architecture", [a for a in GOLDENS if a != "gemma3n"])  # without patches
def test_patches_have_a_size(architecture: str):
    changes = {f"{architecture}.vision.patch_size": 0}
    with pytest.raises(ConfigError, match=r"vision\.patch_size is 0; it must be 1 or more"):
        ggmodel.load(source(architecture, **changes), context_length=64)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", GOLDENS)
def test_no_number_of_a_tower_takes_all_memory_or_time(architecture: str):
    """In a process with little memory, since this one could die."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.test_vision_sizes", architecture],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _try_all(architecture: str) -> None:
    import resource

    given = source(architecture)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    tensors = {
        t.name: (t.dtype, t.shape, bytes(given.data(t.name))) for t in given.tensors.values()
    }
    for key in keys(architecture):
        for value in VALUES:
            print(key, value, flush=True)
            changed = MemorySource({**given.metadata, key: value}, tensors)
            try:
                ggmodel.load(changed, context_length=64, threads=1).close()
            except OutOfMemory:
                raise
            except Error:
                pass


if __name__ == "__main__":
    _try_all(sys.argv[1])
