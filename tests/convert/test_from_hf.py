"""Checkpoints through the declarations: names, values and metadata of the GGUF they make."""

import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ggmodel import Config, Model, Module, Tensor, gguf, kv
from ggmodel.convert import from_hf, metadata_of, normalize, plan
from ggmodel.errors import ConfigError, LoadError
from ggmodel.gguf_file import MemorySource
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model import (
    AddConstant,
    Computed,
    Part,
    PermuteRope,
    Stack,
    Transpose,
    config_class,
    fill,
    find,
)
from ggmodel.nn import ExpertLinear, Linear, RMSNorm
from tests.golden.files import Golden, cases, load_golden

CASES = cases("llama")


def golden(case: str) -> Golden:
    return load_golden("llama", case)


def value(source: MemorySource, name: str) -> np.ndarray:
    """A float32 tensor in numpy's order."""
    return np.frombuffer(source.data(name), np.float32).reshape(source.info(name).shape[::-1])


# llama


def names_of(config: dict[str, Any]) -> set[str]:
    """The names that llama.cpp's converter gives the tensors of a llama checkpoint."""
    layer = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"]
    experts = config["architectures"] == ["MixtralForCausalLM"]
    dense = ["ffn_gate", "ffn_up", "ffn_down"]
    layer += ["ffn_gate_inp", *(f"{n}_exps" for n in dense)] if experts else dense
    names = [f"{n}.weight" for n in layer]
    if config.get("attention_bias"):
        names += [f"{n}.bias" for n in layer[1:5]]
    if config.get("mlp_bias"):
        names += [f"{n}.bias" for n in dense]
    found = {f"blk.{i}.{n}" for i in range(config["num_hidden_layers"]) for n in names}
    found |= {"token_embd.weight", "output_norm.weight"}
    if not config["tie_word_embeddings"]:
        found.add("output.weight")
    kind = (config.get("rope_scaling") or {}).get("rope_type")
    if kind == "llama3":
        found.add("rope_freqs.weight")
    if kind == "longrope":
        found |= {"rope_factors_long.weight", "rope_factors_short.weight"}
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_llama_checkpoint_gets_the_names_of_llama_cpp(case: str):
    data = golden(case)
    source = from_hf(find("llama"), data.config, data.weights())
    assert set(source.tensors) == names_of(data.config)


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_a_llama_checkpoint_is_used(case: str):
    data = golden(case)
    config = read(find("llama"), data.config)
    entries = plan(find("llama"), config, data.tensors).entries
    assert sorted(s for e in entries for s in e.sources) == sorted(data.tensors)


@pytest.mark.parametrize("case", CASES)
def test_what_was_converted_loads_without_a_complaint(case: str):
    data = golden(case)
    architecture = find("llama")
    source = from_hf(architecture, data.config, data.weights())
    model = architecture(read(architecture, data.config))
    assert fill(model, AnyWeight(), source.tensors, "llama").problems() == []


@pytest.mark.parametrize("case", CASES)
def test_both_spellings_of_a_config_say_the_same(case: str):
    data = golden(case)
    architecture = find("llama")
    old = metadata_of(architecture, normalize(data.config))
    new = metadata_of(architecture, normalize(data.saved_config))
    # The new spelling has all defaults filled in.
    assert old.items() <= new.items()
    assert new.keys() - old.keys() <= {"llama.rope.freq_base"}
    assert repr(read(architecture, data.config)) == repr(read(architecture, data.saved_config))


def test_the_rows_of_queries_and_keys_are_permuted_by_their_own_heads():
    data = golden("plain_gqa")
    weights = data.weights()
    source = from_hf(find("llama"), data.config, weights)
    for name, hf, heads in (("attn_q", "q_proj", 4), ("attn_k", "k_proj", 2)):
        x = weights[f"model.layers.1.self_attn.{hf}.weight"]
        want = x.reshape(heads, 2, 8, -1).swapaxes(1, 2).reshape(x.shape)
        assert np.array_equal(value(source, f"blk.1.{name}.weight"), want)


def test_experts_are_stacked_in_order():
    data = golden("experts")
    weights = data.weights()
    up = value(from_hf(find("llama"), data.config, weights), "blk.1.ffn_up_exps.weight")
    names = [f"model.layers.1.block_sparse_moe.experts.{i}.w3.weight" for i in range(4)]
    assert np.array_equal(up, np.stack([weights[n] for n in names]))


