"""Prefixes on disk: what a process computed once, later ones go on from, with the same bits."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import ConfigError, GraphError, WriteError
from ggmodel.gguf_file import MemorySource
from ggmodel.runner.engine.prefix_path import PrefixPath, start_of
from ggmodel.runner.engine.prefix_writer import PrefixWriter
from ggmodel.workbench.golden import laid_out, source_of
from tests.deterministic.schedules import Recorder
from tests.golden.files import load_golden
from tests.golden.text import CASES, golden_of
from tests.models.test_many_users import SUBJECTS
from tests.runner.engine.alike import nothing_is_in_use, slots_are_free
from tests.runner.engine.stored import (
    BLOCK,
    blocks,
    known_store_of,
    small_blocks,
    store_of,
    storing,
)

LENGTH = 61
# A kind of cache each: all positions, windows, chunks, layers that share, latent keys, delta nets,
# states beside attention, states alone, positions in learned rows, rotations for long contexts.
KINDS = [
    *("llama/plain_gqa", "mistral/window", "llama4/interleaved", "deepseek2/dense"),
    *("qwen35/published", "jamba/published", "kimi_linear/latent", "mamba2/published"),
    *("gpt2/plain", "phi3/long"),
]
EVERY = list({case.split("/")[0]: case for case in [*reversed(CASES), *KINDS]}.values())
ITEMS = ["gemma3", "gemma3n", "qwen3vl", "qwen35", "idefics3", "whisper"]


def text(seed: int = 1, length: int = LENGTH) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(50) for _ in range(length)]


def answered(model: Any, prompt: Any, **options: Any) -> tuple[int, list[bytes]]:
    """The inputs that were not computed, and the logits that each token was drawn from."""
    sampler = Recorder(7)
    answer = model.generate(prompt, max_tokens=4, sampler=sampler, **options)
    return answer.usage.reused_tokens, [row.tobytes() for row in sampler.rows]


@pytest.mark.parametrize("name", EVERY)
def test_a_prompt_goes_on_after_a_restart(name: str, tmp_path: Path):
    source, prompt = source_of(golden_of(name)), text()
    with storing(source, tmp_path / "store") as model:
        reused, want = answered(model, prompt)
        assert reused == 0
    with storing(source, tmp_path / "store", parallel=2) as model:
        assert answered(model, prompt) == (LENGTH - 1, want)
        slots_are_free(model)


@pytest.mark.parametrize("name", ["llama/plain_gqa", "mistral/window", "jamba/published"])
def test_other_ends_go_on_from_the_last_block_in_common(name: str, tmp_path: Path):
    source, prompt = source_of(golden_of(name)), text()
    other = [*prompt[:29], *text(2, 20)]
    with storing(source, tmp_path / "a", batch_size=BLOCK) as model:  # so that states end there
        answered(model, prompt)
    with storing(source, tmp_path / "b") as model:
        _, want = answered(model, other)
    with storing(source, tmp_path / "a") as model:
        assert answered(model, other) == (24, want)


def test_a_conversation_goes_on_from_its_last_answer(source: MemorySource, tmp_path: Path):
    with storing(source, tmp_path) as model:
        answer = model.generate(text(), max_tokens=5, temperature=0)
    more = [*text(), *answer.tokens, 3, 4]
    with storing(source, tmp_path) as model:
        again = model.generate(more, max_tokens=1, temperature=0)
        assert again.usage.reused_tokens == LENGTH + 4  # the last token was never computed


@pytest.mark.parametrize("kind", ITEMS)
def test_pictures_and_sounds_by_their_content(kind: str, tmp_path: Path):
    subject = SUBJECTS[kind]

    def load() -> Any:
        options: dict[str, Any] = {"flash_attention": "auto", "kv_type": "f16"}
        return subject.load(deterministic=True, prefix_store=tmp_path, **options)

    with load() as model:
        small_blocks(model)
        _, want = answered(model, [3, subject.things(1), *text(1, 9)])
        _, other = answered(model, [3, subject.things(2), *text(1, 9)])
    with load() as model:
        small_blocks(model)
        reused, got = answered(model, [3, subject.things(1), *text(1, 9)])
        assert reused > 8 and got == want
    with load() as model:
        small_blocks(model)
        reused, got = answered(model, [3, subject.things(2), *text(1, 9)])
        assert reused > 8 and got == other != want


@pytest.mark.parametrize("name", ["mllama/images", "t5/published"])
def test_cross_attention(name: str, tmp_path: Path):
    golden = load_golden(*name.split("/"))
    asked = list(golden.prompts.values())[:3]
    got = []
    for _ in range(2):
        with storing(source_of(golden), tmp_path) as model:
            got.append([answered(model, laid_out(model, golden, one)) for one in asked])
    first, second = got
    assert [rows for _, rows in first] == [rows for _, rows in second]
    assert sum(reused for reused, _ in second) > sum(reused for reused, _ in first) + 10


@pytest.mark.parametrize("name", ["t5/published", "bart/published", "whisper/published"])
def test_an_encoded_item_is_found_though_few_inputs_are(name: str, tmp_path: Path):
    """With blocks of the usual size: an item stands at one position, and took an encoder."""
    golden = load_golden(*name.split("/"))
    prompt = next(iter(golden.prompts.values()))
    options: Any = {"context_length": 64, "deterministic": True, "prefix_store": tmp_path}
    got, encoded = [], -1
    for _ in range(2):
        with ggmodel.load(source_of(golden), **options) as model:
            store = known_store_of(model)
            got.append((answered(model, laid_out(model, golden, prompt)), store.found))
            encoded = model.engine.images.encoders.recorded
    (_, want), (reused, rows) = got[0][0], got[1][0]
    assert rows == want and reused >= 1 and got[1][1] == 1 and not encoded


@pytest.mark.parametrize(
    "options",
    [
        {"kv_type": "f32"},
        {"context_length": 80},
        {"deterministic": False},
        {"optimize": "memory"},
    ],
)
def test_other_options_find_nothing(source: MemorySource, tmp_path: Path, options: dict[str, Any]):
    with storing(source, tmp_path) as model:
        answered(model, text())
    with storing(source, tmp_path, **options) as model:
        assert model.generate(text(), max_tokens=1).usage.reused_tokens == 0


def test_another_model_finds_nothing(source: MemorySource, tmp_path: Path):
    with storing(source, tmp_path) as model:
        answered(model, text())
    name = "blk.0.attn_k.weight"
    changed = {n: np.array(source.data(n)).view(np.float32) for n in source.tensors}
    changed = {n: a.reshape(source.tensors[n].shape[::-1]).copy() for n, a in changed.items()}
    changed[name].flat[3] += 1e-3
    assert source.tensors[name].dtype.name == "F32"
    other = MemorySource(dict(source.metadata), changed)
    with storing(other, tmp_path) as model:
        assert answered(model, text())[0] == 0


def test_the_digest_of_a_file_is_remembered(
    source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from ggmodel.runner.loading import origin

    path = tmp_path / "model.gguf"
    path.write_bytes(Path("examples/assets/stories.gguf").read_bytes())
    monkeypatch.setattr(origin, "_SETTLED", -1.0)
    with storing(path, tmp_path / "store", context_length=64) as model:
        first = store_of(model).writer.root
    monkeypatch.setattr(origin, "_file_digest", lambda *_: pytest.fail("read again"))
    with ggmodel.load(
        path, prefix_store=tmp_path / "store", context_length=64, deterministic=True
    ) as model:
        assert store_of(model).writer.root == first
    monkeypatch.undo()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with storing(path, tmp_path / "store", context_length=64) as model:
        assert store_of(model).writer.root != first


def test_patches_serve_themselves_alone(source: MemorySource, tmp_path: Path):
    change = np.linspace(-1, 1, 32, dtype=np.float32)
    with storing(source, tmp_path) as model:
        with model.capture("layers.0") as seen:
            model.logits([1, 2])
        change = np.linspace(-1, 1, seen["layers.0"].shape[-1], dtype=np.float32)
        with model.patch({"layers.0": change}):
            _, want = answered(model, text())
        with model.patch({"layers.1": lambda rows: rows + 1}):
            answered(model, text(2))
    with storing(source, tmp_path, parallel=2) as model:
        reused, plain = answered(model, text())
        assert reused == 0 and plain != want
        with model.patch({"layers.0": change}):
            assert answered(model, text()) == (LENGTH - 1, want)
        with model.patch({"layers.1": lambda rows: rows + 1}):
            assert answered(model, text(2))[0] == 0


def test_nothing_of_a_shifted_context_is_kept(source: MemorySource, tmp_path: Path):
    with storing(source, tmp_path, deterministic=False) as model:
        model.generate(text(), max_tokens=90, context_shift=True, temperature=0)
        shifted = [one for one in model.engine.sequences.all if one.exact < len(one.tokens)]
        assert shifted
    with storing(source, tmp_path, deterministic=False) as model:
        prompt = shifted[0].tokens
        assert model.generate(prompt, max_tokens=1).usage.reused_tokens <= shifted[0].exact


def test_several_prompts_at_once(source: MemorySource, tmp_path: Path):
    prompts = [[*text(1, 30), *text(seed, 30)] for seed in range(6)]
    with storing(source, tmp_path / "a", parallel=2) as model:
        want = [answered(model, one)[1] for one in prompts]
    for _ in range(2):
        with storing(source, tmp_path / "a", parallel=2) as model:
            got: dict[int, Any] = {}

            def ask(i: int, model: Any = model, got: dict[int, Any] = got) -> None:
                got[i] = answered(model, prompts[i])

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            assert [got[i][1] for i in range(len(prompts))] == want
            assert all(got[i][0] >= 24 for i in range(len(prompts)))
            assert not store_of(model)._fetches
            nothing_is_in_use(model)


def test_requests_end_while_their_prefix_is_read(
    source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with storing(source, tmp_path) as model:
        answered(model, text())
    with storing(source, tmp_path) as model:
        store, begun, go = store_of(model), threading.Event(), threading.Event()
        read = type(store)._read

        def slow(self: Any, *args: Any) -> Any:
            begun.set()
            go.wait(10)
            return read(self, *args)

        monkeypatch.setattr(type(store), "_read", slow)
        stream = model.stream(text(), max_tokens=2)
        thread = threading.Thread(target=lambda: list(stream))
        thread.start()
        assert begun.wait(10)
        stream.close()
        go.set()
        thread.join(10)
        assert not thread.is_alive()
        assert answered(model, text())[0] >= 0
        nothing_is_in_use(model)


def test_what_comes_faster_than_it_is_written_is_left_out(
    source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(PrefixWriter, "full", property(lambda self: True))
    with storing(source, tmp_path) as model:
        answered(model, text())
        monkeypatch.undo()
        answered(model, [*text(), 5])  # the end of this one has all the blocks
    with storing(source, tmp_path) as model:
        assert answered(model, text())[0] == 56


def test_a_model_that_nobody_closes_ends_its_threads(source: MemorySource, tmp_path: Path):
    model = ggmodel.load(source, prefix_store=tmp_path, context_length=64)
    model.generate(text(1, 20), max_tokens=1)
    engine, writer = weakref.ref(model.engine), store_of(model).writer
    del model
    gc.collect()
    assert engine() is None
    writer._thread.join(10)
    assert not writer._thread.is_alive()


def test_wrong_options(source: MemorySource, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="prefix store"):
        ggmodel.load(source, prefix_store=tmp_path / "file")
    for size in (0, -1, float("inf"), float("nan"), "2"):
        with pytest.raises(ConfigError, match="prefix_store_size"):
            ggmodel.load(source, prefix_store=tmp_path, prefix_store_size=size)  # type: ignore
    with pytest.raises(ConfigError, match="prefix_store"):
        ggmodel.load(source, prefix_store=5)  # type: ignore


def test_a_store_that_others_empty(source: MemorySource, tmp_path: Path):
    with storing(source, tmp_path) as model:
        _, want = answered(model, text())
        store_of(model).writer.drain()
        for path in blocks(tmp_path)[::2]:
            path.unlink()
        answered(model, text(2))
        assert answered(model, text())[1] == want
    with storing(source, tmp_path) as model:
        assert answered(model, text())[1] == want


def test_files_of_other_shapes_are_computed_anew(source: MemorySource, tmp_path: Path):
    with storing(source, tmp_path) as model:
        _, want = answered(model, text())
        files, root = store_of(model).files, store_of(model).writer.root
    for path in blocks(tmp_path):
        name = f"{root}/{path.name}"
        arrays = files.read(name) or []
        path.unlink()
        assert files.write(name, [*arrays[:2], *(one[:, :-1] for one in arrays[2:])])
    with storing(source, tmp_path) as model:
        assert answered(model, text()) == (0, want)
        nothing_is_in_use(model)


def test_keys_are_those_of_the_tokens_before():
    table: Any = None
    start = start_of(None)
    assert start is not None and start_of((lambda: 0,)) is None  # type: ignore
    one = PrefixPath(start, [1, 2, 3, 4, 5], table, 2)
    other = PrefixPath(start, [9, 2, 3, 4, 5], table, 2)
    assert len({*one.keys, *other.keys}) == 4
    assert one.key(4) == one.keys[1] and one.key(5) == dict(one.ends(2))[5]
    assert [length for length, _ in one.ends(1)] == [4, 3]
    assert list(one.blocks()) == [2, 1, 0]
    assert PrefixPath(start, [1, 2, 3], table, 2).key(3) == one.key(3)
    assert PrefixPath(b"other", [1, 2], table, 2).keys != one.keys[:1]


def test_a_closed_engine_stores_nothing(source: MemorySource, tmp_path: Path):
    with storing(source, tmp_path) as model:
        store = store_of(model)
    store.close()
    with pytest.raises(GraphError):
        model.generate(text(), max_tokens=1)
