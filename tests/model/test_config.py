"""Hyperparameters: read from metadata, taken from a Hugging Face config."""

import math
from typing import Any

import pytest

from ggmodel import Config, Module, gguf, kv, nn
from ggmodel.errors import ConfigError
from ggmodel.gguf_file import MemorySource
from ggmodel.gguf_file.values import KeyValues
from ggmodel.model.config import key_fields
from ggmodel.model.module import module_fields


def read(cls: type[Config], **values: Any) -> Any:
    """The config of metadata given as key=value with "__" for the dots, or as absolute keys."""
    metadata = {"general.architecture": "arch"}
    for key, value in values.items():
        name = key.replace("__", ".")
        metadata[
            name if name.startswith(("clip.", "general.", "tokenizer.")) else f"arch.{name}"
        ] = value
    return cls.read(KeyValues(MemorySource(metadata, {}).metadata, "file.gguf"))


class Small(Config):
    heads: int = kv("head_count", "n_head")
    kv_heads: int = kv("head_count_kv", default="heads")
    width: int = kv("width", default=lambda h: h.heads * 8)
    eps: float = kv("eps", default=1e-5)
    window: int | None = kv("window")
    kind: str = kv("kind", default="heads")
    note: str | None = kv("note", default="width")
    causal: bool = kv("causal", default=True)
    pattern: list[int] = kv("pattern", default=[1, 2])
    names: list[str] = kv("names", default="pattern")
    vision: int = kv("vision.block_count", default=0)
    title: str = kv("general.name", default="")
    half = property(lambda h: h.width // 2)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ({}, {"kv_heads": 4, "width": 32, "eps": 1e-5, "window": None, "causal": True}),
        ({}, {"kind": "heads", "note": "width"}),  # of a str field a str default is the value
        ({}, {"pattern": [1, 2], "names": [1, 2], "vision": 0, "half": 16}),
        ({"head_count_kv": 2}, {"kv_heads": 2}),
        ({"width": 5}, {"width": 5, "half": 2}),
        ({"eps": 1}, {"eps": 1.0}),
        ({"eps": 0.25}, {"eps": 0.25}),
        ({"window": 7}, {"window": 7}),
        ({"kind": "k", "note": "n"}, {"kind": "k", "note": "n"}),
        ({"causal": False}, {"causal": False}),
        ({"pattern": [3, 4, 5]}, {"pattern": [3, 4, 5], "names": [3, 4, 5]}),
        ({"pattern": 3}, {"pattern": [3]}),
        ({"names": ["a"]}, {"names": ["a"], "pattern": [1, 2]}),
        ({"vision__block_count": 2}, {"vision": 2}),
        ({"clip__vision__block_count": 3}, {"vision": 3}),
        ({"clip__vision__block_count": 3, "vision__block_count": 2}, {"vision": 2}),
        ({"general__name": "me"}, {"title": "me"}),
        ({"kv_heads": 9}, {"kv_heads": 4}),  # the name of a field is no key
    ],
)
def test_values_and_defaults(values: dict[str, Any], want: dict[str, Any]):
    config = read(Small, head_count=4, **values)
    assert {name: getattr(config, name) for name in want} == want


def test_a_number_is_a_float_where_one_is_declared():
    assert type(read(Small, head_count=4, eps=1).eps) is float


def test_the_first_of_alternate_keys_wins():
    assert read(Small, n_head=3).heads == 3
    assert read(Small, n_head=3, head_count=5).heads == 5


def test_two_configs_do_not_share_a_default():
    first = read(Small, head_count=1)
    first.pattern.append(9)
    assert read(Small, head_count=1).pattern == [1, 2]


def test_a_missing_hyperparameter_names_all_its_keys_and_the_nearest():
    with pytest.raises(ConfigError) as caught:
        read(Small, head_coun=3)
    text = str(caught.value)
    for part in (
        "file.gguf",
        "'arch.head_count'",
        "'arch.n_head'",
        "'heads'",
        "has arch.head_coun",
    ):
        assert part in text