def test_a_missing_tensor_of_a_checkpoint_is_named():
    data = golden("plain_gqa")
    weights = data.weights()
    weights["model.layers.1.self_attn.q_prj.weight"] = weights.pop(
        "model.layers.1.self_attn.q_proj.weight"
    )
    with pytest.raises(LoadError) as caught:
        from_hf(find("llama"), data.config, weights)
    text = str(caught.value)
    for part in ("layers[1].attn.q", "blk.1.attn_q", "self_attn.q_proj.weight", "q_prj"):
        assert part in text


def test_store_chooses_how_a_tensor_is_kept():
    data = golden("plain_gqa")

    def store(name: str, x: np.ndarray) -> np.ndarray:
        return x.astype(np.float16) if x.ndim > 1 else x

    source = from_hf(find("llama"), data.config, data.weights(), store)
    assert str(source.info("blk.0.attn_q.weight").dtype) == "F16"
    assert str(source.info("output_norm.weight").dtype) == "F32"


@pytest.mark.parametrize("biased", [True, False])
def test_use_expert_bias_says_whether_experts_have_a_bias(biased: bool):
    """transformers ignores the tensor of a checkpoint that says it has none."""
    golden = load_golden("lfm2", "experts")
    weights, name = golden.weights(), "model.layers.1.feed_forward.expert_bias"
    rest = {k: v for k, v in weights.items() if not k.endswith("expert_bias")}
    config = golden.config | {"use_expert_bias": biased}
    bias = value(from_hf(find("lfm2moe"), config, weights), "blk.1.exp_probs_b.bias")
    np.testing.assert_array_equal(bias, weights[name] * biased)
    if biased:
        with pytest.raises(ConfigError, match="use_expert_bias is true, but there is no expert_b"):
            from_hf(find("lfm2moe"), config, rest)
    else:
        bias = value(from_hf(find("lfm2moe"), config, rest), "blk.1.exp_probs_b.bias")
        assert not bias.any()


# configs


@pytest.mark.parametrize(
    ("hf", "want"),
    [
        ({"a": 1, "b": None}, {"a": 1}),
        ({"rope_parameters": None}, {}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, {"rope_theta": 5.0}),
        ({"rope_parameters": {"rope_theta": None}}, {}),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, {"partial_rotary_factor": 0.5}),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0}},
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            {"rope_theta": 7.0, "rope_parameters": {"rope_theta": 5.0}},
            {"rope_theta": 5.0},  # as transformers reads both
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
        ),
        ({"rope_scaling": {"type": "linear"}}, {"rope_scaling": {"type": "linear"}}),
        ({"a": 1, "text_config": {"a": 2}}, {"a": 2, "text_config": {"a": 2}}),
        ({"a": 1, "text_config": {"a": None}}, {"text_config": {"a": None}}),
        (
            {
                "rope_parameters": {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0},
                "text_config": {"rope_theta": 7.0},
            },
            {"rope_theta": 7.0, "text_config": {"rope_theta": 7.0}},
        ),
        (
            {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}},
            {"tie_word_embeddings": True, "text_config": {"tie_word_embeddings": False}},
        ),
        (
            {"eos_token_id": 5, "pad_token_id": None, "text_config": {"pad_token_id": 3}},
            {"eos_token_id": 5, "pad_token_id": 3, "text_config": {"pad_token_id": 3}},
        ),
    ],
)
def test_normalise(hf: dict[str, Any], want: dict[str, Any]):
    before = repr(hf)
    assert normalize(hf) == want
    assert repr(hf) == before


@pytest.mark.parametrize(
    "other",
    [
        {"num_hidden_layers": 7, "rms_norm_eps": 0.5, "sliding_window": 3},
        {"rope_theta": 3.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 3.0, "factor": 3.0}},
    ],
)
@pytest.mark.parametrize("spelling", ["config", "saved_config"])
def test_another_value_beside_a_text_config_is_nothing(other: dict[str, Any], spelling: str):
    """transformers' Gemma3Config has it as an attribute, which its model never reads."""
    config = getattr(load_golden("gemma3", "images"), spelling)
    want = metadata_of(find("gemma3"), normalize(config))
    assert metadata_of(find("gemma3"), normalize(config | other)) == want


