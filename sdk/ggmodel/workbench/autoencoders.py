"""Sparse autoencoders in SAELens's folders: features of what a module gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..convert.checkpoint import Checkpoint
from ..errors import ConfigError, FormatError, Unsupported
from ..gguf_file.buffer import Buffer
from ..ml import DType, Tensor
from ..reading import read_json
from ..runner import Steering
from ..runner.engine.probes import InGraph

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
# Settings by which TransformerLens changes a model's weights as it loads them, and so its rows.
_PROCESSING = "center_writing_weights fold_ln fold_value_biases refactor_factored_attn_matrices"
# A difference of float32 numbers above 1e-30, times this, is above 1.
_STEEP = 1e30


@dataclass(frozen=True, eq=False)
class SparseAutoencoder:
    """Features of a module's rows: relu of a product, or what of it a threshold or a rank leaves.

    Attributes:
        weights: float32 "W_enc" [width, features], "b_enc" [features], "W_dec" [features, width],
            whose rows are the features' directions, "b_dec" [width]; "threshold" [features] of
            jumprelu.
        hook: the module in TransformerLens's names, as `capture` takes them; None if unknown.
        centred: b_dec is subtracted from rows (apply_b_dec_to_input).
        k: features of a row that count, the largest (topk); None for all.
        scale: float32 [features], by which features are multiplied before they are compared
            (rescale_acts_by_decoder_norm), or 1.
    """

    weights: Mapping[str, np.ndarray]
    hook: str | None = None
    centred: bool = True
    k: int | None = None
    scale: Any = 1

    @classmethod
    def load(cls, folder: str | Path) -> SparseAutoencoder:
        """Reads cfg.json and sae_weights.safetensors.

        Raises:
            FormatError: a file is missing or damaged, or tensors do not fit each other.
            Unsupported: another architecture, activation or normalisation, or features of rows of
                a model that TransformerLens has changed; names it.
        """
        folder = Path(folder)
        config = read_json(folder / CONFIG)
        kind, k = _kind(config, folder / CONFIG)
        with closing(Buffer.open(folder / WEIGHTS)) as buffer:
            stored = Checkpoint(folder, config, [buffer]).arrays
            weights = {name: np.array(stored[name], np.float32) for name in stored}
        weights.pop("scaling_factor", None)  # of files whose finetuning_scaling_factor is off
        if "log_threshold" in weights:
            weights["threshold"] = np.exp(weights.pop("log_threshold"))
        width, features = (*weights.get("W_enc", np.zeros(0)).shape, 0)[:2]
        shapes = {"W_enc": (width, features), "b_enc": (features,), "W_dec": (features, width)}
        shapes |= {"b_dec": (width,)} | ({"threshold": (features,)} if kind == "jumprelu" else {})
        shown = {name: x.shape for name, x in weights.items()}
        if shown != shapes or not width or not 0 < (k or 1) <= features:
            raise FormatError(
                f"{folder / WEIGHTS} has {shown!s:.300}; {kind} needs {', '.join(shapes)}, W_enc "
                "[width, features] and the others accordingly, and a k of at most all features"
            )
        hook = _told(config, "hook_name")
        rescaled = config.get("rescale_acts_by_decoder_norm")
        scale = np.linalg.norm(weights["W_dec"], axis=1) if rescaled else 1
        return cls(weights, hook, config.get("apply_b_dec_to_input", True), k, scale)

    def encode(self, rows: np.ndarray) -> np.ndarray:
        """Features float32 [n, features], none negative, of rows [n, width].

        Raises:
            ConfigError: the rows have another width.
        """
        bias = self.weights["b_dec"]
        if rows.shape[-1] != len(bias):
            raise ConfigError(
                f"rows of width {rows.shape[-1]}, but these are features of {len(bias)} numbers; "
                f"capture {self.hook or 'the module that they were trained on'}"
            )
        rows = np.asarray(rows, np.float32) - (bias if self.centred else 0)
        values = (rows @ self.weights["W_enc"] + self.weights["b_enc"]) * self.scale
        if "threshold" in self.weights:
            values[values <= self.weights["threshold"]] = 0
        if self.k is not None:
            others = np.argpartition(-values, self.k - 1, axis=-1)[..., self.k :]
            np.put_along_axis(values, others, 0, axis=-1)
        return np.maximum(values, 0)

    def decode(self, features: np.ndarray) -> np.ndarray:
        """Rows float32 [n, width] of features [n, features].

        Raises:
            ConfigError: there is another number of features.
        """
        directions, values = self.weights["W_dec"], np.asarray(features, np.float32)
        if values.shape[-1:] != (len(directions),):
            raise ConfigError(f"features {list(values.shape)}; rows have {len(directions)} of them")
        return values / self.scale @ directions + self.weights["b_dec"]

    def largest(self, count: int = 5) -> InGraph:
        """An expression for `capture`: features are computed in the graph, and only the largest
        are copied, float32 [tokens, 2 · count], for `pairs`.

        Raises:
            ConfigError: there are fewer features.
        """
        w, features = self.weights, len(self.weights["b_enc"])
        if not 1 <= count <= features:
            raise ConfigError(f"{count} features of a row; there are {features:,}")
        kept = min(count, self.k or count)
        bias = w["b_enc"] - (w["b_dec"] @ w["W_enc"] if self.centred else 0)
        arrays = [w["W_enc"].T, bias, np.broadcast_to(self.scale, bias.shape)]
        arrays += [w["threshold"]] if "threshold" in w else []

        def computed(x: Tensor, encoder: Tensor, bias: Tensor, *more: Tensor) -> Tensor:
            values = (encoder.mulmat_full_prec(x) + bias) * more[0]
            for threshold in more[1:]:  # a factor of 0 up to it, and of 1 above
                values = values * (values - threshold).scale(_STEEP).clamp(0, 1)
            values, rows = values.relu(), x.dim(1)
            ids = values.top_k(kept).contiguous()
            each = values.reshape(1, features, rows).rows(ids).reshape(kept, rows)
            return ids.cast(DType.F32).concat(each, 0)

        return InGraph(computed, *arrays)

    @staticmethod
    def pairs(captured: np.ndarray) -> list[list[tuple[int, float]]]:
        """The features above 0 that `largest` captured, by token, the largest first: (number,
        value)."""
        ids, values = np.split(captured, 2, axis=-1)
        return [
            [(int(i), float(v)) for i, v in zip(*row, strict=True) if v > 0]
            for row in zip(ids, values, strict=True)
        ]

    def top(self, rows: np.ndarray, count: int = 5) -> list[list[tuple[int, float]]]:
        """For each row its largest features above 0, the largest first: (number, value)."""
        encoded = self.encode(rows)
        ids = np.argsort(-encoded, axis=-1, kind="stable")[:, :count]
        values = np.take_along_axis(encoded, ids, -1)
        return self.pairs(np.concatenate([ids.astype(np.float32), values], -1))

    def steering(self, feature: int, layer: int | None = None) -> Steering:
        """The direction of a feature as a steering vector.

        Args:
            layer: the one that it is added to; None is that of `hook`.

        Raises:
            ConfigError: there is no such feature, or `hook` names no layer's result.
        """
        directions = self.weights["W_dec"]
        if not 0 <= feature < len(directions):
            raise ConfigError(f"feature {feature}; there are 0 to {len(directions) - 1}")
        named = re.fullmatch(r"blocks\.(\d+)\.hook_resid_(pre|post)", self.hook or "")
        if layer is None and named is not None:
            layer = int(named[1]) - (named[2] == "pre")
        if layer is None or layer < 0:
            raise ConfigError(f"{self.hook} is no layer's result; name the layer to steer")
        return Steering({layer: directions[feature]})


def _told(config: Mapping[str, Any], key: str) -> Any:
    """A setting, which SAELens 6 keeps in `metadata`."""
    metadata = config.get("metadata")
    return config.get(key) or (metadata.get(key) if isinstance(metadata, dict) else None)


def _kind(config: Mapping[str, Any], path: Path) -> tuple[str, int | None]:
    """The architecture, and the number of features of a row where it is limited."""
    processing = _told(config, "model_from_pretrained_kwargs") or {}
    if not isinstance(processing, dict):
        raise FormatError(f"{path}: model_from_pretrained_kwargs is {processing!r:.80}, no object")
    for key in (key for key in _PROCESSING.split() if processing.get(key)):
        raise Unsupported(
            f"{path}: model_from_pretrained_kwargs has {key}, by which TransformerLens changes the "
            "model; captured rows are the unchanged model's. Set it to false where it changes "
            "nothing, as center_writing_weights with RMSNorm; otherwise take other features"
        )
    kind = config.get("architecture", "standard")
    named = "activation_fn_str" if config.get("activation_fn_str") else "activation_fn"
    activation = config.get(named) or "relu"
    if (kind, activation) == ("standard", "topk"):
        kind = "topk"
    unsupported = {
        "architecture": kind not in ("standard", "jumprelu", "topk"),
        named: activation not in ("relu", kind),
        "normalize_activations": config.get("normalize_activations") not in (None, False, "none"),
        "finetuning_scaling_factor": bool(config.get("finetuning_scaling_factor")),
    }
    for key in (key for key, wrong in unsupported.items() if wrong):
        raise Unsupported(
            f"{path}: {key} is {config.get(key)!r:.80}; standard (relu), jumprelu and topk are "
            "supported, without normalisation and scaling factor, which SAELens can fold"
        )
    k, more = config.get("k"), config.get("activation_fn_kwargs")
    if k is None and isinstance(more, dict):
        k = more.get("k")
    if kind == "topk" and (not isinstance(k, int) or k < 1):
        raise FormatError(f"{path}: k is {k!r:.80}; topk needs a number of features")
    return kind, k if kind == "topk" else None