def test_metadata_without_an_architecture():
    with pytest.raises(ConfigError, match=r"general\.architecture"):
        Small.read(KeyValues({"arch.head_count": 1}))


class Kinds(Config):
    a_bool: bool | None = kv("a_bool")
    an_int: int | None = kv("an_int")
    a_float: float | None = kv("a_float")
    a_str: str | None = kv("a_str")


@pytest.mark.parametrize(
    ("key", "value", "expected", "found"),
    [
        ("a_bool", 1, "a boolean", "int"),
        ("a_bool", "true", "a boolean", "str"),
        ("an_int", 1.5, "an integer", "float"),
        ("an_int", True, "an integer", "bool"),
        ("an_int", "1", "an integer", "str"),
        ("an_int", [1], "an integer", "a list"),
        ("a_float", "1.0", "a number", "str"),
        ("a_float", False, "a number", "bool"),
        ("a_str", 1, "a string", "int"),
        ("a_str", ["a"], "a string", "a list"),
    ],
)
def test_a_wrong_type_names_key_expected_and_found(key: str, value: Any, expected: str, found: str):
    with pytest.raises(ConfigError) as caught:
        read(Kinds, **{key: value})
    assert f"'arch.{key}' must be {expected}, but holds {found} " in str(caught.value)
    assert "file.gguf" in str(caught.value)


@pytest.mark.parametrize(("value", "want"), [(8.0, 8), (-3.0, -3), (0.0, 0), (2.0**40, 2**40)])
def test_a_whole_number_is_an_integer(value: float, want: int):
    found = read(Kinds, an_int=value).an_int
    assert found == want and type(found) is int


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300, 8.5])
def test_what_is_no_whole_number_is_none(value: float):
    with pytest.raises(ConfigError, match="must be an integer, but holds float"):
        read(Kinds, an_int=value)


class AnyOrder(Config):
    kv_heads: int = kv("kv_heads", default="heads")
    width: int = kv("width", default=lambda h: h.kv_heads * h.double)
    heads: int = kv("heads", default=lambda h: 6)
    double = property(lambda h: 2 * h.heads)


def test_defaults_may_refer_to_what_is_declared_later():
    config = read(AnyOrder)
    assert (config.heads, config.kv_heads, config.width) == (6, 6, 72)


class Circle(Config):
    a: int = kv("a", default="b")
    b: int = kv("b", default="a")


