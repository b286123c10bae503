"""Prompts with pictures and sounds, and embeddings, have the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import Cases, Golden, Loading, laid_out, source_of
from tests.deterministic.schedules import Recorder
from tests.golden.files import HERE, cases, load_embeddings, load_golden
from tests.golden.text import of_text

SEEING = [
    f"{arch}/{case}"
    for file in sorted(HERE.glob("*/cases.py"))
    if not of_text(arch := file.parent.name)
    for case in import_module(f"tests.golden.{arch}.cases").PICTURES
    if case in cases(arch)
]
EMBEDDING = [
    f"{file.parent.name}/{case}"
    for file in sorted(HERE.glob("*/cases.py"))
    for case in cases(file.parent.name, "embeddings")
]


def load(golden: Any, **options: Any) -> LoadedModel:
    """The model of a golden, which finds special tokens by name."""
    cases_of = Cases(HERE / golden.architecture)
    loading = Loading(cases_of, None, {"kv_type": "f16", "flash_attention": "on"})
    return loading.load(source_of(golden), deterministic=True, **options)


def answered(model: LoadedModel, prompt: list[Any]) -> list[np.ndarray]:
    recorder = Recorder(3)
    model.generate(prompt, sampler=recorder, max_tokens=4)
    return recorder.rows


def together(model: LoadedModel, prompts: list[list[Any]]) -> Iterator[list[np.ndarray]]:
    """Each answer's logits, of requests that are computed side by side."""
    recorders = [Recorder(3) for _ in prompts]
    streams = [
        model.stream(prompt, sampler=recorder, max_tokens=4)
        for prompt, recorder in zip(prompts, recorders, strict=True)
    ]
    pieces: list[Any] = [""]
    while any(piece is not None for piece in pieces):
        pieces = [next(stream, None) for stream in streams]
    return (recorder.rows for recorder in recorders)


def prompts_of(model: LoadedModel, golden: Golden) -> list[list[Any]]:
    return [laid_out(model, golden, prompt) for prompt in golden.prompts.values()]


@pytest.mark.parametrize("name", SEEING)
def test_prompts_with_items(name: str):
    golden = load_golden(*name.split("/"))
    with load(golden, threads=1) as single, load(golden, threads=2, parallel=3) as model:
        alone = [answered(single, prompt) for prompt in prompts_of(single, golden)]
        prompts = prompts_of(model, golden)
        for _ in range(2):  # the second time with a cached prefix
            for at in range(0, len(prompts), 2):
                text = golden.prompt.tolist()[:9]
                *got, _ = together(model, [*prompts[at : at + 2], text])
                for rows, want in zip(got, alone[at : at + 2], strict=True):
                    assert len(rows) == len(want) > 0
                    np.testing.assert_array_equal(
                        np.array(rows).view(np.int32), np.array(want).view(np.int32)
                    )


@pytest.mark.parametrize("name", EMBEDDING)
def test_embeddings(name: str):
    golden = load_embeddings(*name.split("/"))
    chance = np.random.default_rng(1)
    vocabulary = golden.config["vocab_size"]
    texts = [chance.integers(5, vocabulary, n).tolist() for n in (3, 11, 11, 20, 7)]
    with load(golden, threads=1) as single, load(golden, threads=2) as model:
        rows = model.embed(texts)
        for text, row in zip(texts, rows, strict=True):
            np.testing.assert_array_equal(
                row.view(np.int32), single.embed([text])[0].view(np.int32)
            )
