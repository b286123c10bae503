"""`diff` finds nothing in healthy models, and every seeded fault in the module that has it.

The reference is what transformers computed once (`references/`, made by `make_references.py`).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ggmodel
from ggmodel import DType
from ggmodel.convert import from_hf
from ggmodel.errors import PromptError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import PermuteRope, Pixels, find
from ggmodel.nn import layers
from ggmodel.workbench import golden
from ggmodel.workbench.activations import errors
from ggmodel.workbench.diff import diff, types_of
from ggmodel.workbench.diff.inputs import fitting_context, placeholder_of, same_tokens
from ggmodel.workbench.diff.preparation import _same_data, same_item
from ggmodel.workbench.diff.report import (
    Diff,
    ModuleDiff,
    Wiring,
    blame_left_out,
    judge,
    worst,
)
from tests.faults.source import MODELS, spelled
from tests.golden.files import HERE as GOLDENS
from tests.golden.gemma3 import cases as gemma3
from tests.golden.text import golden_of
from tests.workbench.saved import CASES, saved, source_of

ROOT = Path(ggmodel.__file__).parent / "models"
OUTSIDE = Path(__file__).parents[1] / "models" / "outside"  # every block written out
EXACT: dict[str, Any] = {"kv_type": "f32", "flash_attention": "off"}


def compared(name: str, source: MemorySource | None = None, models: Path | None = None) -> Diff:
    source = source_of(name) if source is None else source
    with ggmodel.load(source, models=models, **EXACT) as model:
        return diff(model, saved(name))


def variant(folder: Path, name: str, file: str, old: str, new: str) -> Path:
    """The architecture of a case as an author would have it out of tree, with one line changed."""
    arch = CASES[name].arch
    if file == f"{arch}.py":
        shutil.copy(OUTSIDE / file, folder)
    else:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / arch, folder / arch, ignore=ignored)
    path = folder / file
    text = path.read_text()
    if old not in text:  # it is in a block of ggmodel.nn
        text = spelled(MODELS / file).text
    assert text.count(old) == 1, f"{old!r} is not there once"
    path.write_text(text.replace(old, new))
    return folder


@pytest.mark.parametrize("backend", ["ggml", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_diverges_in_a_healthy_model(name: str, backend: str):
    with ggmodel.load(source_of(name), backend=backend, **EXACT) as model:
        found = diff(model, saved(name))
    assert found.ok and found.first is None
    assert not any(row.wrong for row in found.rows)
    judged = [row for row in found.rows if row.verdict in ("equal", "follows")]
    assert len(judged) >= 0.8 * len(found.rows)
    whole = found.rows[-1]
    assert (whole.path, whole.verdict) == ("", "equal")
    if name not in ("gemma3", "idefics3") or backend == "reference":
        # Without tables all is far below the bounds.
        same = [row.result for row in judged if row.verdict == "equal"]
        assert all(e is not None and e.nmse < 1e-11 for e in same)
        assert len(same) > 0.9 * len(judged)


# The case, file, line, what stands there instead, the module that is to blame and its verdict.
FAULTS = {
    "wrong rope type": (
        "llama",
        "llama/model.py",
        "        return [Causal(self.rotary.rope())]",
        "        from ggmodel.ml import RopeType\n"
        "        return [Causal(self.rotary.rope(RopeType.NEOX))]",
        "layers[0].attn",
        "diverges",
    ),
    "no rope": (
        "llama",
        "llama/model.py",
        "Causal(self.rotary.rope())",
        "Causal()",
        "layers[0].attn",
        "diverges",
    ),
    "missing norm": (
        "llama",
        "llama.py",
        "x + self.ffn(self.ffn_norm(x))",
        "x + self.ffn(x)",
        "layers[0].ffn_norm",
        "unused",
    ),
    "swapped gate and up": (
        "llama",
        "llama.py",
        "self.down(self.gate(x).silu(self.up(x)))\n\n\ndef _experts",
        "self.down(self.up(x).silu(self.gate(x)))\n\n\ndef _experts",
        "layers[0].ffn",
        "diverges",
    ),
    "swapped names of gate and up": (
        "llama",
        "llama.py",
        'gguf("ffn_gate", hf="mlp.gate_proj", shape=("hidden", "ffn"))\n'
        '    up: Linear = gguf("ffn_up"',
        'gguf("ffn_up", hf="mlp.gate_proj", shape=("hidden", "ffn"))\n'
        '    up: Linear = gguf("ffn_gate"',
        "layers[0].ffn.gate",
        "diverges",
    ),
    "missing scale of scores": (
        "llama",
        "llama.py",
        "scale=h.head_dim**-0.5",
        "scale=1.0",
        "layers[0].attn",
        "diverges",
    ),
    # An epsilon shows when it changes the mean square by more than 1e-4 of it.
    "wrong epsilon": (
        "llama",
        "llama.py",
        "self.attn(self.attn_norm(x)",
        "self.attn(self.attn_norm(x, 1e-3)",
        "layers[0].attn_norm",
        "diverges",
    ),
    "weights of experts not normalized": (
        "mixtral",
        "llama.py",
        "nn.sum_experts(y)",
        "nn.sum_experts(y).scale(0.5)",
        "layers[0].ffn",
        "diverges",
    ),
    "missing scale of embeddings": (
        "gemma3",
        "gemma3/model.py",
        "self.embed(batch.inputs).scale(self.config.width**0.5)",
        "self.embed(batch.inputs)",
        "text.embed",
        "diverges",
    ),
    "wrong layers are local": (
        "gemma3",
        "gemma3/model.py",
        "[local if near else scaled for near in h.local]",
        "[scaled if near else local for near in h.local]",
        "text.layers[0].attn",
        "diverges",
    ),
    "missing norm behind the MLP": (
        "gemma3",
        "gemma3/model.py",
        "self.ffn_post_norm(self.ffn(self.ffn_norm(x)))",
        "self.ffn(self.ffn_norm(x))",
        "text.layers[0].ffn_post_norm",
        "unused",
    ),
    "wrong epsilon in the tower": (
        "gemma3",
        "gemma3/vision.py",
        "return self.norm(x, h.vit_eps)",
        "return self.norm(x, 0.5)",
        "vision.norm",
        "diverges",
    ),
    "missing norm of queries": (
        "llama4",
        "llama4/model.py",
        "q, k = q.rms_norm(eps=h.eps), k.rms_norm(eps=h.eps)",
        "k = k.rms_norm(eps=h.eps)",
        "layers[0].attn",
        "diverges",
    ),
    "no shared expert": (
        "llama4",
        "llama4/model.py",
        "self.shared(x) + nn.sum_experts",
        "nn.sum_experts",
        "layers[1].ffn.shared",
        "unused",
    ),
    "a gate too much": (
        "mllama",
        "mllama/model.py",
        "cache.seen * self.attn_gate.tanh()",
        "cache.seen * self.attn_gate",
        "layers[1]",
        "diverges",
    ),
    "keys for values": (
        "llama",
        "llama.py",
        "nn.attention(q, k, v, cache",
        "nn.attention(q, k, k, cache",
        "layers[0].attn",
        "diverges",
    ),
    "heads in the wrong order": (
        "llama",
        "llama.py",
        "v = self.v(x).reshape(h.value_dim, h.kv_heads, -1)",
        "v = self.v(x).reshape(h.kv_heads, h.value_dim, -1).permute(1, 0, 2).contiguous()",
        "layers[0].attn",
        "diverges",
    ),
    "the residual twice": (
        "llama",
        "llama.py",
        "return x + self.ffn(self.ffn_norm(x))",
        "return x + x + self.ffn(self.ffn_norm(x))",
        "layers[0]",
        "diverges",
    ),
    "norm behind instead of before": (
        "llama",
        "llama.py",
        "y = self.attn(self.attn_norm(x), batch, cache)",
        "y = self.attn_norm(self.attn(x, batch, cache))",
        "layers[0]",
        "diverges",
    ),
    "layers in the wrong order": (
        "llama",
        "llama.py",
        "batch.through(self.layers)",
        "batch.through(self.layers[::-1])",
        "",
        "diverges",
    ),
    "a layer left out": (
        "llama",
        "llama.py",
        "x = layer(x, batch, cache, outputs)",
        "x = x if layer is self.layers[0] else layer(x, batch, cache, outputs)",
        "layers[0]",
        "unused",
    ),
    "an expert too many": (
        "mixtral",
        "llama.py",
        "self.config.experts_used)",
        "self.config.experts_used + 1)",
        "layers[0].ffn",
        "diverges",
    ),
    "a wrong window": (
        "gemma3",
        "gemma3/model.py",
        "Sliding.where(h.local, h.window,",
        "Sliding.where(h.local, 2,",
        "text.layers[0].attn",
        "diverges",
    ),
    "a cap of logits": (
        "gemma3",
        "gemma3/model.py",
        "nn.softcap(self.head(self.states(ctx, batch)), self.config.softcap)",
        "nn.softcap(self.head(self.states(ctx, batch)), 5.0)",
        "",
        "diverges",
    ),
    "no positions in the tower": (
        "gemma3",
        "gemma3/vision.py",
        "x = x + self.positions.weight.cast(DType.F32)",
        "x = x",
        "vision.positions",
        "unused",
    ),
    "no gate of the MLP": (
        "mllama",
        "mllama/model.py",
        "* (cache.seen * self.ffn_gate.tanh())",
        "* cache.seen",
        "layers[1]",
        "diverges",
    ),
    "no norm before attention": (  # not the embedding, whose scale the reference has elsewhere
        "gemma3",
        "gemma3/model.py",
        "self.attn(self.attn_norm(x), batch, cache)",
        "self.attn(x, batch, cache)",
        "text.layers[0].attn_norm",
        "unused",
    ),
    "no attention": (  # the next norm reads what the one before attention rightly reads
        "llama",
        "llama.py",
        "        x = x + y\n        return x + self.ffn",
        "        return x + self.ffn",
        "layers[0]",
        "diverges",
    ),
    "no positions in a tower whose result has another shape": (
        "llama4",
        "llama4/vision.py",
        "self.pre_norm(x + self.positions, h.vit_eps)",
        "self.pre_norm(x, h.vit_eps)",
        "vision",
        "diverges",
    ),
    "positions without those of tiles": (  # the reference adds them to what it is given
        "mllama",
        "mllama/vision.py",
        "return tiles * self.tile_gate + self.weight * self.gate",
        "return self.weight.reshape(h.vit_width, h.positions, 1) * self.gate",
        "vision.positions",
        "diverges",
    ),
    "columns of merged patches before their rows": (
        "idefics3",
        "idefics3/vision.py",
        "nn.merge_patches(x, self.config.grid, self.config.merge)",
        "nn.merge_patches(x, self.config.grid, self.config.merge).reshape(16, 2, 2, -1)"
        ".permute(0, 2, 1, 3).contiguous(64, 4, -1)",
        "projector",
        "diverges",
    ),
    "rows of tiles scaled": (
        "idefics3",
        "idefics3/model.py",
        "tiles = self.projector(self.vision(ctx, n))",
        "tiles = 1.1 * self.projector(self.vision(ctx, n))",
        "embed",
        "diverges",
    ),
    "wrong activation behind the eyes": (
        "mllama",
        "mllama/vision.py",
        "nn.activate(h.vit_activation, self.up(self.ffn_norm(x, h.vit_eps)))",
        "self.up(self.ffn_norm(x, h.vit_eps)).silu()",
        "vision.layers[0]",
        "diverges",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_in_its_module(fault: str, tmp_path: Path):
    name, file, old, new, path, verdict = FAULTS[fault]
    found = compared(name, models=variant(tmp_path, name, file, old, new))
    assert not found.ok
    assert found.first is not None
    assert (found.first.path, found.first.verdict) == (path, verdict)


def test_what_a_module_makes_up_for_is_passed_over(tmp_path: Path):
    """Heads of queries are permuted in files, so norms of heads are given other numbers; attention
    agrees."""
    name, file, old, new, _, _ = FAULTS["no gate of the MLP"]
    found = compared(name, models=variant(tmp_path, name, file, old, new))
    assert found.seen_in is None
    healthy = compared(name)
    layer = [row for row in healthy.rows if row.path.startswith("layers[1]")]
    assert max(row.result.nmse for row in layer if row.result) > 1
    off = worst(layer)
    assert off is not None and off.nmse < 1e-11


def test_a_fault_of_single_tokens_is_found_behind_the_prompt(tmp_path: Path):
    old = "v = self.v(x).reshape(h.value_dim"
    new = f"x = x.scale(1.1) if batch.size == 1 else x\n        {old}"
    found = compared("llama", models=variant(tmp_path, "llama", "llama.py", old, new))
    assert not any(row.wrong for row in found.rows)
    assert found.first is not None and not found.ok
    assert (found.first.path, found.first.token) == ("layers[0].attn", 2)
    healthy = compared("llama")
    assert {row.token for row in healthy.decode} == {4}
    assert len(healthy.decode) == len(healthy.rows)


def test_a_tensor_that_no_field_reads():
    reference = saved("llama")
    extra = "model.layers.0.self_attn.q_norm.weight"
    reference.tensors[extra] = [16]
    with ggmodel.load(source_of("llama"), **EXACT) as model:
        found = diff(model, reference)
    assert found.first is None and not found.ok
    (line,) = found.unread
    assert line.startswith(extra)


def test_two_norms_with_swapped_names(tmp_path: Path):
    old = 'gguf("attn_norm", hf="input_layernorm"'
    models = variant(tmp_path, "llama", "llama.py", old, 'gguf("attn_norm", hf="swapped"')
    path = models / "llama.py"
    text = path.read_text().replace("post_attention_layernorm", "input_layernorm")
    path.write_text(text.replace("swapped", "post_attention_layernorm"))
    reference = saved("llama")
    weight = golden.Cases(GOLDENS / "llama").weight
    weights = {key: weight(key, tuple(shape)) for key, shape in reference.tensors.items()}
    source = from_hf(find("llama", models), CASES["llama"].config, weights)
    found = compared("llama", source, models)
    assert found.first is not None
    assert found.first.path == "layers[0].attn_norm"
    assert "it reads what model.layers.0.input_layernorm reads" in found.first.note


def test_a_factor_alone_is_named(tmp_path: Path):
    old = "return x + self.ffn(self.ffn_norm(x))"
    dense = "self.down(self.gate(x).silu(self.up(x)))\n\n\ndef _experts"
    models = variant(tmp_path, "llama", "llama.py", dense, f"1.25 * {dense}")
    assert old in (models / "llama.py").read_text()
    found = compared("llama", models=models)
    assert found.first is not None
    assert (found.first.path, found.first.note) == (
        "layers[0].ffn",
        "the reference's is 0.8 times that",
    )


@pytest.mark.parametrize(
    ("name", "path", "note"),
    [
        ("mllama", "vision.layers[0]", "by tanh, the reference's by the error function"),
        ("qwen2audio", "encoder.layers[0]", "by tanh, the reference's by the error function"),
        ("gemma3", "vision.layers[0].ffn", "by the error function, the reference's by tanh"),
    ],
)
def test_the_other_form_of_gelu_is_no_rounding(
    name: str, path: str, note: str, monkeypatch: pytest.MonkeyPatch
):
    forms = layers._ACTIVATIONS.copy()
    monkeypatch.setitem(layers._ACTIVATIONS, "gelu", forms["gelu_pytorch_tanh"])
    monkeypatch.setitem(layers._ACTIVATIONS, "gelu_pytorch_tanh", forms["gelu"])
    found = compared(name)
    assert found.first is not None
    assert (found.first.path, found.first.note) == (path, f"its GELU is {note}")


def test_an_input_in_another_layout_brings_its_rounding_along():
    theirs = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    maker, reader = (ModuleDiff(n, n, "Linear", bound=b) for n, b in (("up", 1e-6), ("down", 1e-8)))
    maker.result = errors(theirs * np.float32(1 + 2e-4), theirs)
    reader.result = errors(theirs * np.float32(1 + 3e-4), theirs)
    wiring = Wiring(readers={maker: [(reader, False)]})
    judge(maker, [], wiring)
    judge(reader, [maker], wiring)
    assert (maker.verdict, reader.verdict) == ("equal", "follows")
    reader.verdict = "unjudged"
    judge(reader, [maker], Wiring())
    assert reader.verdict == "diverges"


@pytest.mark.parametrize("left", [9.798 / 9.8125, 9.798], ids=["rounded", "missing"])
def test_a_wrong_scale_is_told_from_a_missing_one(left: float):
    """The embedding of the reference includes its scale; the number that reads it tells."""
    theirs = np.random.default_rng(3).normal(size=(5, 8)).astype(np.float32)
    embed = ModuleDiff("embed", "embed", "Embedding", bound=1e-8)
    norm = ModuleDiff("norm", "norm", "RMSNorm", bound=1e-8)
    embed.result = errors(theirs / np.float32(9.798), theirs)
    norm.input = errors(theirs / np.float32(left), theirs)
    judge(embed, [], Wiring(readers={embed: [(norm, False)]}))
    assert embed.verdict == "diverges"
    assert (
        embed.note == f"the reference's is 9.798 times that; where norm reads it, {left:.6g} times"
    )


def test_the_prompt_with_an_image_is_compared():
    reference, case = saved("gemma3"), CASES["gemma3"]
    assert case.picture is not None
    placeholder = placeholder_of(reference.config, "image")
    with ggmodel.load(source_of("gemma3"), **EXACT) as model:
        named: Any = SimpleNamespace(id_of_text=gemma3.SPECIAL.get)
        model.model.tokenizer = named
        image = model.embeddings(case.picture.pixels)
        assert same_tokens(model, [1, 9, image], case.ids, placeholder) == ""
        said = same_tokens(model, [1, 9, image], [*case.ids[:2], 8, *case.ids[3:]], placeholder)
        assert "differ at token 2 of 7 here and 7 there: ggmodel has 64 and the reference 8" in said
        said = same_tokens(model, [1, 9, image], case.ids[:-1], placeholder)
        assert "the reference none; look at post_tokenize" in said
        inputs = {"pixel_values": case.picture.pixels}
        pixels = Pixels(case.picture.pixels)
        assert same_item(model, "image", pixels, inputs) == ""
        other = Pixels(case.picture.pixels[..., ::-1])
        assert "makes other pixels" in same_item(model, "image", other, inputs)
        smaller = Pixels(case.picture.pixels[..., :4])
        assert "[1, 3, 8, 4], the reference [1, 3, 8, 8]" in same_item(
            model, "image", smaller, inputs
        )
        with pytest.raises(PromptError, match=r"write Gemma3\.reference_pixels"):
            same_item(model, "image", pixels, {"pixel_values": np.zeros((60, 1176), np.float32)})


def test_the_context_that_goes_with_a_short_prompt():
    scaling = {"rope_type": "longrope", "long_factor": [2.0], "short_factor": [1.0]}
    config = {"rope_scaling": scaling, "original_max_position_embeddings": 16}
    assert fitting_context(config, 9) == 16
    assert fitting_context(config, 17) is None
    assert fitting_context({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, 9) is None
    assert fitting_context({"rope_scaling": None}, 9) is None


def test_a_wrong_permutation_of_queries(vary):
    source = source_of("llama")
    q = PermuteRope(4).to_hf(weight_of(source, "blk.1.attn_q.weight"), None)
    found = compared("llama", vary(source, tensors={"blk.1.attn_q.weight": q}))
    assert found.first is not None
    assert found.first.path == "layers[1].attn.q"


@pytest.mark.parametrize(
    ("name", "of_text", "blamed"),
    [
        (None, 1e-12, "projector"),
        (None, 1e-3, "embed"),  # the text differs, too
        (None, None, "embed"),
        ("mm.proj", 1e-12, "embed"),  # it is compared
    ],
)
def test_a_projector_that_is_not_compared_is_named(
    name: str | None, of_text: float | None, blamed: str
):
    projector = ModuleDiff("projector", name, "Projector", bound=1e-8, verdict="unpaired")
    embed = ModuleDiff("embed", "embed", "Embedding", bound=1e-8, verdict="diverges")
    norm = ModuleDiff("norm", "norm", "RMSNorm", bound=1e-8, verdict="follows", of_text=of_text)
    rows = [projector, embed, norm]
    blame_left_out(rows, Wiring(readers={embed: [(norm, False)]}, tower=[projector]))
    assert [row.path for row in rows if row.wrong] == [blamed]


@pytest.mark.parametrize(
    ("data", "differs"),
    [
        ({"grid": (4, 6)}, False),
        ({"grid": (6, 4)}, True),
        ({"image_grid_thw": [1, 6, 4]}, True),
        ({"grid": (4.0, 7.0)}, False),  # no whole numbers
        ({"tiles": (9, 9)}, False),  # nothing of the reference has this name
        ({"grid": (4, 6), "ratio": 2}, True),
    ],
)
def test_whole_numbers_beside_pixels_are_compared(data: dict, differs: bool):
    inputs = {"image_grid_thw": np.array([[1, 4, 6]]), "aspect_ratio_ids": np.array([[1]])}
    said = _same_data("image", data, inputs)
    assert said.startswith("numbers: preprocess makes ") == differs
    assert bool(said) == differs


def test_a_wrong_weight_in_one_layer(vary):
    source = source_of("llama")
    down = weight_of(source, "blk.1.ffn_down.weight").copy()
    down[7, 3] += 0.1
    found = compared("llama", vary(source, tensors={"blk.1.ffn_down.weight": down}))
    assert found.first is not None
    assert found.first.path == "layers[1].ffn.down"
    assert found.first.result is not None
    assert found.first.result.at[0] == 7


def rounded(name: str, dtype: DType) -> MemorySource:
    """The model with its matrices stored in another type, but for routers."""
    import gguf

    kind = gguf.GGMLQuantizationType(dtype.value)

    def store(tensor: str, values: np.ndarray):
        if values.ndim < 2 or "ffn_gate_inp" in tensor or tensor.startswith(("v.", "mm.")):
            return values.astype(np.float32)
        data = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        return dtype, values.shape[::-1], data.tobytes()

    return source_of(name, store)


TYPES = [DType.F16, DType.BF16, DType.Q8_0, DType.Q5_0, DType.Q4_0]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name.lower())
@pytest.mark.parametrize("name", ["llama", "gemma3", "mllama"])
def test_rounded_weights_do_not_diverge(name: str, dtype: DType):
    found = compared(name, rounded(name, dtype))
    assert found.ok, found.first
    # Nor do the bounds leave much: some product is within a hundredth of its own.
    products = [r.result.nmse / r.bound for r in found.rows if r.kind == "Linear" and r.result]
    assert max(products) > 0.01


@pytest.mark.parametrize("dtype", TYPES[:3], ids=lambda t: t.name.lower())
@pytest.mark.parametrize("fault", ["wrong rope type", "missing norm", "swapped gate and up"])
def test_a_fault_is_found_among_rounded_weights(fault: str, dtype: DType, tmp_path: Path):
    name, file, old, new, path, _ = FAULTS[fault]
    found = compared(name, rounded(name, dtype), variant(tmp_path, name, file, old, new))
    assert found.first is not None
    assert found.first.path == path


def weight_of(source: MemorySource, name: str) -> np.ndarray:
    info = source.tensors[name]
    return np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])


def test_tables_of_indices_round_nothing():
    with ggmodel.load(golden.source_of(golden_of("deepseek4/published"))) as model:
        assert types_of(model.model) == {DType.F32}
