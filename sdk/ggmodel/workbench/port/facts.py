"""The keys of config.json behind measured numbers: the lines of the hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...convert.from_hf import normalize
from ...errors import Error
from ...nn.decoder import sliding_layers
from .attention import Missing

# Names of activations in transformers → those of `algebra.ACTIVATIONS`.
_SAME = dict.fromkeys(("gelu_fast", "gelu_pytorch_tanh"), "gelu_new") | {"swish": "silu"}
_OTHER = re.compile(r"token|_id$|_size$|_dim$|rank|layers|heads")  # keys that are no factors
_SUBSCRIPT = re.compile(r'hf\["([^"]*)"\]')
_FORMS: dict[str, Callable[[float], float]] = {
    "{}": lambda v: v,
    "1 / {}": lambda v: 1 / v,
    "{} ** -0.5": lambda v: v**-0.5,
    "{} ** 0.5": lambda v: v**0.5,
}


def near(value: object, number: float, tolerance: float = 1e-6) -> bool:
    """Whether a value of config.json is this number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value - number) <= tolerance * max(abs(number), 1e-9)


class Keys:
    """A config.json, and what the model does with its numbers.

    Args:
        saved: the config.json of a tiny model. common: transformers' common names → its own.
        picks: hyperparameter → which of the keys with its number says it; the first by default.

    Attributes:
        ways: hyperparameter → the keys with its number, or formulas of keys, of those read so far
            that have more than one.
    """

    def __init__(
        self,
        saved: Mapping[str, Any],
        common: Mapping[str, str],
        picks: Mapping[str, int] | None = None,
    ):
        self.saved, self.common, self.picks = normalize(saved), common, picks or {}
        self.ways: dict[str, list[str]] = {}

    def _pick(self, field: str, ways: Iterable[str]) -> str | None:
        """One of the ways to say a hyperparameter; None without any."""
        each = [*dict.fromkeys(ways)]
        if len(each) > 1:
            self.ways[field] = each
        return each[min(self.picks.get(field, 0), len(each) - 1)] if each else None

    def named(self, field: str, key: str, value: float, *hints: str) -> str | None:
        """The key with a field's value: the one that is usually called so, or else one whose name
        has one of the hints in it."""
        names = [self.common.get(key, key)]
        names += [k for hint in hints for k in self.saved if hint in k]
        return self._pick(field, (k for k in names if near(self.saved.get(k), value)))

    def size(self, field: str, gguf: str, key: str, value: int, *hints: str) -> str | None:
        """The line of a size; None if `DecoderConfig` says it.

        Raises:
            Missing: no key has the number.
        """
        name = self.named(field, key, value, *hints)
        if name == key:
            return None
        source = self._formula(value) if name is None else f'"{name}"'
        if source is None:
            raise Missing(f"config.json has no key that says {field}, {value} in a tiny model")
        return f'{field}: int = kv("{gguf}", hf={source})'

    def _formula(self, value: int) -> str | None:
        for key in ("hidden_size", "num_attention_heads"):
            own = self.common.get(key, key)
            size = self.saved.get(own)
            if isinstance(size, int) and size and value % size == 0 and 1 < value // size <= 8:
                n = value // size
                named = (k for k, v in self.saved.items() if "mult" in k and v == n)
                factor = next((f'hf["{k}"]' for k in named), n)
                return f'lambda hf: {factor} * hf["{own}"]'
        double = [k for k, v in self.saved.items() if "ff" in k and near(v, 2 * value)]
        if double:
            return f'lambda hf: hf["{double[0]}"] // 2'
        return f"lambda hf: {value}" if value == 1 else None

    def activation(self, name: str) -> str | None:
        """The line of the activation; None if `DecoderConfig` says it."""
        for key, value in self.saved.items():
            if isinstance(value, str) and "act" in key and _SAME.get(value, value) == name:
                plain = (key, name) == ("hidden_act", "silu")
                return None if plain else f'activation: str = nn.activation("{value}", "{key}")'
        return f'activation: Any = property(lambda h: "{name}")'

    def number(self, field: str, gguf: str, value: float) -> str:
        """The line of a factor: of a key with the number, or one from which it follows."""
        width, layers = (self.common[n] for n in ("hidden_size", "num_hidden_layers"))
        sizes = {n: self.saved.get(n) or 1 for n in (width, layers)}
        forms = {
            "{}": _FORMS["{}"],
            f'{{}} / hf["{width}"]': lambda v: v / sizes[width],
            f'{{}} / hf["{layers}"] ** 0.5': lambda v: v / sizes[layers] ** 0.5,
            **_FORMS,
        }
        sources = dict[str, str]()  # of each formula of bare keys
        for form, f in forms.items() if value != 1 else ():
            for key, got in self.saved.items():
                factor = near(got, got) and got > 0 and not _OTHER.search(key)
                if not factor or key in self.common.values() or not near(f(got), value, 1e-7):
                    continue
                source = form.format(f'hf["{key}"]')
                formula = _SUBSCRIPT.sub(r"\1", source)
                sources[formula] = f'"{key}"' if form == "{}" else f"lambda hf: {source}"
        if way := self._pick(field, sources):
            return f'{field}: float = kv("{gguf}", hf={sources[way]})'
        return f"{field}: Any = property(lambda h: {value:.9g})"

    def usual_eps(self, values: Sequence[float]) -> float:
        """The epsilon of most norms, of those that config.json has if it has one."""
        named = [v for v in values if self._eps_keys(v)] or [*values]
        return max(named, key=named.count, default=0.0)

    def _eps_keys(self, value: float) -> list[str]:
        return [k for k, v in self.saved.items() if "eps" in k and near(v, value, 1e-5)]

    def eps(self, value: float, layer_norms: bool) -> str | None:
        """The line of the epsilon of norms; None if the base says it."""
        usual = ["rms_norm_eps"]
        if layer_norms:
            usual = ["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"]
        present = [k for k in usual if k in self.saved]
        if layer_norms and not present and near(value, 1e-5, 1e-5):
            return None
        keys = self._eps_keys(value)
        key = self._pick("eps", [*(k for k in present[:1] if k in keys), *keys])
        if present and key == present[0]:
            return None
        source = f"lambda hf: {value:g}" if key is None else f'"{key}"'
        kind = "" if layer_norms else "rms_"
        more = "" if key is not None else f", default={value:g}"
        return f'eps: float = kv("attention.layer_norm_{kind}epsilon", hf={source}{more})'

    def context(self, rows: int = 0, first: int = 0) -> str | None:
        """The line of the context length; None if `DecoderConfig` says it.

        Args:
            rows: of the table of positions, of which `first` are of none; 0 without a table.
        """
        usual = "max_position_embeddings"
        names = [self.common.get(usual, usual), "n_positions", "max_positions", "n_ctx"]
        key = next((k for k in names if isinstance(self.saved.get(k), int)), None)
        if key is None:
            source = f"lambda hf: {rows - first or 2048}"
        elif rows and self.saved[key] == rows and first:
            source = f'lambda hf: hf["{key}"] - {first}'
        elif rows and self.saved[key] != rows - first:
            raise Missing(f"a table of {rows} positions for {key} {self.saved[key]}")
        else:
            source = f'"{key}"'
        plain = source == f'"{usual}"'
        return None if plain else f'context: int = kv("context_length", hf={source})'

    def rope(self, dims: int, head_dim: int, base: float | None) -> list[str]:
        """The lines of rotary positions."""
        lines = list[str]()
        if dims != head_dim:
            part = dims / head_dim
            parts = [self.saved.get(k) for k in ("partial_rotary_factor", "rotary_pct")]
            key = None if part in parts else self.named("rope_dims", "", dims, "rotary")
            lines.append(
                f"rope_dims: int = nn.partial_rope({part:g})"
                if key is None
                else f'rope_dims: int = kv("rope.dimension_count", hf="{key}")'
            )
        if base is None:
            return lines
        usual = ["rope_theta"] if near(self._theta(), base, 1e-4) else []
        key = self._pick("rope_base", [*usual, *self._with(base)])
        if key is None or key not in usual:
            source = f"lambda hf: {base:.6g}" if key is None else f'"{key}"'
            lines.append(f'rope_base: float = kv("rope.freq_base", hf={source}, default=10000.0)')
        return lines

    def _with(self, base: float) -> list[str]:
        """The keys with the base of a rope."""
        return [k for k, v in self.saved.items() if near(v, base, 1e-4)]

    def _theta(self) -> Any:
        """The base of ropes that `nn.RopeConfig` reads."""
        nested = self.saved.get("rope_parameters") or {}
        whole = (nested.get("full_attention") or {}).get("rope_theta", 1e4)
        return self.saved.get("rope_theta", whole)

    def local_base(self, base: float | None) -> str:
        """The line of the base of local layers' ropes.

        Raises:
            Missing: config.json has no such number.
        """
        if base is None:
            raise Missing("local layers that rotate by a rule of their own")
        nested = (self.saved.get("rope_parameters") or {}).get("sliding_attention") or {}
        own = ["rope_parameters.sliding_attention.rope_theta"]
        own = own if near(nested.get("rope_theta"), base, 1e-4) else []
        key = self._pick("local_base", [*own, *self._with(base)])
        if key is None:
            raise Missing(f"config.json has no key that says the base of local layers, {base:.6g}")
        more = 'default="rope_base"'
        return f'local_base: float = kv("rope.freq_base_swa", hf="{key}", {more})'

    def windows(self, windows: Sequence[int | None]) -> list[str]:
        """The lines of local layers.

        Args:
            windows: that of each layer; None for none.

        Raises:
            Missing: config.json does not say which layers have one.
        """
        size = max((w for w in windows if w), default=0)
        if not size:
            return []
        key = self.named("window", "sliding_window", size, "window")
        if key is None:
            raise Missing(f"config.json has no key that says the window, {size} here")
        local = [w is not None for w in windows]
        lines = [f'window: int = kv("attention.sliding_window", hf="{key}", default=0)']
        pattern = 'pattern: list = kv("attention.sliding_window_pattern", hf={}, default=[1])'
        if self._sliding() == local:
            lines.append(pattern.format("nn.sliding_layers"))
        elif all(local):
            lines.append("local: Any = property(lambda h: [h.window > 0] * h.layers)")
        else:
            lines.append(pattern.format(self._listed(local)))
        return lines

    def _sliding(self) -> list[bool] | None:
        try:
            return sliding_layers(self.saved)
        except Error:
            return None

    def _listed(self, local: Sequence[bool]) -> str:
        for key, values in self.saved.items():
            if not isinstance(values, list) or len(values) != len(local):
                continue
            pairs = [*zip(map(str, values), local, strict=True)]
            by_flag = [{v for v, flag in pairs if flag == kind} for kind in (True, False)]
            if len(by_flag[0]) == 1 and not by_flag[0] & by_flag[1]:
                return f'lambda hf: [kind == "{by_flag[0].pop()}" for kind in hf["{key}"]]'
        raise Missing("config.json has no list that says which layers are local")
