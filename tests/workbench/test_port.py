"""`ggmodel port`: exact fits, layers as they are wired, lines of hyperparameters; with transformers
three classes, whole: see `make test-port`."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggmodel.errors import ArchitectureError
from ggmodel.model import find
from ggmodel.model.registry import find_hf, supported
from ggmodel.workbench.port import Ported, algebra, layouts, mending, prove
from ggmodel.workbench.port.attention import Missing, Scores, attention_of
from ggmodel.workbench.port.blocks import FeedForward, Layer, Wiring
from ggmodel.workbench.port.experts import Experts, experts_of, rule_of
from ggmodel.workbench.port.facts import Keys
from ggmodel.workbench.port.recording import Call, Recording
from ggmodel.workbench.port.whole import Whole
from ggmodel.workbench.port.writing import Writer

ROOT = Path(__file__).parents[2]
CODE = ROOT / "sdk/ggmodel/workbench/port"
CLASSES = (ROOT / "benchmarks/port/classes.txt").read_text("utf-8").split()
REFERENCE = ROOT / ".cache/reference/bin/python"
RANDOM = np.random.default_rng(3)


def drawn(*shape: int) -> Any:
    return RANDOM.standard_normal(shape)


SINCE = {"ArceeForCausalLM"}  # families that came into models/ after the command was written


def test_no_class_of_the_list_was_of_a_family_in_models():
    assert len(CLASSES) == len(set(CLASSES)) == 60
    for name in {*CLASSES} - SINCE:
        with pytest.raises(ArchitectureError):
            find_hf([name])


def test_the_code_names_no_family():
    names = {a.replace("-", "") for a in supported() if len(a) > 3}
    names |= {re.sub(r"For.*|LMHeadModel|Decoder$", "", c).lower() for c in CLASSES}
    names |= {re.sub(r"For.*|Model$", "", c).lower() for a in supported() for c in hf_of(a)}
    code = "\n".join(p.read_text("utf-8") for p in CODE.glob("*.py"))
    words = {w.lower() for w in re.findall(r"[A-Za-z0-9]+", code)}
    assert not words & {n for n in names if len(n) > 3}


def test_the_page_has_the_measured_tables():
    folder = ROOT / "benchmarks/port"
    measure = runpy.run_path(str(folder / "measure.py"))
    results, mended, own = (
        json.loads((folder / f"{name}.json").read_text("utf-8"))
        for name in ("results", "mended", "own")
    )
    page = (ROOT / "docs/port.md").read_text("utf-8")
    assert measure["table"](results, mended) in page
    assert measure["own_table"](own) in page
    for name, result in mended.items():
        assert f"| `{name}` | {result['lines']} |" in page
        assert result["ok"] and result["lines"] <= measure["FEW"]


def test_lines_of_a_person_are_those_of_the_file_and_all_keys():
    measure = runpy.run_path(str(ROOT / "benchmarks/port/measure.py"))
    begun, file = "a = 1\nb = 2\n", "a = 1\n\nb = 3\nc = 4\n"
    added = {"set": {"x": 1}, "begin": {"y": False, "z": 2}}
    assert measure["by_a_person"](added, begun, file) == 3 + 2
    assert measure["by_a_person"]({"set": {"x": 1}}, begun, None) == 1


def test_the_page_tells_a_changed_config_from_a_file_of_a_person():
    measure = runpy.run_path(str(ROOT / "benchmarks/port/measure.py"))
    wrong = {"ok": False, "missing": "no block", "largest_error": None, "lines": 0, "seconds": 1}
    green = {"ok": True, "lines": 7}
    names = ("XmodForCausalLM", "BambaForCausalLM")  # mended/ has a file of the second alone
    rows = measure["table"](dict.fromkeys(names, wrong), dict.fromkeys(names, green)).splitlines()
    assert rows[0] == (
        "0 of 60 are green without a line by a person, 2 with at most 20, "
        "of which 1 by a changed config.json:"
    )
    assert "| `XmodForCausalLM` | no block; green with a changed config.json |" in rows
    assert "| `BambaForCausalLM` | no block; green with 7 lines by a person |" in rows


def hf_of(architecture: str) -> tuple[str, ...]:
    return find(architecture).hf_architectures


class TestFits:
    def test_a_sum_has_its_factors(self):
        x, y = drawn(9, 4), drawn(9, 4)
        sources = {"x": x, "y": y, "other": drawn(9, 4)}
        assert algebra.combination(x + 0.25 * y, sources) == {"x": 1.0, "y": 0.25}

    def test_a_product_is_no_sum(self):
        x, y = drawn(9, 4), drawn(9, 4)
        assert algebra.combination(x * y, {"x": x, "y": y}) is None

    @pytest.mark.parametrize("name", algebra.ACTIVATIONS)
    def test_each_activation_is_told_from_the_others(self, name: str):
        x, up = drawn(9, 16), drawn(9, 16)
        made = algebra.ACTIVATIONS[name](x)
        assert algebra.activated(made, x) == name
        assert algebra.gated(made * up, {"g": x, "u": up}) == algebra.Gated(name, "u", "g")

    @pytest.mark.parametrize("halves", ["first", "swapped"])
    def test_halves_of_one_matrix(self, halves: str):
        both = drawn(9, 16)
        a, b = both[:, :8], both[:, 8:]
        made = algebra.ACTIVATIONS["silu"](a) * b if halves == "first" else None
        made = algebra.ACTIVATIONS["silu"](b) * a if made is None else made
        assert algebra.gated(made, {"up": both}) == algebra.Gated("silu", "up", "up", halves)

    @pytest.mark.parametrize("kind", ["rms", "layer"])
    @pytest.mark.parametrize("plus_one", [False, True])
    def test_a_norm_and_its_epsilon(self, kind: str, plus_one: bool):
        x, w, b = drawn(9, 16), drawn(16), drawn(16)
        c = x - x.mean(-1, keepdims=True) if kind == "layer" else x
        y = c / np.sqrt((c**2).mean(-1, keepdims=True) + 1e-5) * (w + plus_one) + b
        found = algebra.norm_of(x, y, {"weight": w, "bias": b})
        assert found == algebra.Norm(kind, 1e-5, plus_one, True, True, 16)

    def test_another_map_is_no_norm(self):
        x = drawn(9, 16)
        assert algebra.norm_of(x, np.tanh(x), {"weight": drawn(16)}) is None

    @pytest.mark.parametrize("neighbours", [False, True])
    @pytest.mark.parametrize("dims", [4, 8])
    def test_a_rotation(self, neighbours: bool, dims: int):
        x = drawn(2, 11, 8)
        found = algebra.rotation(x, rotated(x, dims, neighbours, 100.0))
        assert found is not None
        assert (found.dims, found.neighbours, found.base) == (dims, neighbours, 100.0)

    def test_a_rotation_backwards(self):
        x = drawn(2, 11, 8)
        forwards, backwards = (
            algebra.rotation(x, rotated(x, 8, False, 100.0, sign)) for sign in (1, -1)
        )
        assert forwards is not None and backwards is not None
        assert backwards.backwards and backwards.base == 100.0
        assert not forwards.backwards and not forwards.alike(backwards)

    def test_no_rotation_and_another_map(self):
        x = drawn(2, 11, 8)
        assert algebra.rotation(x, x) == algebra.Rotation(0, False, ())
        assert algebra.rotation(x, x + 1) is None

    def test_rows_in_another_order(self):
        x, order = drawn(12), RANDOM.permutation(12).reshape(3, 4)
        found = algebra.places(0.5 * x[order], x, 0.5)
        assert found is not None and np.array_equal(found, order)
        assert algebra.places(x[order] + 0.1, x) is None


def rotated(x: Any, dims: int, neighbours: bool, base: float, sign: int = 1) -> Any:
    """x [heads, n, d], rotated as arXiv 2104.09864 says; the sign is that of its angles."""
    y, half = x.copy(), dims // 2
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if neighbours else (i, i + half)
        angle = sign * np.arange(x.shape[1]) * base ** (-2 * i / dims)
        y[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        y[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
    return y


class TestAttention:
    """Four queries' heads for two of keys, of 8 numbers, in a text of 30 tokens."""

    def recorded(
        self, window: int = 30, cap: float = 0.0, noise: float = 0.0
    ) -> tuple[Scores, dict[str, Call]]:
        n, x = 30, drawn(30, 16)
        made = {"q": drawn(n, 32), "k": drawn(n, 16), "v": drawn(n, 16)}
        q, k, v = (made[p].reshape(n, -1, 8).swapaxes(0, 1) for p in "qkv")
        q, k = (rotated(y, 8, False, 100.0) for y in (q, k))
        k, v = np.repeat(k, 2, 0), np.repeat(v, 2, 0)
        scores = 0.3 * q @ k.swapaxes(1, 2)
        scores = cap * np.tanh(scores / cap) if cap else scores
        distance = np.arange(n)[:, None] - np.arange(n)
        scores = np.where((distance >= 0) & (distance < window), scores, -1e30) + noise * scores**2
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        out = shares @ v
        merged = out.swapaxes(0, 1).reshape(n, -1)
        calls = {p: Call(p, "Linear", x, y, {}, i) for i, (p, y) in enumerate(made.items())}
        calls["o"] = Call("o", "Linear", merged, drawn(n, 16), {}, 9)
        return Scores("attn", scores, q, k, v, out, 5), calls

    def test_heads_scale_and_rope(self):
        a = attention_of(*self.recorded(), {}, {})
        assert (a.q.source, a.k.source, a.v.source, a.out) == ("q", "k", "v", "o")
        assert (a.heads, a.kv_heads, a.head_dim, a.scale, a.softcap) == (4, 2, 8, 0.3, 0.0)
        assert (a.window, a.causal, a.rope.dims, a.rope.base) == (None, True, 8, 100.0)

    def test_a_window(self):
        assert attention_of(*self.recorded(window=7), {}, {}).window == 7

    def test_a_cap(self):
        a = attention_of(*self.recorded(cap=10.0), {}, {})
        assert (a.softcap, a.scale) == (10.0, 0.3)

    def test_scores_of_another_kind_are_missing(self):
        with pytest.raises(Missing, match="no scaled product"):
            attention_of(*self.recorded(noise=0.1), {}, {})

    def test_queries_of_nowhere_are_missing(self):
        scores, calls = self.recorded()
        del calls["q"]
        with pytest.raises(Missing, match="queries are no results"):
            attention_of(scores, calls, {}, {})


