"""Saved activations come from anywhere: nothing is unpickled, nothing grows, nothing crashes."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel.errors import (
    Error,
    FormatError,
    LoadError,
    PromptError,
    Unsupported,
    WriteError,
)
from ggmodel.workbench import reference
from ggmodel.workbench.activations import _FORMAT, _TEXTS, Activations, same_prompt
from ggmodel.workbench.diff import diff
from tests.workbench.saved import CASES, HERE, saved, source_of


def test_what_is_saved_is_read(tmp_path: Path):
    first = saved("gemma3")
    first.save(tmp_path / "again.npz")
    again = Activations.load(tmp_path / "again.npz")
    assert again.order == first.order and again.config == first.config
    assert again.tensors == first.tensors and again.versions == first.versions
    for kind in ("module_inputs", "results", "inputs"):
        a, b = getattr(again, kind), getattr(first, kind)
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", CASES)
def test_files_are_small_and_of_their_case(name: str):
    # Idefics3 takes a picture as several, each with its rows of all modules.
    most = 110_000 if name == "idefics3" else 70_000
    assert (HERE / f"{name}.npz").stat().st_size < most
    found = saved(name)
    assert found.ids == CASES[name].ids
    assert found.config == CASES[name].config
    assert found.versions.keys() == {"torch", "transformers"}


def test_every_cut_and_many_flipped_bytes(tmp_path: Path):
    data = (HERE / "mixtral.npz").read_bytes()
    path = tmp_path / "broken.npz"
    random = np.random.default_rng(11)
    broken = [data[: int(n)] for n in random.integers(0, len(data), 60)]
    for _ in range(300):
        flipped = bytearray(data)
        for at in random.integers(0, len(data), 3):
            flipped[at] ^= int(random.integers(1, 256))
        broken.append(bytes(flipped))
    refused = 0
    for content in broken:
        path.write_bytes(content)
        try:
            Activations.load(path)
        except FormatError as error:
            refused += "broken.npz" in str(error)
    assert refused > 250  # others hit what a zip says twice


def packed(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), **options)
    return out.getvalue()


def about(**changes: Any) -> bytes:
    found = saved("mixtral")
    text = {name: getattr(found, name) for name in _TEXTS}
    text |= {"format": _FORMAT, "given": {}, "results": {}, **changes}
    return npy(json.dumps(text))


VALUES = npy(np.zeros(4, np.float32))
IDS = npy(np.array([1, 2]))
HOSTILE = {
    "a pickle": {"about": npy([{1: 2}], allow_pickle=True)},
    "no numbers": {"about": about()},
    "another format": {"about": about(format=2), "values": VALUES, "input.input_ids": IDS},
    "no ids": {"about": about(), "values": VALUES},
    "ids of floats": {"about": about(), "values": VALUES, "input.input_ids": VALUES},
    "no text": {"about": npy(3), "values": VALUES, "input.input_ids": IDS},
    "a list": {"about": npy("[]"), "values": VALUES, "input.input_ids": IDS},
    "deep text": {"about": npy("[" * 200_000), "values": VALUES, "input.input_ids": IDS},
    "beyond the end": {
        "about": about(results={"x": [2, [3]]}),
        "values": VALUES,
        "input.input_ids": IDS,
    },
    "before the start": {
        "about": about(results={"x": [-2, [2]]}),
        "values": VALUES,
        "input.input_ids": IDS,
    },
    "names that are none": {"about": about(order=[1]), "values": VALUES, "input.input_ids": IDS},
    "a kind that is none": {"about": about(kind={}), "values": VALUES, "input.input_ids": IDS},
    **{
        f"rounding {rounding}": {
            "about": about(rounding=rounding),
            "values": VALUES,
            "input.input_ids": IDS,
        }
        for rounding in ([], {"F33": {}}, {"F16": 1}, {"F16": {"x": "y"}}, {"F16": {"x": [1.0]}})
    },
    "a bomb": {"about": b"\0" * (1 << 27)},
    "a huge array": {
        "about": npy(np.zeros(2)).replace(b"(2,), }", b"(99999999999,), }")[:128],
    },
}


def test_the_parts_of_hostile_files_alone_are_wrong(tmp_path: Path):
    """Each of them is refused for its own fault: without one the same parts are read."""
    parts = {"about": about(), "values": VALUES, "input.input_ids": IDS}
    assert Activations.load(packed(tmp_path / "fine.npz", **parts)).ids == [1, 2]


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files(kind: str, tmp_path: Path):
    path = packed(tmp_path / "hostile.npz", **HOSTILE[kind])
    with pytest.raises(FormatError, match=r"hostile\.npz"):
        Activations.load(path)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(FormatError, match="--save-reference wrote"):
        Activations.load(tmp_path / "nothing.npz")


def test_another_prompt():
    with pytest.raises(FormatError, match="of another prompt, tokens"):
        same_prompt(saved("llama"), [1, 2, 3], "a.npz")


def test_the_reference_of_another_architecture():
    with (
        ggmodel.load(source_of("llama")) as model,
        pytest.raises(LoadError, match=r"Gemma3ForConditionalGeneration.*LlamaForCausalLM"),
    ):
        diff(model, saved("gemma3"))


def changed(**changes: Any) -> Activations:
    found = saved("gemma3")
    for name, value in changes.items():
        setattr(found, name, value)
    return found


INPUTS = saved("gemma3").inputs
PIXELS = INPUTS["pixel_values"]
# Changes of the reference, and the error.
WRONG: dict[str, tuple[dict[str, Any], type[Error], str]] = {
    "ids out of range": (
        {"kind": "", "inputs": {"input_ids": np.array([1, 99])}},
        PromptError,
        "token id 99 is not in the vocabulary",
    ),
    "an image without pixels": (
        {"inputs": {"input_ids": np.array([1, 67])}},
        LoadError,
        "takes as its image; its inputs are input_ids",
    ),
    "a sound without its array": (
        {"kind": "audio", "inputs": {"input_ids": np.array([1, 67])}},
        LoadError,
        "takes as its audio",
    ),
    "an image without placeholders": (
        {"inputs": {"input_ids": np.array([1, 2]), "pixel_values": PIXELS}},
        PromptError,
        "0 placeholders",
    ),
    "too many placeholders": (
        {"inputs": {"input_ids": np.array([1, 67, 67]), "pixel_values": PIXELS}},
        PromptError,
        "2 placeholders",
    ),
    "an image of another size": (
        {"inputs": {**INPUTS, "pixel_values": PIXELS[..., :4]}},
        PromptError,
        "this model takes",
    ),
    "pixels of no image": (
        {"inputs": {**INPUTS, "pixel_values": PIXELS[0, 0]}},
        PromptError,
        "3, height, width",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_reference_that_does_not_fit(kind: str):
    changes, error, message = WRONG[kind]
    with ggmodel.load(source_of("gemma3")) as model, pytest.raises(error, match=message):
        diff(model, changed(**changes))


def test_where_nothing_can_be_compared_nothing_agrees():
    with ggmodel.load(source_of("llama"), kv_type="f32") as model:
        empty, narrower = saved("llama"), saved("llama")
        empty.results = {}
        narrower.results = {k: v[..., :10] for k, v in narrower.results.items()}
        for other in (empty, narrower):
            with pytest.raises(LoadError, match="the checkpoint that the file was made from"):
                diff(model, other)


def test_a_whole_of_another_shape_diverges():
    with ggmodel.load(source_of("llama"), kv_type="f32", flash_attention="off") as model:
        other = saved("llama")
        other.results[""] = other.results[""][..., :10]
        found = diff(model, other)
    assert found.first is not None
    assert (found.first.path, found.first.note) == ("", "the reference's is [10, 5, 1]")


def test_results_of_another_shape():
    with ggmodel.load(source_of("llama"), kv_type="f32", flash_attention="off") as model:
        other = saved("llama")
        name = "model.layers.0.mlp.up_proj"
        other.results[name] = other.results[name][..., :10]
        found = diff(model, other)
    row = next(row for row in found.rows if row.name == name)
    assert (row.result, row.note) == (None, "the reference's is [10, 5, 1]")
    assert found.ok


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(Unsupported, match="pip install torch transformers"):
        reference.run(tmp_path, [], {"input_ids": np.array([1])})


def test_saving_where_nothing_can_be_written(tmp_path: Path):
    with pytest.raises(WriteError, match=r"cannot write .*a\.npz"):
        saved("llama").save(tmp_path / "nowhere" / "a.npz")
