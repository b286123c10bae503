"""States of slots: saved to a file, and gone on from by another process."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import Busy, ConfigError, FormatError, KvCacheFull, Unsupported
from ggmodel.gguf_file import MemorySource
from ggmodel.kvcache import CausalCache
from ggmodel.runner import LoadedModel
from ggmodel.workbench.golden import source_of
from tests.golden.text import golden_of
from tests.models.test_many_users import SUBJECTS

TEXT = [(7 * i + i * i) % 50 for i in range(40)]


def answered(model: LoadedModel, prompt: list[int] = TEXT) -> Any:
    answer = model.generate(prompt, max_tokens=4, temperature=0)
    return answer.usage.reused_tokens, answer.tokens, answer.receipt.sums if answer.receipt else ()


@pytest.mark.parametrize(
    "name", ["llama/plain_gqa", "mistral/window", "qwen35/published", "mamba2/published"]
)
def test_a_state_is_gone_on_from(name: str, tmp_path: Path):
    source = source_of(golden_of(name))
    options: dict[str, Any] = {"context_length": 96, "deterministic": True}
    with ggmodel.load(source, **options) as model:
        _, tokens, _ = answered(model)
        assert model.save_state(tmp_path / "state") == 43  # the last token was never computed
        _, then, sums = answered(model, [*TEXT, *tokens, 3])
    with ggmodel.load(source, **options) as model:
        assert model.load_state(tmp_path / "state") == 43
        assert answered(model, [*TEXT, *tokens, 3]) == (43, then, sums)
        assert model.erase_state() > 0
        assert model.erase_state() == 0


def test_slots_are_chosen(source: MemorySource, tmp_path: Path):
    with ggmodel.load(source, context_length=96, parallel=3) as model:
        answered(model)
        model.save_state(tmp_path / "state")
        model.load_state(tmp_path / "state", slot=2)
        held = model.engine.sequences.all[2].tokens
        assert held[: len(TEXT)] == TEXT
        assert model.save_state(tmp_path / "other", slot=2) == len(held)
        assert (tmp_path / "other").read_bytes() == (tmp_path / "state").read_bytes()
        for number in (-1, 3):
            with pytest.raises(ConfigError, match="there is no slot"):
                model.save_state(tmp_path / "state", slot=number)
        request = model.request(TEXT, max_tokens=2)
        request.slot = 1
        request.run()
        assert model.engine.sequences.all[1].tokens[: len(TEXT)] == TEXT


def test_every_damaged_byte_is_noticed(source: MemorySource, tmp_path: Path):
    path = tmp_path / "state"
    with ggmodel.load(source, context_length=96, kv_type="f16") as model:
        model.generate([1], max_tokens=1)
        assert model.save_state(path) == 1
        whole = path.read_bytes()
        for i in range(len(whole)):
            changed = whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :]
            with pytest.raises(FormatError, match="damaged"):
                model.slots.load(changed)
        for cut in (b"", whole[:-1], whole + b"0"):
            with pytest.raises(FormatError, match="damaged"):
                model.slots.load(cut)
        assert model.slots.load(whole) == 1


def test_states_of_others_are_refused(source: MemorySource, tmp_path: Path):
    path = tmp_path / "state"
    with ggmodel.load(source, context_length=96) as model:
        answered(model)
        model.save_state(path)
    with (
        ggmodel.load(source, context_length=96, kv_type="f32") as other,
        pytest.raises(ConfigError, match="another kv_type"),
    ):
        other.load_state(path)
    with (
        ggmodel.load(source_of(golden_of("mistral/window")), context_length=96) as other,
        pytest.raises(ConfigError, match="another model"),
    ):
        other.load_state(path)
    with (
        ggmodel.load(source, context_length=32) as other,
        pytest.raises(ConfigError, match="larger context_length"),
    ):
        other.load_state(path)
    with (
        ggmodel.load(source, context_length=96) as other,
        pytest.raises(ConfigError, match="cannot read"),
    ):
        other.load_state(tmp_path / "absent")


def test_what_cannot_be_saved(source: MemorySource, tmp_path: Path):
    path = tmp_path / "state"
    with ggmodel.load(source, context_length=64) as model:
        with pytest.raises(Unsupported, match="holds nothing"):
            model.save_state(path)
        with model.capture("layers.0") as seen:
            model.logits([1, 2])
        with model.patch({"layers.0": np.ones(seen["layers.0"].shape[-1], np.float32)}):
            model.generate(TEXT, max_tokens=1)
        with pytest.raises(Unsupported, match="adapters or patches"):
            model.save_state(path)
        model.generate(TEXT, max_tokens=60, context_shift=True)
        with pytest.raises(Unsupported, match="shifted"):
            model.save_state(path)
        steps, saved = itertools.count(), threading.Event()

        def wait(x: np.ndarray) -> np.ndarray:
            if next(steps):
                saved.wait(20)
            return x

        with model.patch({"layers.0": wait}):
            stream = model.stream(TEXT, max_tokens=9)
            next(stream)
            with pytest.raises(Busy, match="serves a request"):
                model.save_state(path)
            saved.set()
            stream.close()
    with ggmodel.load(source, context_length=64, flash_attention="off", kv_type="f32") as model:
        answered(model)
        with pytest.raises(Unsupported, match="flash"):
            model.save_state(path)
    subject = SUBJECTS["qwen3vl"]
    with subject.load(flash_attention="auto", kv_type="f16") as model:
        model.generate([3, subject.things(1), 4], max_tokens=1)
        with pytest.raises(Unsupported, match="picture"):
            model.save_state(path)
    assert not path.exists()


def test_no_room(source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with ggmodel.load(source, context_length=96) as model:
        answered(model)
        model.save_state(tmp_path / "state")

        def full(*_: Any) -> None:
            raise KvCacheFull("full")

        monkeypatch.setattr(CausalCache, "restore", full)
        with pytest.raises(KvCacheFull, match="does not fit"):
            model.load_state(tmp_path / "state")
        monkeypatch.undo()
        assert answered(model)[0] == 0