@pytest.mark.parametrize("scored", [False, True])
def test_the_bias_of_a_choice_of_experts(scored: bool):
    logits, bias = drawn(40, 6), drawn(6)
    shares = 1 / (1 + np.exp(-logits))
    chosen = np.argsort(-((logits if scored else shares) + bias), axis=-1)[:, :2]
    weights = 2 * np.take_along_axis(shares, chosen, -1)
    small = {"other": drawn(6), "bias": bias}
    assert rule_of(logits, chosen, weights, small, "") == (True, False, 2.0, "bias", scored)


class TestExperts:
    """Two of four experts, 8 numbers wide, for each of 30 tokens."""

    def found(self, bias: str, normed: bool = False) -> Experts:
        x, router, both, down = drawn(30, 16), drawn(4, 16), drawn(4, 16, 16), drawn(4, 16, 8)
        shares, offset = 1 / (1 + np.exp(-x @ router.T)), drawn(4)
        chosen = np.argsort(-shares - offset, axis=-1)[:, :2]
        weights = np.take_along_axis(shares, chosen, -1)
        y = np.zeros_like(x)
        for i, row in enumerate(x):
            for expert, weight in zip(chosen[i], weights[i], strict=True):
                gate, up = np.split(both[expert] @ row, 2)
                y[i] += weight * down[expert] @ (algebra.ACTIVATIONS["silu"](gate) * up)
        w, result = drawn(16), y
        given = {"gate_up_proj": both, "down_proj": down}
        calls = {
            "mlp.gate": Call("mlp.gate", "Router", x, x @ router.T, {"weight": router}, 1),
            "mlp.experts": Call("mlp.experts", "Experts", x, y, given, 2, [chosen, weights]),
        }
        if normed:
            result = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-3) * w
            calls["behind"] = Call("behind", "Norm", y, result, {"weight": w}, 3)
        modules: dict[str, Any] = {"layer.mlp": (x, result)}
        record = Recording(np.arange(30), y, modules, small={f"layer.{bias}": offset})
        experts = experts_of(record, "layer", calls)
        assert experts is not None
        return experts

    def test_the_rule_of_a_router(self):
        e = self.found("mlp.bias")
        assert (e.path, e.place, e.router, e.leaf) == ("mlp", "mlp", "mlp.gate", "mlp.experts")
        assert (e.count, e.used, e.ffn, e.activation) == (4, 2, 8, "silu")
        assert (e.sigmoid, e.normalize, e.scale, e.bias) == (True, False, 1.0, "mlp.bias")
        assert (e.behind, e.norm) == ("", None)

    def test_a_bias_that_a_checkpoint_has_elsewhere(self):
        e = self.found("router.bias")
        assert (e.bias, e.place) == ("router.bias", "")

    def test_a_norm_behind(self):
        e = self.found("mlp.bias", normed=True)
        assert (e.behind, e.place) == ("behind", "")
        assert e.norm == algebra.Norm("rms", 1e-3, False, True, False, 16)