class Divides(Config):
    heads: int = kv("heads")
    width: int = kv("width", default=lambda h: 8 // h.heads)


class RefersToNothing(Config):
    a: int = kv("a", default="nothing")


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (Circle, {}, r"default of the hyperparameter '[ab]' .* it refers to itself"),
        (Divides, {"heads": 0}, "default of the hyperparameter 'width' .*ZeroDivisionError"),
        (RefersToNothing, {}, "default of the hyperparameter 'a' .*nothing"),
    ],
)
def test_a_default_that_cannot_be_computed(cls: Any, values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        read(cls, **values)
    assert f"{__file__}:" in str(caught.value)
    assert read(Circle, a=1).b == 1


class Based(Small):
    heads: int = kv("head_count", default=2)
    eps: float = kv("epsilon", default=0.5)


def test_a_subclass_may_declare_a_hyperparameter_anew():
    config = read(Based)
    assert (config.heads, config.kv_heads, config.eps) == (2, 2, 0.5)
    assert read(Based, epsilon=2, eps=3).eps == 2


def test_made_by_hand():
    small: Any = Small  # type checkers want the optional ones too
    config = small(heads=3, eps=None)
    assert (config.heads, config.kv_heads, config.eps) == (3, 3, 1e-5)
    assert repr(config).startswith("Small(heads=3, kv_heads=3, width=24, eps=1e-05, window=None")
    with pytest.raises(ConfigError, match="Small has no hyperparameter head"):
        small(head=3)
    with pytest.raises(ConfigError, match="'heads' has no value: no key 'head_count' or 'n_head'"):
        small()


class Tuple(Config):
    a: tuple[int, ...] = kv("a")


class TwoKinds(Config):
    a: int | str = kv("a")


class Unknown(Config):
    a: "NoSuchType" = kv("a")  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("cls", [Tuple, TwoKinds, Unknown])
def test_a_type_that_no_hyperparameter_has(cls: type[Config]):
    with pytest.raises(ConfigError) as caught:
        read(cls, a=1)
    file, line, _ = str(caught.value).split(":", 2)
    with open(file, encoding="utf-8") as lines:
        assert lines.readlines()[int(line) - 1].strip().startswith("a: ")
    assert file == __file__


def test_a_hyperparameter_needs_a_key():
    with pytest.raises(ConfigError, match="takes the metadata key"):
        kv(hf="hidden_size")


def _scaled(hf: Any) -> float | None:
    scaling = hf.get("rope_scaling") or {}
    return scaling["factor"] if scaling.get("rope_type") == "linear" else None


class HF(Config):
    heads: int = kv("head_count", hf="num_attention_heads")
    context: int | None = kv("context", hf=("max_position_embeddings", "n_positions"))
    factor: float = kv("factor", hf=[_scaled, "rope_scaling.scale"], default=1.0)
    eos: list[int] = kv("eos", hf="eos_token_id", default=[])
    title: str = kv("general.name", hf="_name_or_path", default="")
    tied: bool = kv("tied", hf="tie_word_embeddings", default=False)
    unknown: int = kv("unknown", default=0)


@pytest.mark.parametrize(
    ("hf", "want"),
    [
        ({}, {}),
        ({"num_attention_heads": 4}, {"head_count": 4}),
        ({"num_attention_heads": None}, {}),
        ({"max_position_embeddings": 8, "n_positions": 9}, {"context": 8}),
        ({"n_positions": 9}, {"context": 9}),
        ({"max_position_embeddings": None, "n_positions": 9}, {"context": 9}),
        ({"rope_scaling": None}, {}),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4}}, {"factor": 4.0}),
        ({"rope_scaling": {"rope_type": "linear", "factor": None, "scale": 3}}, {"factor": 3.0}),
        ({"rope_scaling": {"rope_type": "yarn", "scale": 2.5}}, {"factor": 2.5}),
        ({"rope_scaling": "none"}, AttributeError),
        ({"eos_token_id": 2}, {"eos": [2]}),
        ({"eos_token_id": [2, 3]}, {"eos": [2, 3]}),
        ({"_name_or_path": "x"}, {"general.name": "x"}),
        ({"tie_word_embeddings": False}, {"tied": False}),
    ],
)
def test_from_hugging_face(hf: dict[str, Any], want: Any):
    if want is AttributeError:
        with pytest.raises(ConfigError, match="'factor' cannot be computed from"):
            HF.from_hf(hf)
        return
    found = HF.from_hf(hf)
    assert found == want
    assert [type(v) for v in found.values()] == [type(v) for v in want.values()]


@pytest.mark.parametrize(
    ("hf", "key"),
    [
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"num_attention_heads": 4.5}, "num_attention_heads"),
        ({"num_attention_heads": [4]}, "num_attention_heads"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
    ],
)
def test_a_wrong_type_in_a_hugging_face_config_is_not_converted(hf: dict[str, Any], key: str):
    with pytest.raises(ConfigError, match=rf"config\.json: key '{key}' must be"):
        HF.from_hf(hf)


def test_a_function_of_the_config_that_fails_is_named_with_its_line():
    with pytest.raises(ConfigError, match="KeyError\\('factor'\\)") as caught:
        HF.from_hf({"rope_scaling": {"rope_type": "linear"}})
    assert f"{__file__}:" in str(caught.value)


def test_an_hf_source_may_be_one_function():
    class Counted(Config):
        n: int = kv("n", hf=lambda hf: len(hf["layers"]))

    assert Counted.from_hf({"layers": [1, 2]}) == {"n": 2}


class TaggedForTensors(Config):
    experts: int = gguf("expert_count")


