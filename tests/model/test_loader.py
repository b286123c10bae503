"""The reflective loader: small declarations against made-up tensors."""

import time
from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pytest

from ggmodel import Module, Tensor, gguf
from ggmodel.errors import ArchitectureError, ConfigError, LoadError
from ggmodel.gguf_file import MemorySource
from ggmodel.model import LoadReport, fill
from ggmodel.model.module import module_fields
from ggmodel.nn import ExpertLinear, LayerNorm, Linear, RMSNorm


class ByName:
    """Stands in for a backend: the weight of a name is the name."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, name: str) -> Any:
        self.asked.append(name)
        return name


def load(model: Module, *names: str, ignore: tuple[str, ...] = (), **shapes: Any) -> LoadReport:
    """Fills a model from tensors of one element, and of numpy shapes given as name=shape with
    "__" for the dots."""
    tensors = dict.fromkeys(names, (1,))
    tensors |= {n.replace("__", "."): shape for n, shape in shapes.items()}
    source = MemorySource({}, {n: np.zeros(s, np.float32) for n, s in tensors.items()})
    return fill(model, ByName(), source.tensors, "test", ignore)


def hyper(**values: Any) -> Any:
    return SimpleNamespace(**values)


def lacking(report: LoadReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(m.field, m.tried) for m in report.missing]


# names


class Leaf(Module):
    weight: Tensor = gguf("weight")
    bias: Tensor | None = gguf("bias")


class Block(Module):
    q: Leaf = gguf("attn_q")


class TransparentBlock(Module):
    inner: Block


class Shared(Module):
    gate: Leaf = gguf("ffn_gate")


class Named(Module):
    blocks: list[Block] = gguf("blk", n=2)


class Transparent(Module):
    blocks: list[TransparentBlock] = gguf("blk", n=1)


class TransparentTag(Module):
    block: Block = gguf()


class TransparentList(Module):
    items: list[Leaf] = gguf(n=2)


class TensorList(Module):
    gates: list[Tensor] = gguf("gate", n="count")


class Dotted(Module):
    factors: Tensor = gguf("rope_freqs.weight")


class Suffixed(Module):
    shared: Shared = gguf(suffix="_shexp")


class Prefixed(Module):
    vision: Shared = gguf("v", prefix="tile_", suffix="_x")


class Around(Module):
    shared: Shared = gguf(prefix="b_", suffix="_y")


class NestedAround(Module):
    around: Around = gguf("m", prefix="a_", suffix="_z")


class RootInside(Module):
    freqs: Tensor = gguf("rope_freqs.weight", root=True)
    q: Leaf = gguf("q")


class Rooted(Module):
    blocks: list[RootInside] = gguf("blk", n=2)


class RootInSuffixed(Module):
    inner: RootInside = gguf("m", suffix="_shexp")


class RootModule(Module):
    inner: Block = gguf("v", root=True)


class HoldsRootModule(Module):
    outer: RootModule = gguf("deep")


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Named, ["blk.0.attn_q.weight", "blk.1.attn_q.weight"]),
        (Transparent, ["blk.0.attn_q.weight"]),
        (TransparentTag, ["attn_q.weight"]),
        (TransparentList, ["0.weight", "1.weight"]),
        (TensorList, ["gate.0", "gate.1", "gate.2"]),
        (Dotted, ["rope_freqs.weight"]),
        (Suffixed, ["ffn_gate_shexp.weight"]),
        (Prefixed, ["v.tile_ffn_gate_x.weight"]),
        (NestedAround, ["m.a_b_ffn_gate_y_z.weight"]),
        (Rooted, ["rope_freqs.weight", "blk.0.q.weight", "blk.1.q.weight"]),
        (RootInSuffixed, ["rope_freqs.weight", "m.q_shexp.weight"]),
        (HoldsRootModule, ["v.attn_q.weight"]),
    ],
)
def test_full_names(cls: type[Module], names: list[str]):
    report = load(cls(hyper(count=3)), *names)
    assert report.problems() == []
    assert {name for name, _ in report.bound} == set(names)
    lost = load(cls(hyper(count=3)))
    assert {n for m in lost.missing for n in m.tried} == set(names)


def test_the_weights_are_put_in_the_fields():
    model = Rooted()
    load(model, "rope_freqs.weight", "blk.0.q.weight", "blk.1.q.weight", "blk.1.q.bias")
    assert [b.freqs for b in model.blocks] == ["rope_freqs.weight"] * 2
    assert [b.q.weight for b in model.blocks] == ["blk.0.q.weight", "blk.1.q.weight"]
    assert [b.q.bias for b in model.blocks] == [None, "blk.1.q.bias"]


def test_the_report_tells_which_tensor_fills_which_field():
    report = load(Named(), "blk.0.attn_q.weight", "blk.1.attn_q.weight")
    assert report.bound == [
        ("blk.0.attn_q.weight", "blocks[0].q.weight"),
        ("blk.1.attn_q.weight", "blocks[1].q.weight"),
    ]


def test_modules_get_the_hyperparameters_and_their_scope():
    config = hyper()
    model = Named(config)
    load(model, "blk.0.attn_q.weight", "blk.1.attn_q.weight")
    assert [b.scope for b in model.blocks] == ["blk.0", "blk.1"]
    assert model.blocks[1].q.scope == "q"
    assert model.blocks[1].q.config is config


# alternates


class Inner(Module):
    q: Leaf = gguf("q", "query")


class Outer(Module):
    inner: Inner = gguf("attn", "self_attn")


NAMES = ("attn.q", "attn.query", "self_attn.q", "self_attn.query")  # the outermost varies slowest


@pytest.mark.parametrize("there", range(4))
def test_each_product_of_alternates_is_found(there: int):
    model = Outer()
    report = load(model, f"{NAMES[there]}.weight")
    assert report.problems() == []
    assert model.inner.q.weight == f"{NAMES[there]}.weight"


@pytest.mark.parametrize("first", range(4))
def test_the_first_alternate_that_exists_wins(first: int):
    model = Outer()
    report = load(model, *(f"{n}.weight" for n in NAMES[first:]))
    assert model.inner.q.weight == f"{NAMES[first]}.weight"
    assert report.unused == [f"{n}.weight" for n in NAMES[first + 1 :]]


def test_all_products_are_tried_outermost_slowest():
    assert lacking(load(Outer())) == [("inner.q.weight", tuple(f"{n}.weight" for n in NAMES))]


class BigInner(Module):
    q: Leaf = gguf("q")
    k: Leaf = gguf("k")


class BigOuter(Module):
    inner: BigInner = gguf("attn", "self_attn")


def test_weight_and_bias_never_come_from_different_alternates():
    model = Outer()
    report = load(model, "attn.query.weight", "attn.q.bias")
    assert model.inner.q.weight is None
    assert lacking(report) == [("inner.q.weight", ("attn.q.weight",))]
    assert report.unused == ["attn.query.weight"]


def test_a_module_never_mixes_two_alternates_of_its_own_name():
    report = load(BigOuter(), "attn.q.weight", "self_attn.q.weight", "self_attn.k.weight")
    assert [n for n, _ in report.bound] == ["attn.q.weight"]
    assert lacking(report) == [("inner.k.weight", ("attn.k.weight",))]


def test_an_optional_bias_of_another_alternate_stays_unused():
    model = Outer()
    report = load(model, "attn.q.weight", "self_attn.query.bias")
    assert model.inner.q.bias is None
    assert report.unused == ["self_attn.query.bias"]


class RootAndAlternates(Module):
    inner: RootInside = gguf("attn", "self_attn")


def test_a_root_tensor_does_not_decide_between_alternates():
    model = RootAndAlternates()
    report = load(model, "rope_freqs.weight", "self_attn.q.weight")
    assert report.problems() == []
    assert model.inner.q.weight == "self_attn.q.weight"


class Tied(Module):
    embed: Leaf = gguf("token_embd")
    head: Leaf = gguf("output", "token_embd")


@pytest.mark.parametrize(("more", "head"), [((), "token_embd"), (("output.weight",), "output")])
def test_one_tensor_may_serve_two_fields(more: tuple[str, ...], head: str):
    model = Tied()
    assert load(model, "token_embd.weight", *more).problems() == []
    assert model.embed.weight == "token_embd.weight"
    assert model.head.weight == f"{head}.weight"


# optional


class Optional(Module):
    norm: RMSNorm | None = gguf("q_norm")
    inner: Outer | None = gguf("deep")
    sinks: Tensor | None = gguf("sinks")
    several: list[Leaf] | None = gguf("more", n=2)
    gaps: list[Leaf | None] = gguf("gap", n=3)


def test_what_is_optional_and_absent_is_none():
    model = Optional()
    assert load(model).problems() == []
    assert (model.norm, model.inner, model.sinks, model.several) == (None, None, None, None)
    assert model.gaps == [None, None, None]


def test_what_is_optional_and_there_is_filled():
    model = Optional()
    names = ["q_norm.weight", "deep.attn.q.weight", "sinks", "more.0.weight", "more.1.weight"]
    assert load(model, *names, "gap.1.weight").problems() == []
    assert model.norm is not None
    assert model.inner is not None
    assert model.several is not None
    assert model.norm.weight == "q_norm.weight"
    assert model.inner.inner.q.weight == "deep.attn.q.weight"
    assert model.sinks == "sinks"
    assert [m.weight for m in model.several] == names[3:]
    assert [g and g.weight for g in model.gaps] == [None, "gap.1.weight", None]


def test_an_optional_module_with_some_of_its_tensors_must_have_all():
    report = load(Optional(), "deep.attn.q.bias", "more.0.weight")
    assert lacking(report) == [
        ("inner.inner.q.weight", ("deep.attn.q.weight",)),
        ("several[1].weight", ("more.1.weight",)),
    ]


class OptionalRoot(Module):
    inner: RootInside | None = gguf("attn")


class OnlyRoot(Module):
    freqs: Tensor = gguf("rope_freqs.weight", root=True)


class OptionalOnlyRoot(Module):
    rope: OnlyRoot | None = gguf("rope")


def test_a_root_tensor_does_not_keep_an_optional_module():
    model = OptionalRoot()
    report = load(model, "rope_freqs.weight")
    assert model.inner is None
    assert report.missing == []
    assert report.unused == ["rope_freqs.weight"]


def test_a_module_of_root_tensors_alone_is_kept():
    model = OptionalOnlyRoot()
    assert load(model, "rope_freqs.weight").problems() == []
    assert model.rope is not None
    assert model.rope.freqs == "rope_freqs.weight"


# interfaces


class Dense(Module):
    up: Leaf = gguf("ffn_up")


class Experts(Module):
    router: Leaf = gguf("ffn_gate_inp")
    up: Leaf = gguf("ffn_up_exps")


class Union(Module):
    ffn: Dense | Experts


class Unions(Module):
    layers: list[Union] = gguf("blk", "layers", n="layers")


class DirectUnions(Module):
    layers: list[Dense | Experts] = gguf("blk", n=3)


DENSE, EXPERTS = ["ffn_up"], ["ffn_gate_inp", "ffn_up_exps"]


@pytest.mark.parametrize(("names", "kind"), [(DENSE, Dense), (EXPERTS, Experts)])
def test_a_union_is_what_the_file_has(names: list[str], kind: type):
    model = Union()
    report = load(model, *(f"{n}.weight" for n in names))
    assert report.problems() == []
    assert type(model.ffn) is kind
    assert model.ffn.up.weight == f"{names[-1]}.weight"


@pytest.mark.parametrize("outer", ["blk", "layers"])
def test_each_layer_chooses_for_itself_also_under_an_alternate(outer: str):
    model = Unions(hyper(layers=3))
    kinds = [DENSE, EXPERTS, DENSE]
    report = load(model, *(f"{outer}.{i}.{n}.weight" for i, k in enumerate(kinds) for n in k))
    assert report.problems() == []
    assert [type(layer.ffn) for layer in model.layers] == [Dense, Experts, Dense]


def test_unions_inside_lists_are_filled():
    model = DirectUnions()
    report = load(
        model, "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight", "blk.1.ffn_up.weight",
        "blk.2.ffn_up.weight",
    )  # fmt: skip
    assert report.problems() == []
    assert [type(layer) for layer in model.layers] == [Experts, Dense, Dense]
    assert model.layers[0].up.weight == "blk.0.ffn_up_exps.weight"
    assert model.layers[0].scope == "blk.0"


def test_a_complete_alternative_beats_a_part_of_another():
    model = Union()
    report = load(model, "ffn_gate_inp.weight", "ffn_up.weight")
    assert type(model.ffn) is Dense
    assert report.missing == []
    assert report.unused == ["ffn_gate_inp.weight"]


class Pair(Module):
    first: Tensor = gguf("up", shape=(2, 3))
    second: Tensor = gguf("down", shape=(3, 2))


class SwappedPair(Pair):
    first: Tensor = gguf("down", shape=(2, 3))
    second: Tensor = gguf("up", shape=(3, 2))


class Pairs(Module):
    ffn: Pair | SwappedPair


@pytest.mark.parametrize(("up", "kind"), [((3, 2), Pair), ((2, 3), SwappedPair)])
def test_of_alternatives_with_the_same_names_the_shapes_decide(up: tuple, kind: type):
    model = Pairs()
    load(model, up=up, down=up[::-1]).check()
    assert type(model.ffn) is kind


def test_of_an_incomplete_alternative_the_rest_is_missed():
    report = load(Union(), "ffn_gate_inp.weight")
    assert lacking(report) == [("ffn.up.weight", ("ffn_up_exps.weight",))]


def test_without_any_alternative_the_names_of_all_are_told():
    report = load(Union())
    names = ("ffn_up.weight", "ffn_gate_inp.weight", "ffn_up_exps.weight")
    assert lacking(report) == [("ffn", names)]


class Nothing(Module):
    def forward(self, x: Any) -> Any:
        return x


class Bias(Module):
    bias: Tensor | None = gguf("bias")


class MaybeEmpty(Module):
    ffn: Nothing | Dense


class EmptyFirst(Module):
    ffn: Bias | Experts


def test_an_alternative_without_tensors_is_for_files_without_them():
    with_tensors, without = MaybeEmpty(), MaybeEmpty()
    assert load(with_tensors, "ffn_up.weight").problems() == []
    assert type(with_tensors.ffn) is Dense
    assert load(without).problems() == []
    assert type(without.ffn) is Nothing


def test_an_alternative_that_needs_nothing_does_not_hide_a_broken_one():
    report = load(EmptyFirst(), "ffn_gate_inp.weight")
    assert lacking(report) == [("ffn.up.weight", ("ffn_up_exps.weight",))]


class FeedForward(Protocol):
    def forward(self, x: Any) -> Any: ...


class Abstract(Module, ABC):
    @abstractmethod
    def forward(self, x: Any) -> Any: ...


class Concrete(Abstract):
    up: Leaf = gguf("ffn_up")

    def forward(self, x: Any) -> Any:
        return x


class Base(Module):
    """A bare base: neither fields nor forward."""


class Derived(Base):
    up: Leaf = gguf("ffn_up")


class ByProtocol(Module):
    ffn: FeedForward = gguf("m")


class ByUntaggedProtocol(Module):
    ffn: FeedForward


class ByAbstract(Module):
    ffn: Abstract = gguf("m")


class ByBase(Module):
    ffn: Base = gguf("m")


class ByModule(Module):
    ffn: Module = gguf("m")


@pytest.mark.parametrize(
    ("cls", "given", "name"),
    [
        (ByProtocol, Concrete, "m.ffn_up.weight"),
        (ByUntaggedProtocol, Dense, "ffn_up.weight"),
        (ByAbstract, Concrete, "m.ffn_up.weight"),
        (ByBase, Derived, "m.ffn_up.weight"),
        (ByModule, Dense, "m.ffn_up.weight"),
    ],
)
def test_what_the_constructor_has_put_in_a_field_is_filled(cls: Any, given: Any, name: str):
    model, concrete = cls(), given()
    model.ffn = concrete
    report = load(model, name)
    assert report.problems() == []
    assert model.ffn is concrete
    assert concrete.up.weight == name


@pytest.mark.parametrize("cls", [ByProtocol, ByAbstract, ByBase, ByModule])
def test_an_interface_without_an_instance_is_the_authors_error(cls: Any):
    with pytest.raises(ConfigError, match=r"ffn is typed by an interface.*constructor"):
        load(cls())


def test_an_untagged_interface_without_an_instance_is_the_authors_own_attribute():
    assert load(ByUntaggedProtocol()).problems() == []


class Chosen(Module):
    layers: list[FeedForward] = gguf("blk", "layers")

    def __init__(self, config: Any = None):
        super().__init__(config)
        self.layers = [Dense(), Experts(), Concrete()]


@pytest.mark.parametrize("outer", ["blk", "layers"])
def test_instances_in_a_list_are_filled_also_under_an_alternate(outer: str):
    model = Chosen()
    before = list(model.layers)
    names = [f"{outer}.{i}.{n}.weight" for i, k in enumerate([DENSE, EXPERTS, DENSE]) for n in k]
    assert load(model, *names).problems() == []
    assert model.layers == before
    assert [layer.up.weight for layer in before] == [names[0], names[2], names[3]]  # type: ignore[attr-defined]


class Wrapped(Module):
    chosen: Chosen = gguf("a", "b")


def test_instances_survive_the_try_of_an_alternate_that_does_not_exist():
    model = Wrapped()
    given = Chosen()
    model.chosen = given
    kinds = enumerate([DENSE, EXPERTS, DENSE])
    assert load(model, *(f"b.blk.{i}.{n}.weight" for i, k in kinds for n in k)).problems() == []
    assert [type(layer) for layer in given.layers] == [Dense, Experts, Concrete]


class WithInstance(Module):
    ffn: Dense | Experts | None = gguf("m")
    act: Nothing | None = gguf("act")


def test_an_instance_of_the_constructor_decides_a_union():
    model = WithInstance()
    model.ffn = Experts()
    report = load(model, "m.ffn_up.weight", "m.ffn_up_exps.weight")
    assert lacking(report) == [("ffn.router.weight", ("m.ffn_gate_inp.weight",))]


def test_an_optional_instance_whose_tensors_are_all_missing_collapses_too():
    model = WithInstance()
    model.ffn = Dense()
    assert load(model).problems() == []
    assert model.ffn is None


def test_an_optional_instance_that_needs_no_tensors_stays():
    model, act = WithInstance(), Nothing()
    model.act = act
    load(model)
    assert model.act is act


def test_only_weights_that_are_kept_are_asked_for():
    weights = ByName()
    names = ["ffn_gate_inp.weight", "ffn_up.weight"]
    source = MemorySource({}, {n: np.zeros(1, np.float32) for n in names})
    fill(Union(), weights, source.tensors, "test")
    assert weights.asked == ["ffn_up.weight"]


# errors


class Shaped(Module):
    linear: Linear = gguf("l", shape=("wide", 3))
    norm: LayerNorm = gguf("n", shape=("wide",))
    experts: ExpertLinear | None = gguf("e", shape=("wide", 3, "count"))
    table: Tensor | None = gguf("t", shape=(None, 2))
    rows: list[Linear] | None = gguf("r", n=1, shape=("wide", None))


GOOD = {"l__weight": (3, 4), "n__weight": (4,)}
SHAPED = {"wide": 4, "count": 2}


@pytest.mark.parametrize(
    ("shapes", "line"),
    [
        ({"l__weight": (4, 3)}, "l.weight (linear.weight) is [3, 4], not [4, 3]"),
        ({"l__weight": (1, 3, 4)}, None),
        ({"l__weight": (2, 3, 4)}, "l.weight (linear.weight) is [4, 3, 2], not [4, 3]"),
        ({"l__weight": (12,)}, "l.weight (linear.weight) is [12], not [4, 3]"),
        ({"l__bias": (3,)}, None),
        ({"l__bias": (4,)}, "l.bias (linear.bias) is [4], not [3]"),
        ({"n__bias": (3,)}, "n.bias (norm.bias) is [3], not [4]"),
        ({"e__weight": (2, 3, 4), "e__bias": (2, 3)}, None),
        ({"e__weight": (3, 3, 4)}, "e.weight (experts.weight) is [4, 3, 3], not [4, 3, 2]"),
        ({"t": (2, 9)}, None),
        ({"t": (3, 9)}, "t (table) is [9, 3], not [any, 2]"),
        ({"r__0__weight": (7, 4)}, None),
        ({"r__0__weight": (7, 5)}, "r.0.weight (rows[0].weight) is [5, 7], not [4, any]"),
    ],
)
def test_shapes(shapes: dict[str, tuple[int, ...]], line: str | None):
    report = load(Shaped(hyper(**SHAPED)), **{**GOOD, **shapes})
    assert report.problems() == ([] if line is None else [f"shape    {line}"])


def test_wrong_shapes_are_errors_even_when_not_strict():
    report = load(Shaped(hyper(**SHAPED)), **{**GOOD, "n__weight": (5,)})
    with pytest.raises(LoadError, match=r"n\.weight"):
        report.check(strict=False)


class TooFewSizes(Module):
    linear: Linear = gguf("l", shape=("wide",))


class NoSuchSize(Module):
    linear: Linear = gguf("l", shape=("wide", "height"))


@pytest.mark.parametrize(
    ("cls", "config", "message"),
    [
        (TooFewSizes, {"wide": 4}, r"linear: shape=\('wide',\) has 1 sizes; Linear.weight"),
        (NoSuchSize, {"wide": 1}, "height has no value"),
        (NoSuchSize, {"wide": 1, "height": "x"}, "height is 'x', not an integer"),
        (NoSuchSize, {"wide": 1, "height": True}, "height is True, not an integer"),
        (TensorList, {}, "count has no value"),
        (TensorList, {"count": -1}, "gates: 'count' says -1 entries"),
    ],
)
def test_sizes_that_make_no_sense(cls: Any, config: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        load(cls(hyper(**config)), "l.weight")


def test_a_hostile_number_of_layers_is_refused_at_once():
    began = time.monotonic()
    with pytest.raises(ConfigError, match="'layers' says 4000000000 entries; the file has 1"):
        load(Unions(hyper(layers=4_000_000_000)), "blk.0.ffn_up.weight")
    assert time.monotonic() - began < 5


def test_missing_tells_the_field_all_names_and_the_nearest():
    report = load(Outer(), "self_attn.qry.weight", "unrelated", ignore=("unrelated",))
    (missing,) = report.missing
    assert missing.field == "inner.q.weight"
    assert missing.tried == tuple(f"{n}.weight" for n in NAMES)
    assert missing.nearest == ("self_attn.qry.weight",)
    with pytest.raises(LoadError) as caught:
        report.check()
    text = str(caught.value)
    assert "'test'" in text
    for part in ("inner.q.weight", *(f"{n}.weight" for n in NAMES), "self_attn.qry.weight"):
        assert part in text
    assert caught.value.report is report


def test_the_nearest_name_is_one_of_the_same_layer():
    names = [f"blk.{i}.{'attn_q' if i != 1 else 'attn_qq'}.weight" for i in range(2)]
    assert load(Named(), *names).missing[0].nearest == ("blk.1.attn_qq.weight",)


def test_the_nearest_name_may_be_one_in_use():
    report = load(Named(), "blk.0.attn_q.weight", "blk.1.attn_q.bias")
    assert report.unused == []
    assert report.missing[0].nearest == ("blk.1.attn_q.bias",)


def test_missing_is_an_error_even_when_not_strict():
    with pytest.raises(LoadError, match="missing"):
        load(Dotted()).check(strict=False)


def test_unused_tensors_are_errors_by_default():
    report = load(Dotted(), "rope_freqs.weight", "stray.weight")
    assert report.unused == ["stray.weight"]
    with pytest.raises(LoadError, match=r"unused +stray\.weight\n.*strict=False"):
        report.check()


def test_unused_tensors_are_warnings_when_not_strict():
    report = load(Dotted(), "rope_freqs.weight", "stray.weight")
    with pytest.warns(UserWarning, match=r"does not use stray\.weight"):
        report.check(strict=False)
    assert report.problems(strict=False) == []


@pytest.mark.parametrize(
    ("pattern", "ignored"),
    [("stray", False), ("stray.*", True), ("*.inv_freq", False), ("STRAY.*", False)],
)
def test_unused_tensors_that_match_an_ignore_pattern(pattern: str, ignored: bool):
    report = load(Dotted(), "rope_freqs.weight", "stray.weight", ignore=(pattern,))
    assert report.ignored == (["stray.weight"] if ignored else [])
    assert report.unused == ([] if ignored else ["stray.weight"])


def test_a_fitting_file_gives_no_error_and_no_warning():
    load(Dotted(), "rope_freqs.weight").check(strict=True)
    load(Dotted(), "rope_freqs.weight").check(strict=False)


def test_a_long_report_is_cut_and_says_so():
    with pytest.raises(LoadError, match="and 12 more; `ggmodel check FILE`"):
        load(TensorList(hyper(count=20))).check()


def test_a_file_of_another_architecture_is_reported_quickly():
    names = [f"layer.{i}.part_{k}.weight" for i in range(80) for k in range(10)]
    began = time.monotonic()
    report = load(TensorList(hyper(count=800)), *names)
    assert (len(report.missing), len(report.unused)) == (800, 800)
    assert time.monotonic() - began < 20


# declarations


class Parent(Module):
    x: Linear = gguf("x")
    y: Linear = gguf("y")


class MadeOptional(Parent):
    x: Linear | None


class Renamed(Parent):
    y = gguf("z")


def test_a_subclass_may_annotate_or_tag_a_field_anew():
    optional = MadeOptional()
    assert load(optional, "y.weight").problems() == []
    assert optional.x is None
    assert load(Renamed(), "x.weight", "z.weight").problems() == []
    assert list(module_fields(Renamed)) == ["x", "y"]


class Plain(Module):
    size: int
    names: list[str]
    note: str = "no field"
    x: Linear = gguf("x")


def test_other_annotations_are_left_alone():
    assert list(module_fields(Plain)) == ["x"]
    assert load(Plain(), "x.weight").problems() == []


class TaggedInt(Module):
    first: Linear = gguf("first")
    size: int = gguf("size")


class TaggedArray(Module):
    x: np.ndarray = gguf("x")


class Nested(Module):
    x: list[list[Linear]] = gguf("x", n=1)


class BareList(Module):
    x: list = gguf("x", n=1)


class Undefined(Module):
    x: "NoSuchClass" = gguf("x")  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (TaggedInt, "TaggedInt.size is tagged"),
        (TaggedArray, "TaggedArray.x is tagged"),
        (Nested, "Nested.x is tagged"),
        (BareList, "BareList.x is tagged"),
        (Undefined, "'NoSuchClass' of Undefined.x cannot be resolved"),
    ],
)
def test_a_bad_annotation_names_the_line(cls: Any, message: str):
    with pytest.raises(ConfigError, match=message) as caught:
        load(cls())
    file, line, _ = str(caught.value).split(":", 2)
    with open(file, encoding="utf-8") as lines:
        text = lines.readlines()[int(line) - 1].strip()
    assert file == __file__
    assert text.startswith(("size: int", "x: "))


class NoLength(Module):
    x: list[Linear] = gguf("x")


def test_a_list_needs_a_length():
    with pytest.raises(ConfigError, match=r"x: a list needs its length, gguf\(\.\.\., n=\.\.\.\)"):
        load(NoLength())


class Breaks(Module):
    def __init__(self, config: Any = None):
        super().__init__(config)
        self.width = config.no_such_thing


class HoldsBreaks(Module):
    part: Breaks = gguf("part")


def test_a_constructor_that_fails_is_named_with_its_line():
    with pytest.raises(ArchitectureError, match=r"part cannot be made.*no_such_thing") as caught:
        load(HoldsBreaks(hyper()))
    assert f"{__file__}:" in str(caught.value)
    assert isinstance(caught.value.__cause__, AttributeError)