@pytest.mark.parametrize(
    ("scaling", "want"),
    [
        (None, {}),
        ({"rope_type": "default"}, {}),
        ({"rope_type": "linear", "factor": 4.0}, {"factor": 4.0, "type": "linear"}),
        ({"type": "linear", "factor": 4}, {"factor": 4.0, "type": "linear"}),
        ({"rope_type": "llama3", "factor": 4.0}, {}),
    ],
)
def test_rope_scaling_of_a_llama(scaling: Any, want: dict[str, Any]):
    metadata = metadata_of(
        find("llama"), normalize({**golden("mha").config, "rope_scaling": scaling})
    )
    begin = "llama.rope.scaling."
    assert {k[len(begin) :]: v for k, v in metadata.items() if k.startswith(begin)} == want


class SmallConfig(Config):
    layers: int = kv("block_count", hf="layers", default=2)
    heads: int = kv("heads", hf="heads", default=2)
    kv_heads: int = kv("kv_heads", default="heads")
    twice: int = kv("twice", default=lambda h: 2 * h.heads)
    plain: int = kv("plain", default=3)
    maybe: int | None = kv("maybe", default=lambda h: None)
    title: str = kv("general.name", hf="name", default="")


def declare(base: type[Module]) -> type[Model]:
    """An architecture with the fields of a module."""
    body = {
        "architecture": "arch",
        "__annotations__": {"config": SmallConfig},
        "__module__": __name__,
    }
    return types.new_class("Arch", (base, Model), exec_body=lambda space: space.update(body))


class Empty(Module):
    pass


def test_metadata_is_what_the_config_says_and_what_follows_from_it():
    assert metadata_of(declare(Empty), {"heads": 4, "name": "x"}) == {
        "general.architecture": "arch",
        "general.name": "x",
        "arch.heads": 4,
        "arch.kv_heads": 4,
        "arch.twice": 8,
    }


def test_a_config_without_what_is_required():
    with pytest.raises(ConfigError, match=r"config\.json: no metadata key 'llama\.block_count'"):
        metadata_of(find("llama"), {"hidden_size": 8})


def by_count(hf: Mapping[str, Any]) -> Any:
    return hf.get("counts")


@pytest.mark.parametrize(
    ("source", "config", "message"),
    [
        (
            "conv_l_cache",
            {"conv_L_cache": 3},
            "hf= tried 'conv_l_cache', and config.json has 'conv_L_cache'",
        ),
        (
            ("kernel", "conv_cache"),
            {"vision_config": {"kernel": 3}, "conv_L_cache": 4},
            "hf= tried 'kernel' or 'conv_cache', and config.json has 'vision_config.kernel', "
            "'conv_L_cache'",
        ),
        (
            "rope_parameters.mrope_section",
            {"rope_scaling": {"mrope_section": [8]}},
            "'rope_parameters.mrope_section', and config.json has 'rope_scaling.mrope_section'",
        ),
        (("kernel", by_count), {"x": 3}, "hf= tried 'kernel' or the function by_count"),
        ((), {"kernel": 3}, "its kv(...) names no key of config.json; add hf="),
        (
            by_count,
            {"counts": [1, 2]},
            "config.json: what the function by_count computes for the hyperparameter 'kernel' must "
            "be an integer, but holds a list",
        ),
    ],
)
def test_a_missing_hyperparameter_names_the_keys_that_were_tried(
    source: Any, config: dict[str, Any], message: str
):
    class Own(Config):
        layers: int = kv("block_count", default=1)
        kernel: int = kv("shortconv.l_cache", hf=source)

    class Arch(Model):
        architecture = "arch"

    Arch.__annotations__ = {"config": Own}
    with pytest.raises(ConfigError) as caught:
        metadata_of(Arch, config)
    text = str(caught.value)
    assert message in text
    if "integer" not in message:
        assert text.startswith("config.json: no metadata key 'arch.shortconv.l_cache', which the")
        assert f"{__file__}:" in text
        assert text.endswith(message)


# declarations


class AnyWeight:
    def get(self, name: str) -> Any:
        return name


def read(architecture: type[Model], hf: dict[str, Any]) -> Any:
    metadata = metadata_of(architecture, normalize(hf))
    return config_class(architecture).read(KeyValues(metadata))


def convert(base: type[Module], *names: str, **hf: Any) -> MemorySource:
    """Every tensor is a matrix [4, 2] but for biases [4]; no two hold the same values."""
    tensors = {
        n: np.arange(4 if n.endswith("bias") else 8, dtype=np.float32) + 100 * i
        for i, n in enumerate(names)
    }
    tensors = {n: x if n.endswith("bias") else x.reshape(4, 2) for n, x in tensors.items()}
    return from_hf(declare(base), hf, tensors)