class WithoutType(Config):
    heads = kv("attention.head_count", default=1)  # pyright: ignore[reportGeneralTypeIssues]


class TaggedForKeys(Module):
    heads: int = kv("attention.head_count", default=1)


class ModuleWithoutType(Module):
    gate = gguf("ffn_gate")


@pytest.mark.parametrize(
    ("fields_of", "cls", "message"),
    [
        (key_fields, TaggedForTensors, r"test_config\.py:\d+.*experts.*belongs in a Module"),
        (key_fields, WithoutType, r"test_config\.py:\d+.*heads is tagged but has no type"),
        (module_fields, TaggedForKeys, r"test_config\.py:\d+.*heads.*belongs in a Config"),
        (module_fields, ModuleWithoutType, r"test_config\.py:\d+.*gate is tagged but has no type"),
    ],
)
def test_a_tag_that_would_be_overlooked_names_its_line(fields_of, cls: type, message: str):
    with pytest.raises(ConfigError, match=message):
        fields_of(cls)


class Bounded(Config):
    interval: int = kv("interval", default=0, least=1)
    scale: float = kv("scale", default=1.0)


def test_numbers_of_a_file_are_checked():
    assert read(Bounded, interval=1).interval == 1
    assert read(Bounded).interval == 0  # defaults are the author's
    with pytest.raises(ConfigError, match=r"file.gguf: arch.interval is 0; it must be 1 or more"):
        read(Bounded, interval=0)
    for value in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"arch.scale is .*, no finite number"):
            read(Bounded, scale=value)


def test_keys_of_encoders():
    plain = nn.vision_kv("block_count", "depth")
    assert plain.names == ("vision.block_count", "clip.vision.block_count")
    assert (plain.hf, plain.default, plain.least) == (("vision_config.depth",), 0, 0)
    assert nn.audio_kv("width", ["d_model", "size"]).hf == (
        "audio_config.d_model",
        "audio_config.size",
    )
    assert nn.vision_kv("side", "preprocessor:side", 7, least=1).hf == ("preprocessor:side",)
    assert nn.vision_kv("side", len).hf == (len,)
    first, otherwise = nn.vision_kv("depth", "depth", usual=12).hf
    assert first == "vision_config.depth" and otherwise({}) == 12


class Limited(Config):
    heads: int = kv("head_count", divides="width")
    width: int = kv("embedding_length", default=0)
    least: int = kv("least", default=1, most="half")
    most: int = kv("most", default=9)
    share: float = kv("share", default=0.5, most=1)
    half = property(lambda h: h.most // 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": 3, "width": 8}, "head_count is 3; it must divide 8, embedding_length"),
        ({"heads": 0, "width": 8}, "head_count is 0; it must divide 8, embedding_length"),
        ({"heads": 1, "least": 5}, "least is 5; it must be 4 or less"),
        ({"heads": 1, "share": 1.5}, "share is 1.5; it must be 1 or less"),
    ],
)
def test_a_value_beyond_its_declared_limits_is_refused(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Limited(**values)


@pytest.mark.parametrize(
    "values", [{"heads": 4, "width": 8}, {"heads": 3}, {"heads": 1, "least": 4, "share": 1.0}]
)
def test_a_value_within_its_declared_limits_is_taken(values: dict[str, Any]):
    """A width of 0 is that of an encoder that a file does not have."""
    assert Limited(**values).heads == values["heads"]


@pytest.mark.parametrize("number", [0, 4, 2000])
def test_a_head_has_one_of_three_poolings(number: int):
    """Ranking by a head whose input is pooled by ranking would have no end."""
    values = {"block_count": 1, "embedding_length": 8, "feed_forward_length": 8}
    values |= {"attention__head_count": 2, "context_length": 16}
    assert read(nn.EncoderConfig, **values, classifier__pooling_type=3).head_pools == 3
    with pytest.raises(ConfigError, match=f"classifier.pooling_type is {number}; it must be"):
        read(nn.EncoderConfig, **values, classifier__pooling_type=number)