PRE = [
    ("attn_norm", {"x": 1.0}),
    ("attn", {"attn_norm": 1.0}),
    ("ffn_norm", {"x": 1.0, "attn": 1.0}),
    ("ffn", {"ffn_norm": 1.0}),
    ("", {"x": 1.0, "attn": 1.0, "ffn": 1.0}),
]


class TestLayouts:
    def test_usual_layers_have_their_base(self):
        assert layouts.base_of(PRE, False) == "nn.PreNormLayer"
        assert layouts.base_of(PRE, True) == "nn.LayerNormLayer"
        aside = [*PRE[:2], ("ffn", {"attn_norm": 1.0}), PRE[-1]]
        assert layouts.base_of(aside, True) == "nn.LayerNormLayer"

    def test_long_lines_are_wrapped(self):
        rows = 'hf=Part("experts.first.weight", 0, ("expert_ffn", "expert_ffn"), axis=-1)'
        line = f'weight: Tensor = gguf("weight", {rows}, op=Transpose())'
        assert layouts.written("A", "B", [line]).splitlines() == [
            "class A(B):",
            "    weight: Tensor = gguf(",
            '        "weight",',
            f"        {rows},",
            "        op=Transpose(),",
            "    )",
        ]

    def test_another_wiring_is_written_out(self):
        wiring = [
            ("attn", {"x": 1.0}),
            ("attn_post_norm", {"x": 1.0, "attn": 0.5}),
            ("ffn", {"attn_post_norm": 1.0}),
            ("", {"attn_post_norm": 1.0, "ffn": 0.5}),
        ]
        assert layouts.base_of(wiring, True) == "Module"
        assert layouts.forward(wiring).splitlines()[3:] == [
            "        share = self.config.residual_scale",
            "        attn = self.attn(x, batch, cache)",
            "        x, attn = nn.keep_rows(outputs, x, attn)",
            "        attn_post_norm = self.attn_post_norm(x + attn.scale(share))",
            "        ffn = self.ffn(attn_post_norm)",
            "        return attn_post_norm + ffn.scale(share)",
        ]