class Fused(Module):
    q: Linear = gguf("attn_q", hf=Part("qkv", 0, ("heads", 1, 1)), op=PermuteRope(1))
    k: Linear = gguf("attn_k", hf=Part("qkv", 1, ("heads", 1, 1)))
    v: Linear = gguf("attn_v", hf=Part("qkv", 2, ("heads", 1, 1)))


class FusedLayers(Module):
    layers: list[Fused] = gguf("blk", hf="model.layers", n="layers")


class OneExperts(Module):
    up: ExpertLinear = gguf("up_exps", hf=Stack("experts.{}.w3", "heads"))


class OfExperts(Module):
    ffn: OneExperts = gguf(hf="moe")


class Suffixed(Module):
    shared: OneExperts = gguf(hf="shared", suffix="_shexp", prefix="x_")


class Alternates(Module):
    ffn: Linear = gguf("ffn", "old_ffn", hf=("mlp.fc", "mlp.dense"))
    scale: Tensor | None = gguf("scale.weight", hf=("a.scale", "b.scale"))


class Ones(Module):
    norm: RMSNorm = gguf("norm", hf="ln", op=AddConstant(1))


class Conv1D(Module):
    c: Linear = gguf("c", hf="c", op=Transpose())


class Dense(Module):
    router: Linear | None = gguf("router", hf="router")
    up: Linear = gguf("ffn_up", hf="up")


class Sparse(Module):
    router: Linear = gguf("router", hf="router")
    up: Linear = gguf("ffn_up_exps", hf="experts")


class Choice(Module):
    layers: list[Dense | Sparse] = gguf("blk", hf="h", n="layers")


class Tied(Module):
    head: Linear = gguf("output", "token_embd", hf="lm_head")
    embed: Linear = gguf("token_embd", hf="wte")


def ones(hf: Any, h: Any) -> Any:
    return np.ones(2, np.float32)


class Attention(Module):
    q: Linear = gguf("q", hf="q")
    factors: Tensor | None = gguf("factors", root=True, hf=Computed(ones))


class OptionalAttention(Module):
    attn: Attention | None = gguf("attn", hf=("self_attn", "attn"))


class OptionalList(Module):
    more: list[Linear] | None = gguf("more", hf="more", n=2)
    gaps: list[Linear | None] = gguf("gap", hf="gap", n=2)


class SameName(Module):
    sinks: Tensor = gguf("sinks")


class Given(Module):
    layers: list[Module] = gguf("blk", hf="h")

    def __init__(self, config: Any = None):
        super().__init__(config)
        self.layers = [Dense(config), Sparse(config)]


@pytest.mark.parametrize(
    ("base", "names", "want"),
    [
        (Fused, ["qkv.weight"], "attn_q.weight attn_k.weight attn_v.weight"),
        (
            Fused,
            ["qkv.weight", "qkv.bias"],
            "attn_q.weight attn_q.bias attn_k.weight attn_k.bias attn_v.weight attn_v.bias",
        ),
        (
            FusedLayers,
            ["model.layers.0.qkv.weight", "model.layers.1.qkv.weight"],
            "blk.0.attn_q.weight blk.0.attn_k.weight blk.0.attn_v.weight "
            "blk.1.attn_q.weight blk.1.attn_k.weight blk.1.attn_v.weight",
        ),
        (OfExperts, ["moe.experts.0.w3.weight", "moe.experts.1.w3.weight"], "up_exps.weight"),
        (
            Suffixed,
            ["shared.experts.0.w3.weight", "shared.experts.1.w3.weight"],
            "x_up_exps_shexp.weight",
        ),
        (Alternates, ["mlp.fc.weight", "a.scale"], "ffn.weight scale.weight"),
        (Alternates, ["mlp.dense.weight", "b.scale"], "ffn.weight scale.weight"),
        (Alternates, ["mlp.dense.weight"], "ffn.weight"),
        (Ones, ["ln.weight"], "norm.weight"),
        (Choice, ["h.0.up.weight", "h.1.up.weight"], "blk.0.ffn_up.weight blk.1.ffn_up.weight"),
        (
            Choice,
            ["h.0.up.weight", "h.1.router.weight", "h.1.experts.weight"],
            "blk.0.ffn_up.weight blk.1.router.weight blk.1.ffn_up_exps.weight",
        ),
        (Tied, ["wte.weight"], "token_embd.weight"),
        (Tied, ["wte.weight", "lm_head.weight"], "output.weight token_embd.weight"),
        (OptionalAttention, [], ""),
        (OptionalAttention, ["self_attn.q.weight"], "attn.q.weight factors"),
        (OptionalAttention, ["attn.q.weight"], "attn.q.weight factors"),
        (OptionalList, [], ""),
        (OptionalList, ["more.0.weight", "more.1.weight"], "more.0.weight more.1.weight"),
        (OptionalList, ["gap.1.weight"], "gap.1.weight"),
        (SameName, ["sinks"], "sinks"),
        (
            Given,
            ["h.0.up.weight", "h.1.router.weight", "h.1.experts.weight"],
            "blk.0.ffn_up.weight blk.1.router.weight blk.1.ffn_up_exps.weight",
        ),
    ],
)
def test_names(base: type[Module], names: list[str], want: str):
    source = convert(base, *names)
    assert sorted(source.tensors) == sorted(want.split())
    # The loader asks for the tensors that were written.
    model = declare(base)(read(declare(base), {}))
    assert fill(model, AnyWeight(), source.tensors, "arch").problems() == []


