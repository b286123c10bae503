"""Folders that sentence-transformers writes: prompts, pooling, and the layers behind it.

`modules.json` lists modules in their order, the transformer first. Their settings become metadata:
`pooling_type` where llama.cpp has such a pooling, else the keys `embedding.*` that
docs/embeddings.md lists. A module, a setting or an activation that would change the rows and is
unsupported is an error by its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FormatError, Unsupported
from ..reading import parse_json, read_file, read_json
from .checkpoint import HEADS, tasks_of

# Key of an older 1_Pooling/config.json that is true → mode, in the order in which rows are joined.
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_NUMBERS = {"mean": 1, "cls": 2, "lasttoken": 3}  # of `pooling_type`
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_ACTIVATIONS = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_SETTINGS = "config_sentence_transformers.json"
# Names of the transformer's settings; the first that exists counts.
_TRANSFORMER = tuple(
    f"sentence_{kind}_config.json"
    for kind in "bert roberta distilbert camembert albert xlm-roberta xlnet".split()
)
# Settings of a transformer without effect on rows of whole texts.
_HARMLESS = ("max_seq_length", "do_lower_case", "unpad_inputs", "transformer_task")
_HARMLESS_ARGS = "torch_dtype dtype attn_implementation trust_remote_code add_pooling_layer".split()
_TASKS = ("feature-extraction", "sequence-classification", "text-generation")
_WITH_TASKS = "custom_st.Transformer"  # of a folder's own code
_FOLDER = re.compile(r"(\d+)_(\w+)")
_NO_TOKENS = 1 << 24  # a length of tokenizers that stands for none


@dataclass
class Folder:
    """The settings of a folder.

    Attributes:
        pooling: the `pooling_type`; None without a module that pools, and for other ways.
        metadata: further keys, without the architecture in front.
        layers: those behind the pooling, as `embedding.layers` has them.
        tensors: their names in a GGUF file → those in the checkpoint.
        judges: token ids of "yes" and "no", of a model whose last logits rank documents.
    """

    pooling: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    tensors: dict[str, str] = field(default_factory=dict)
    judges: tuple[int, int] | None = None


def read_folder(path: Path, tensors: Iterable[str] = ()) -> Folder:
    """The settings of a folder; none of one without `modules.json`.

    Args:
        tensors: the names of all tensors of the checkpoint.

    Raises:
        FormatError: a file is damaged, or a module's tensors are missing.
        Unsupported: a module, a setting or an activation is unsupported; names it.
    """
    folder, names = Folder(), set(tensors)
    for name in HEADS:
        ends = (f"{name}.{end}" for end in ("weight", "bias"))
        folder.tensors |= {end: end for end in ends if end in names}
    if not (path / "modules.json").is_file():
        return folder
    data = read_file(path / "modules.json", "text_file_bytes")
    modules = parse_json(b'{"modules":' + data + b"}", str(path / "modules.json"))["modules"]
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise FormatError(f"{path / 'modules.json'} should be a list of modules; get it again")
    _read_settings(path, folder)
    reader = _Modules(path, folder, names)
    for module in modules:
        reader.read(module)
    return folder


def check_read(folder: Folder, read: Collection[str], path: Path) -> None:
    """Leaves out the layers that an architecture computes by itself.

    Args:
        read: the names of tensors that its declaration reads.

    Raises:
        Unsupported: one has a bias, an activation or a residual that the architecture leaves out.
    """
    for name in sorted({one.partition(".")[0] for one in read}):
        layer = next(one for one in folder.layers if one.split()[0] == name)
        if layer.split()[1:] != ["identity"] or folder.layers[0] != layer:
            raise Unsupported(
                f"{path}: {layer!r} behind this architecture is unsupported; its linear layers "
                "come first and have no activation"
            )
        folder.layers.remove(layer)


class _Modules:
    """Reads modules in their order into a `Folder`."""

    def __init__(self, path: Path, folder: Folder, tensors: set[str]):
        self._path, self._folder, self._tensors = path, folder, tensors

    def read(self, module: Mapping[str, Any]) -> None:
        """Reads an entry of modules.json."""
        name, at = str(module.get("type", "")), str(module.get("path", ""))
        if name == _WITH_TASKS and tasks_of(self._path):  # that computes with a task's adapter
            name = "sentence_transformers.models.Transformer"
        kind = name.rpartition(".")[2]
        reads = getattr(self, f"_read_{kind.lower()}", None)
        if reads is None or not name.startswith("sentence_transformers."):
            raise Unsupported(
                f"{self._path / 'modules.json'}: the module {name!r:.200} is unsupported; "
                "there are Transformer, Pooling, Dense, LayerNorm, Normalize, Dropout, LogitScore"
            )
        if at and (fit := _FOLDER.fullmatch(at)) is None:
            raise Unsupported(
                f"{self._path / 'modules.json'}: the folder {at!r:.200} of a module is not named "
                "as sentence-transformers does, such as 1_Pooling"
            )
        reads(at, fit[1] if at else "0")

    def _config(self, at: str) -> tuple[dict[str, Any], Path]:
        file = self._path / at / "config.json"
        return (read_json(file) if file.is_file() else {}), file

    def _read_transformer(self, at: str, number: str) -> None:
        if at:
            raise Unsupported(
                f"{self._path}: the transformer lies in a folder of its own, {at}; save the model "
                "again with a newer sentence-transformers"
            )
        _read_transformer(self._path, self._folder)

    def _read_pooling(self, at: str, number: str) -> None:
        config, file = self._config(at)
        modes = modes_of(config, file)
        if len(modes) == 1 and modes[0] in _NUMBERS:
            self._folder.pooling = _NUMBERS[modes[0]]
        else:
            self._folder.metadata["embedding.pooling"] = modes
        if not config.get("include_prompt", True):
            self._folder.metadata["embedding.include_prompt"] = False

    def _read_dense(self, at: str, number: str) -> None:
        config, file = self._config(at)
        _check_input(config, file)
        name, parts = f"dense_{number}", [f"dense_{number}"]
        parts.append(activation_of(config.get("activation_function"), str(file), "tanh"))
        self._take(at, {f"{name}.weight": "linear.weight"})
        if config.get("bias", True):
            self._take(at, {f"{name}.bias": "linear.bias"})
        if config.get("use_residual"):
            parts.append("residual")
            if config.get("in_features") != config.get("out_features"):
                self._take(at, {f"{name}_residual.weight": "residual.weight"})
        self._folder.layers.append(" ".join(parts))

    def _read_layernorm(self, at: str, number: str) -> None:
        self._take(at, {f"norm_{number}.{end}": f"norm.{end}" for end in ("weight", "bias")})
        self._folder.layers.append(f"norm_{number}")

    def _read_normalize(self, at: str, number: str) -> None:
        _check_input(*self._config(at))
        self._folder.layers.append("normalize")

    def _read_dropout(self, at: str, number: str) -> None:
        """Without effect outside of training."""

    def _read_logitscore(self, at: str, number: str) -> None:
        config, file = self._config(at)
        ids = config.get("true_token_id"), config.get("false_token_id")
        if not (isinstance(ids[0], int) and isinstance(ids[1], int)):
            raise Unsupported(
                f"{file}: true_token_id and false_token_id are {ids[0]!r:.40} and {ids[1]!r:.40}; "
                "only a score of two tokens is supported"
            )
        if config.get("module_input_name", "causal_logits") != "causal_logits":
            raise Unsupported(f"{file}: module_input_name is not 'causal_logits'")
        self._folder.judges = ids[0], ids[1]

    def _take(self, at: str, names: Mapping[str, str]) -> None:
        for name, source in names.items():
            if f"{at}.{source}" not in self._tensors:
                raise FormatError(
                    f"{self._path / at} has no tensor {source!r} in a model.safetensors; where "
                    "there is a pytorch_model.bin, save the model again as safetensors"
                )
            self._folder.tensors[name] = f"{at}.{source}"


def modes_of(config: Mapping[str, Any], file: Path) -> list[str]:
    """The ways of pooling of a module's config, in the order in which their rows are joined.

    Raises:
        Unsupported: there is no such way.
    """
    if "pooling_mode" in config:
        given = config["pooling_mode"]
        modes = [str(m) for m in given] if isinstance(given, list) else [str(given)]
    else:
        modes = [mode for key, mode in _OLD_MODES.items() if config.get(key)] or ["mean"]
    old = [key for key, on in config.items() if on and key.startswith("pooling_mode_")]
    unknown = [key for key in old if key not in _OLD_MODES]
    unknown += [mode for mode in modes if mode not in _OLD_MODES.values()]
    if unknown or not modes:
        raise Unsupported(
            f"{file}: pooling by {' and '.join(unknown) or 'nothing'} is unsupported; supported "
            f"are {', '.join(_OLD_MODES.values())}"
        )
    return modes


def activation_of(name: Any, where: str, default: str) -> str:
    """The name of an activation that a config gives as a class of torch.

    Raises:
        Unsupported: it is none of torch's, or an unsupported one.
    """
    if name is None:
        return default
    kind = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.") or kind not in _ACTIVATIONS:
        raise Unsupported(
            f"{where}: the activation {name!r:.120} is unsupported; supported are torch's "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[kind]


def _check_input(config: Mapping[str, Any], file: Path) -> None:
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise Unsupported(
                f"{file}: {key} is {config[key]!r:.60}; only 'sentence_embedding' is supported"
            )


def _read_settings(path: Path, folder: Folder) -> None:
    """Prompts, the similarity and the like of config_sentence_transformers.json."""
    file, metadata = path / _SETTINGS, folder.metadata
    config = read_json(file) if file.is_file() else {}
    kind = config.get("model_type", "SentenceTransformer")
    if kind not in ("SentenceTransformer", "CrossEncoder"):
        raise Unsupported(f"{file}: model_type {kind!r:.60} is unsupported")
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise FormatError(f"{file}: prompts should be texts by their names; get the file again")
    if prompts:
        metadata["embedding.prompt_names"] = list(prompts)
        metadata["embedding.prompts"] = list(prompts.values())
    if (default := config.get("default_prompt_name")) is not None:
        if default not in prompts:
            raise FormatError(f"{file}: default_prompt_name {default!r:.60} is no name of prompts")
        metadata["embedding.default_prompt"] = default
    if kind == "CrossEncoder":
        if config.get("activation_fn") is not None:
            activation = activation_of(config["activation_fn"], f"{file}: activation_fn", "")
            metadata["classifier.score_activation"] = activation
        return
    similarity = config.get("similarity_fn_name")
    if similarity is not None:
        if similarity not in _SIMILARITIES:
            raise Unsupported(f"{file}: similarity_fn_name {similarity!r:.60} is unsupported")
        metadata["embedding.similarity"] = similarity
    if config.get("truncate_dim") is not None:
        metadata["embedding.dimensions"] = _positive(config["truncate_dim"], file, "truncate_dim")


def _read_transformer(path: Path, folder: Folder) -> None:
    """The transformer's settings, and the length that its tokenizer cuts texts to."""
    file = next((path / name for name in _TRANSFORMER if (path / name).is_file()), None)
    config = {} if file is None else read_json(file)
    for key, value in config.items():
        if not (key in _HARMLESS or value in (None, {}, []) or _harmless(key, value)):
            raise Unsupported(f"{file}: {key} is {value!r:.120}, which is unsupported")
    task = config.get("transformer_task", _TASKS[0])
    if task not in _TASKS:
        raise Unsupported(f"{file}: transformer_task {task!r:.60} is unsupported")
    if config.get("do_lower_case") and not _lowercases(path):
        raise Unsupported(
            f"{file}: do_lower_case is true, but the tokenizer keeps capital letters; give the "
            "texts in small letters, and remove the key"
        )
    most = config.get("max_seq_length")
    if most is None and (path / "tokenizer_config.json").is_file():
        most = read_json(path / "tokenizer_config.json").get("model_max_length")
        most = most if isinstance(most, int | float) and 0 < most < _NO_TOKENS else None
    if most is not None:
        folder.metadata["embedding.max_tokens"] = _positive(most, file or path, "max_seq_length")