class TestSecondFeedForward:
    """A layer whose results pass through a second part of its own width, in a module `more`."""

    def writer(self, second: str = "relu") -> Writer:
        scores, calls = TestAttention().recorded()
        a = attention_of(scores, calls, {}, {})
        for i, (name, width) in enumerate({"up": 24, "more.up": 12}.items()):
            x, up = drawn(30, 16), drawn(30, width)
            down = name.replace("up", "down")
            calls[name] = Call(name, "Linear", x, up, {}, 10 + 2 * i)
            calls[down] = Call(down, "Linear", np.maximum(up, 0), drawn(30, 16), {}, 11 + 2 * i)
        parts = (
            FeedForward(algebra.Gated("relu", "up"), "down"),
            FeedForward(algebra.Gated(second, "more.up"), "more.down"),
        )
        wiring: Wiring = [
            ("attn", {"x": 1.0}),
            ("ffn", {"x": 1.0, "attn": 1.0}),
            ("second_ffn", {"ffn": 1.0}),
            ("", {"ffn": 1.0, "second_ffn": 1.0}),
        ]
        layer = Layer("layers.0", calls, a, parts[0], {}, parts[1], wiring)
        assert layouts.named_norms(layer) == {}
        keys = Keys({"num_hidden_layers": 1}, {})
        return Writer(Whole([layer], "layers", {}, 16), keys, {}, "twice", "TwiceForCausalLM")

    def test_it_has_fields_and_tensors_of_its_own(self):
        writer = self.writer()
        writer._layer()
        text = "\n".join(writer.classes)
        assert 'second_ffn: SecondFeedForward = gguf(hf="more")' in text
        assert 'up: Linear = gguf("ffn2_up", hf="up", shape=("width", None))' in text
        assert 'down: Linear = gguf("ffn2_down", hf="down", shape=(None, "width"))' in text
        assert "second_ffn = self.second_ffn(ffn)\n        return ffn + second_ffn" in text
        assert "adapter" not in text.lower()  # adapters are of requests

    def test_another_activation_is_missing(self):
        with pytest.raises(Missing, match=r"more\.down: a second feed-forward part of another"):
            self.writer("silu")._layer()


