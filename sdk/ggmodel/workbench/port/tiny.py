"""A tiny model of a class of transformers, with random weights, as a checkpoint.

Needs torch and transformers.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...convert.keys import listed_classes
from ...errors import Unsupported
from ..reference import need
from ..scaffold.cases import shrunk
from .algebra import sines_of
from .recording import computing

# Sizes by transformers' common names, which each configuration maps to its own. All differ, so
# that a number of a shape tells which of them it is.
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 160,
    "max_position_embeddings": 512,
}
_OTHERS = {**SIZES, "hidden_size": 128, "num_attention_heads": 8, "intermediate_size": 112}
LONG = 222  # tokens: beyond each window, chunk and block of a tiny configuration
_WINDOW, _BLOCK, _ROTATED = 24, 8, 8
_EPSILON = 1e-3  # of norms: large, so that another one is seen
_APART = 2.0  # ratio of epsilons of several keys
_NOT_OF_A_MODEL = ("transformers_version", "id2label", "label2id", "task_specific_params")
_LAYER_COUNTS = ("num_layers", "n_layers", "encoder_layers", "decoder_layers")
_CUT = ("num_hidden_layers", "n_layer")  # with them `shrunk` keeps a layer of each kind


class Tiny:
    """A tiny model of the class that a config.json names.

    Args:
        raw: the config.json. other: with other sizes and factors, so that a number that was taken
            for a constant shows.

    Attributes:
        net: the model, in float64.

    Raises:
        NotInstalled: torch or transformers is missing.
        Unsupported: transformers lacks the class, or it cannot be made small.
    """

    def __init__(self, raw: Mapping[str, Any], other: bool = False):
        self.torch, self.transformers = need("torch"), need("transformers")
        self.transformers.logging.set_verbosity_error()
        self.transformers.logging.disable_progress_bar()
        self.name = next(iter(listed_classes(raw)), "")
        self.cls: Any = getattr(self.transformers, self.name, None)
        if not (isinstance(self.cls, type) and hasattr(self.cls, "config_class")):
            raise Unsupported(
                f"config.json names the class {self.name!r:.60}, which transformers "
                f"{self.transformers.__version__} does not have"
            )
        try:
            self.parsed = _configured(self.cls, raw, other)
            self.net = self._built()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise Unsupported(f"transformers makes no small {self.name}: {reason:.300}") from error
        self.tables = self._tables()

    def _tables(self) -> set[str]:
        """Parameters that are constant: tables of sines, and those without a gradient."""
        named = [*self.net.named_parameters()]
        tables = {n for n, p in named if p.dim() == 2 and sines_of(p.detach().numpy()) is not None}
        return tables | {n for n, p in named if not p.requires_grad}

    @property
    def config(self) -> dict[str, Any]:
        """The configuration with all defaults."""
        return json.loads(json.dumps(self.parsed.to_dict(), default=str))

    @property
    def common(self) -> dict[str, str]:
        """Transformers' common names → the configuration's own keys."""
        return {name: dict(self.parsed.attribute_map).get(name, name) for name in SIZES}

    def _built(self) -> Any:
        parsed = copy.deepcopy(self.parsed)
        parsed._experts_implementation = "eager"
        with computing(self.torch):
            options = {"attn_implementation": "eager", "dtype": self.torch.float64}
            return self.cls._from_config(parsed, **options).double().eval()

    def draw(self, seed: int) -> None:
        """Draws all weights anew, as float32 numbers. Matrices keep the scale of activations;
        norms differ from one and biases from zero. Constant tables stay."""
        torch, random = self.torch, np.random.default_rng(seed)
        saved = self.net.state_dict(keep_vars=True)
        weights = [(n, p) for n, p in self.net.named_parameters() if n not in self.tables]
        biases = [(n, b) for n, b in self.net.named_buffers() if n in saved and n.endswith("bias")]
        with torch.no_grad():
            for name, tensor in (*weights, *biases):
                if not tensor.is_floating_point() or not tensor.numel():
                    continue
                values = random.standard_normal(tuple(tensor.shape))
                if tensor.dim() < 2:
                    usual = float(tensor.mean())
                    values = 0.25 * values + (1.0 if abs(usual - 1) < 0.4 else 0.0)
                elif "embed" not in name or tensor.dim() > 2:
                    values = values / tensor.shape[-1] ** 0.5
                tensor.copy_(torch.from_numpy(values.astype(np.float32)).double())

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes a checkpoint in float32 and returns its config.json, with all defaults."""
        copy.deepcopy(self.net).float().save_pretrained(folder)
        path = folder / "config.json"
        saved = {**self.config, **json.loads(path.read_text("utf-8"))}
        saved["architectures"] = [self.name]
        path.write_text(json.dumps(saved), "utf-8")
        return saved