def _harmless(key: str, value: Any) -> bool:
    if key in ("model_args", "model_kwargs", "config_args", "config_kwargs"):
        return isinstance(value, dict) and set(value) <= {*_HARMLESS_ARGS}
    if key == "module_output_name":
        return value in ("token_embeddings", "scores", "causal_logits")
    if key == "modality_config" and isinstance(value, dict):
        outputs = {name: part.get("method_output_name") for name, part in value.items()}
        # With messages, texts go through the chat template.
        plain = outputs == {"text": "last_hidden_state"}
        return plain or (
            set(outputs.values()) == {"logits"} and set(outputs) <= {"text", "message"}
        )
    return False


def _lowercases(path: Path) -> bool:
    """Whether the tokenizer of a folder makes letters small."""
    file = path / "tokenizer.json"
    normalizer = (read_json(file).get("normalizer") if file.is_file() else None) or {}
    parts = normalizer.get("normalizers") or [normalizer]
    return any(part.get("lowercase") or part.get("type") == "Lowercase" for part in parts)


def _positive(value: Any, file: Path, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1 << 31:
        raise FormatError(f"{file}: {key} is {value!r:.40}, no count; get the file again")
    return int(value)


def score_activation(config: Mapping[str, Any], file: Path) -> str | None:
    """The activation that config.json of an older cross-encoder names for its scores."""
    block = config.get("sentence_transformers")
    name = block.get("activation_fn") if isinstance(block, Mapping) else None
    name = config.get("sbert_ce_default_activation_function") if name is None else name
    return None if name is None else activation_of(name, str(file), "")