class TestKeys:
    CONFIG = {
        "n_embd": 64,
        "n_inner": 96,
        "act": "gelu_new",
        "multiplier": 0.7,
        "norm_eps": 1e-3,
        "kinds": ["global", "local"],
        "window_size": 24,
    }
    keys = Keys(CONFIG, {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"})

    def test_sizes(self):
        size = self.keys.size
        line = 'width: int = kv("embedding_length", hf="n_embd")'
        assert size("width", "embedding_length", "hidden_size", 64) == line
        assert "n_inner" in (size("ffn", "f", "intermediate_size", 96, "inner") or "")
        assert '4 * hf["n_embd"]' in (size("ffn", "f", "intermediate_size", 256) or "")
        with pytest.raises(Missing, match="says ffn, 97"):
            size("ffn", "f", "intermediate_size", 97)

    def test_factors(self):
        assert 'hf="multiplier"' in self.keys.number("scale", "s", 0.7)
        assert 'hf["multiplier"] ** -0.5' in self.keys.number("scale", "s", 0.7**-0.5)
        assert "lambda h: 0.123" in self.keys.number("scale", "s", 0.123)

    def test_activations_and_epsilons(self):
        assert self.keys.activation("gelu_new") == (
            'activation: str = nn.activation("gelu_new", "act")'
        )
        assert self.keys.usual_eps([1e-5, 1e-5, 1e-3]) == 1e-3
        assert 'hf="norm_eps"' in (self.keys.eps(1e-3, True) or "")
        assert "lambda hf: 1e-06" in (self.keys.eps(1e-6, True) or "")

    def test_local_layers_of_a_list(self):
        lines = self.keys.windows([None, 24])
        assert 'hf="window_size"' in lines[0]
        assert 'kind == "local" for kind in hf["kinds"]' in lines[1]

    def test_several_keys_with_a_number(self):
        config = {**self.CONFIG, "n_layer": 2, "norm_epsilon": 1e-3, "other_scale": 0.7}
        first = Keys(config, {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"})
        second = Keys(config, first.common, {"eps": 1, "scale": 1})
        assert first.eps(1e-3, True) is None  # the base reads `norm_epsilon`
        assert 'hf="norm_eps"' in (second.eps(1e-3, True) or "")
        assert 'hf="multiplier"' in first.number("scale", "s", 0.7)
        assert 'hf="other_scale"' in second.number("scale", "s", 0.7)
        assert (
            first.ways
            == second.ways
            == {
                "eps": ["norm_epsilon", "norm_eps"],
                "scale": ["multiplier", "other_scale"],
            }
        )

    def test_formulas_are_ways_of_bare_keys(self):
        config = {**self.CONFIG, "n_layer": 2, "share": 44.8, "root": 0.7**-2}
        common = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
        lines = list[str]()
        for pick in range(3):
            keys = Keys(config, common, {"scale": pick})
            lines.append(keys.number("scale", "s", 0.7))
            assert keys.ways == {"scale": ["multiplier", "share / n_embd", "root ** -0.5"]}
        assert [line.partition("hf=")[2] for line in lines] == [
            '"multiplier")',
            'lambda hf: hf["share"] / hf["n_embd"])',
            'lambda hf: hf["root"] ** -0.5)',
        ]

    def test_each_way_to_say_the_base_of_local_layers_is_written(self):
        nested = "rope_parameters.sliding_attention.rope_theta"
        config = {"local_theta": 5e3, "old_theta": 5e3}
        both = {**config, "rope_parameters": {"sliding_attention": {"rope_theta": 5e3}}}
        for saved, names in (
            (config, ["local_theta", "old_theta"]),
            (both, [nested, "local_theta", "old_theta"]),
        ):
            for pick, name in enumerate(names):
                keys = Keys(saved, {}, {"local_base": pick})
                assert f'hf="{name}"' in keys.local_base(5e3)
                assert keys.ways == {"local_base": names}
        with pytest.raises(Missing, match="says the base of local layers, 7000"):
            Keys(config, {}).local_base(7e3)

    def test_a_share_of_dims_leaves_no_choice_of_keys(self):
        config = {"rotary_pct": 0.25, "rotary_dim": 8, "rotary_dims": 8}
        keys = Keys(config, {})
        assert keys.rope(8, 32, None) == ["rope_dims: int = nn.partial_rope(0.25)"]
        assert keys.ways == {}


class TestMending:
    """A file is its picks as text; it is right for as many modules as picks are 1."""

    def tried(self, monkeypatch: pytest.MonkeyPatch, ways: dict[str, list[str]]) -> Any:
        texts: list[str] = []

        def judged(tiny: object, models: str) -> mending.Judgement:
            texts.append(Path(models, "a.py").read_text("utf-8"))
            right = sum(pick == 1 for pick in json.loads(texts[-1]).values())
            return mending.Judgement(right, 0.0, "" if right == 2 else f"layers[{right}]")

        monkeypatch.setattr(mending, "judged", judged)
        tiny: Any = None
        return mending.mend(json.dumps, ways, tiny, "a"), texts

    def test_what_is_right_for_longer_is_kept(self, monkeypatch: pytest.MonkeyPatch):
        ways = {"eps": ["a", "b", "c"], "window": ["d", "e"], "scale": ["f", "g"]}
        mended, texts = self.tried(monkeypatch, ways)
        assert json.loads(mended.text) == {"eps": 1, "window": 1, "scale": 1}
        assert mended.chosen == {"eps": "b", "window": "e", "scale": "g"}
        assert len(texts) == 1 + 2 + 1 + 1

    @pytest.mark.parametrize("first", ["layers[3]", ""])
    def test_a_lesser_error_decides_only_where_no_module_diverges(
        self, monkeypatch: pytest.MonkeyPatch, first: str
    ):
        # The second key lessens the error of the whole, and leaves the number of right modules.
        def judged(tiny: object, models: str) -> mending.Judgement:
            picks = json.loads(Path(models, "a.py").read_text("utf-8"))
            return mending.Judgement(3, 0.5 if picks else 0.7, first)

        monkeypatch.setattr(mending, "judged", judged)
        tiny: Any = None
        mended = mending.mend(json.dumps, {"scale": ["a", "b"]}, tiny, "a")
        assert mended.chosen == ({} if first else {"scale": "b"})
        assert mended.first == first

    def test_the_number_of_files_is_bounded(self, monkeypatch: pytest.MonkeyPatch):
        ways = {f"h{i}": ["a", "b", "c"] for i in range(40)}
        assert len(self.tried(monkeypatch, ways)[1]) == 1 + mending._MOST

    def test_without_another_way_the_file_stays(self, monkeypatch: pytest.MonkeyPatch):
        mended, texts = self.tried(monkeypatch, {})
        assert (mended.text, mended.chosen, mended.first) == ("{}", {}, "layers[0]")
        assert len(texts) == 1


class TestPorted:
    """The verdict."""

    def test_nothing_compared_is_no_proof(self):
        assert not Ported("A").ok

    @pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
    def test_one_error_above_its_bound_is_enough(self, error: float):
        result = Ported("A", errors={"x": 1e-12, "y": error}, bounds={"x": 1e-10, "y": 1e-10})
        assert not result.ok and result.wrong == ["y"]
        assert Ported("A", errors={"x": 1e-12}, bounds={"x": 1e-10}).ok

    def test_a_missing_block_is_no_success(self):
        assert not Ported("A", missing="states", errors={"x": 0.0}, bounds={"x": 1.0}).ok


def test_a_folder_without_the_file_proves_nothing(tmp_path: Path):
    # ggmodel serves the class with a file of its own.
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}', "utf-8")
    (tmp_path / "own").mkdir()
    with pytest.raises(ArchitectureError, match="own has no file that serves LlamaForCausalLM"):
        prove(tmp_path, tmp_path / "own")


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCE.exists(), reason="`make test-port` installs transformers")
class TestClassesOfTransformers:
    def ported(self, folder: Path, config: dict[str, object], *options: str) -> Any:
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        command = [REFERENCE, "-m", "ggmodel", "port", folder, "--into", folder / "own", *options]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=ROOT)
        assert done.stdout, done.stderr
        result = json.loads(done.stdout)
        assert (done.returncode == 0) == result["ok"]
        return result

    @pytest.mark.parametrize("name", ["Kolibri1", "OPT", "CodeGen"])
    def test_a_class(self, tmp_path: Path, name: str):
        result = self.ported(tmp_path, {"architectures": [f"{name}ForCausalLM"]})
        assert result["ok"] and not result["mended"]

    def test_a_key_that_nobody_reads_is_told_from_the_one_that_is(self, tmp_path: Path):
        # The usual name comes first; the class reads `layer_norm_epsilon`.
        config = {"architectures": ["GPTJForCausalLM"], "layer_norm_eps": 1e-6}
        result = self.ported(tmp_path, config)
        assert result["ok"] and result["mended"] == {"eps": "layer_norm_epsilon"}
        file = tmp_path / "own/gptj.py"
        assert self.ported(tmp_path, config, "--prove", "--seed", "99")["ok"]
        right = file.read_text("utf-8")
        file.write_text(right.replace('hf="layer_norm_epsilon"', 'hf="layer_norm_eps"'), "utf-8")
        wrong = self.ported(tmp_path, config, "--prove", "--seed", "99")
        assert not wrong["ok"] and wrong["first"] == "layers[0].attn_norm"