@pytest.mark.parametrize(
    ("base", "names", "message"),
    [
        (Alternates, ["mlp.fc"], r"ffn \(ffn\): no tensor mlp.fc.weight or mlp.dense.weight"),
        (OfExperts, ["moe.experts.0.w3.weight"], r"moe\.experts\.0\.w3\.weight or moe\.experts\.1"),
        (
            Choice,
            ["h.0.up.weight"],
            r"layers\[1\] \(blk\.1\): no .*h\.1\.up\.weight or h\.1\.router",
        ),
        (Choice, ["h.0.up.weight", "h.1.router.weight"], r"layers\[1\]\.up \(blk\.1\.ffn_up\)"),
        (Tied, ["lm_head.weight"], r"embed \(token_embd\): no tensor wte\.weight"),
        (Tied, [], r"head \(output\)"),
        (OptionalList, ["more.0.weight"], r"more\[1\] \(more\.1\)"),
        (Attention, [], r"q \(q\): no tensor q.weight"),
    ],
)
def test_a_checkpoint_that_does_not_fit(base: type[Module], names: list[str], message: str):
    with pytest.raises(LoadError, match=f"does not fit the architecture 'arch'(.|\n)*{message}"):
        convert(base, *names)


class Many(Module):
    items: list[Linear] = gguf("x", hf="x", n=20)


def test_a_long_list_of_what_is_missing_is_cut():
    with pytest.raises(LoadError, match=r"items\[7\].*x\.7\.weight\n  … and 12 more$"):
        convert(Many)


class Untold(Module):
    ffn: Linear = gguf("ffn")


def test_a_module_without_a_counterpart_is_told():
    with pytest.raises(LoadError, match=r"ffn \(ffn\): its declaration names no counterpart, hf="):
        convert(Untold, "ffn.weight")


class NestedSources(Module):
    inner: OneExperts = gguf("m", hf=Part("fused", 0, (1, 3)))


def test_sources_within_sources_are_refused():
    with pytest.raises(ConfigError, match="cannot be nested"):
        convert(NestedSources, "fused.weight")


class WithinPart(Module):
    inner: Conv1D = gguf("m", hf=Part("fused", 1, (1, 3)))


def test_the_path_within_sources():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    source = convert(WithinPart, "fused.c.weight")
    assert np.array_equal(value(source, "m.c.weight"), x[1:].T)


def test_values_of_parts_and_operations():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    source = convert(Fused, "qkv.weight", "qkv.bias")
    assert np.array_equal(value(source, "attn_k.weight"), x[2:3])
    assert np.array_equal(value(source, "attn_v.bias"), [103])
    assert np.array_equal(value(convert(Ones, "ln.weight"), "norm.weight"), x + 1)
    transposed = convert(Conv1D, "c.weight", "c.bias")
    assert np.array_equal(value(transposed, "c.weight"), x.T)
    assert np.array_equal(value(transposed, "c.bias"), [100, 101, 102, 103])


def test_the_source_has_the_metadata():
    source = convert(Ones, "ln.weight", heads=5)
    assert source.metadata["general.architecture"] == "arch"
    assert source.metadata["arch.heads"] == 5


@pytest.mark.parametrize("made", [True, False])
def test_a_computed_tensor_may_be_none(made: bool):
    compute: Callable[[Any, Any], Any] = ones if made else lambda hf, h: None

    class WithFactors(Module):
        norm: RMSNorm = gguf("norm", hf="ln")
        factors: Tensor | None = gguf("factors", hf=Computed(compute))

    assert ("factors" in convert(WithFactors, "ln.weight").tensors) is made