def _configured(cls: Any, raw: Mapping[str, Any], other: bool) -> Any:
    """The configuration of a small model: sizes by their common names, and what follows."""
    config_class = cls.config_class
    full = config_class(**{k: v for k, v in raw.items() if k != "architectures"})
    values = json.loads(json.dumps(full.to_dict(), default=str))
    values = {k: v for k, v in values.items() if k not in _NOT_OF_A_MODEL}
    names = {name: dict(full.attribute_map).get(name, name) for name in SIZES}
    small = shrunk(values)
    for name, size in (_OTHERS if other else SIZES).items():
        key = names[name]
        if isinstance(values.get(key), int) and name != "num_hidden_layers":
            small[key] = size
    layers = names["num_hidden_layers"]
    if isinstance(small.get(layers), int):
        small[layers] = max(2, min(8, small[layers])) if layers in _CUT else 2 + other
    heads, shared = (values.get(names[n]) for n in ("num_attention_heads", "num_key_value_heads"))
    if shared is not None and shared in (heads, 1):
        own = small[names["num_attention_heads"]]
        small[names["num_key_value_heads"]] = 1 if shared == 1 else own
    for key, value in values.items():
        if key not in names.values() and not isinstance(value, bool):
            small[key] = _following(key, value, small, values, names)
    if other:
        small = _changed(small)
    return config_class(**{**small, "architectures": [cls.__name__]})


def _changed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with other factors, bases, epsilons and windows: keys that had one number have
    several now, which tells who reads which."""
    result, shares, norms = dict(config), itertools.count(), itertools.count()
    for key, value in config.items():
        if isinstance(value, float) and "eps" in key:
            result[key] = 0.9 * value * _APART ** next(norms)
        elif isinstance(value, float) and re.search(r"scal|multipl|theta", key) and value != 1:
            result[key] = value * (0.9 - 0.03 * (next(shares) % 16))
        elif key.endswith("window") and value == _WINDOW:
            result[key] = value + _BLOCK + next(shares) % 16
    return result


def _following(
    key: str,
    value: Any,
    config: Mapping[str, Any],
    values: Mapping[str, Any],
    names: Mapping[str, str],
) -> Any:
    """The small value of a further key: equal sizes stay equal, epsilons and windows count."""
    small: Any = config.get(key)
    layers: Any = config.get(names["num_hidden_layers"])
    if key == "attention_types" and isinstance(value, list):
        return [[kinds, layers // len(kinds)] for kinds, _ in value]  # kinds, and how often
    if isinstance(value, list) and len(value) == values.get(names["num_hidden_layers"]):
        return (small if len(small or ()) == layers else value)[:layers]
    if isinstance(value, float):
        return _EPSILON if "eps" in key else small
    if not isinstance(value, int):
        return small
    if any(part in key for part in ("window", "chunk")) and value > _WINDOW:
        return _WINDOW
    if key.endswith("block_size") and value > _BLOCK:
        return _BLOCK
    if key == "rotary_dim":
        return min(value, _ROTATED)
    if key in _LAYER_COUNTS:
        return layers if isinstance(layers, int) else SIZES["num_hidden_layers"]
    if key.endswith(("per_tok", "topk")) and value == 1:
        return 1
    equal = {names["num_attention_heads"]: key.endswith("_heads")}
    equal |= {names[n]: value > 256 for n in ("hidden_size", "intermediate_size")}
    for name, fits in equal.items():
        if fits and value == values.get(name):
            return config[name]
    if key.endswith(("ffn_dim", "dff", "ffn_hidden_size")):
        return config.get(names["intermediate_size"], SIZES["intermediate_size"])
    return small
