"""Folders as sentence-transformers writes them, small: of a BERT, a Qwen 3, cross-encoders
and classifiers, with tokenizers that read any text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ggmodel.workbench.golden import weights
from tests.convert.folders import stored, write_model, write_safetensors
from tests.golden.files import load_embeddings, load_golden

TEXTS = [
    "who baked the bread",
    "The small fox lived in a forest, and baked bread!",
    "bread",
    "the fox the fox the fox the fox the fox the fox the fox the fox",
]
PAIRS = [
    ("who baked bread", "the fox baked the bread"),
    ("who baked bread", "a forest"),
    ("the fox", " ".join(TEXTS)),
]
SHORT = ["the fox", "who baked  bread"]  # for a tokenizer of letters
WORDS = "who baked the bread small fox lived in a forest and".split()
ENGLISH = "word_embeddings", "embed_tokens", "lm_head"


def tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The weights of goldens, by name and shape."""
    return weights.weight(name.replace("LayerNorm", "norm"), shape)


def held(golden: Any, size: int) -> dict[str, np.ndarray]:
    """The weights of a golden, for a vocabulary of another size."""
    kept: dict[str, np.ndarray] = {}
    for name, x in golden.weights().items():
        table = any(part in name for part in ENGLISH)
        kept[name] = tensor(name, (size, x.shape[1])) if table else x
    return kept


def wordpiece(folder: Path, cased: bool = False) -> int:
    """A tokenizer of WordPiece with words and letters; its size."""
    letters = [chr(i) for i in range(33, 127)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    tokens += [c for c in letters if c not in tokens] + [f"##{c}" for c in letters]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=not cased)  # type: ignore[assignment]
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    made.decoder = decoders.WordPiece()  # type: ignore[assignment]
    around = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
    )
    made.add_special_tokens(tokens[:5])
    made.save(str(folder / "tokenizer.json"))
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {f"{n}_token": token for n, token in zip(names, tokens, strict=False)}
    config = {**special, "tokenizer_class": "BertTokenizerFast", "do_lower_case": not cased}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(tokens)


def byte_pairs(folder: Path, closing: bool, template: str | None = None) -> int:
    """A tokenizer of byte pairs, which knows "yes" and "no"; its size.

    Args:
        closing: texts end with a token.
        template: a chat template.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    pieces = [*special, *alphabet, "ye", "yes", "no"]
    made = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [("y", "e"), ("ye", "s"), ("n", "o")])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    if closing:
        made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
        )
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config["tokenizer_class"] = "Qwen2TokenizerFast"
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(pieces)


def letters(folder: Path) -> int:
    """RoBERTa's tokenizer, of letters alone; its size."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<unk>", "<pad>", "</s>", "<mask>"]  # the padding is 2, as in the golden
    pieces = [*special, *alphabet, "th"]
    made = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [("t", "h")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    made.post_processor = processors.RobertaProcessing(  # type: ignore[assignment]
        ("</s>", 3), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    names = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>"}
    names |= {"pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    config = {f"{name}_token": token for name, token in names.items()}
    config["tokenizer_class"] = "RobertaTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(pieces)


def write_modules(
    folder: Path,
    modules: Sequence[tuple[str, dict[str, Any] | None, Mapping[str, tuple[int, ...]]]],
    settings: dict[str, Any] | None = None,
    transformer: dict[str, Any] | None = None,
) -> Path:
    """The files of modules behind a transformer.

    Args:
        modules: kind, config and the shapes of its tensors.
        settings: config_sentence_transformers.json.
        transformer: sentence_bert_config.json.
    """
    prefix = "sentence_transformers.models."
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{prefix}Transformer"}]
    for i, (kind, config, shapes) in enumerate(modules, 1):
        path = folder / f"{i}_{kind}"
        path.mkdir(parents=True, exist_ok=True)
        listed.append({"idx": i, "name": str(i), "path": path.name, "type": f"{prefix}{kind}"})
        if kind == "LogitScore":
            listed[-1]["type"] = "sentence_transformers.cross_encoder.modules.LogitScore"
        if config is not None:
            (path / "config.json").write_text(json.dumps(config))
        if shapes:
            made = {n: stored(tensor(f"{path.name}.{n}", s)) for n, s in shapes.items()}
            write_safetensors(path / "model.safetensors", made)
    (folder / "modules.json").write_text(json.dumps(listed))
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    if transformer is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    return folder


def dense(width: int, out: int, activation: str, **more: Any) -> dict[str, Any]:
    where = f"torch.nn.modules.{'linear' if activation == 'Identity' else 'activation'}"
    config = {"in_features": width, "out_features": out, "bias": True}
    return {**config, "activation_function": f"{where}.{activation}", **more}


def bert(folder: Path, **changes: Any) -> Path:
    golden = load_embeddings("bert", "released")
    folder.mkdir(parents=True, exist_ok=True)
    size = wordpiece(folder)
    return write_model(folder, {**golden.config, "vocab_size": size, **changes}, held(golden, size))


def qwen3(
    folder: Path, closing: bool = True, template: str | None = None, tied: bool = True
) -> Path:
    golden = load_golden("qwen3", "tied" if tied else "plain")
    folder.mkdir(parents=True, exist_ok=True)
    size = byte_pairs(folder, closing, template)
    config = {**golden.config, "vocab_size": size, "max_position_embeddings": 512}
    return write_model(folder, config, held(golden, size))


def plain(folder: Path) -> Path:
    """The usual: mean, normalised; prompts, of which one is the default; texts are cut."""
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}
    prompts = {"prompts": {"query": "who ", "passage": "bread, "}, "default_prompt_name": "query"}
    return write_modules(
        bert(folder),
        [("Pooling", pooling, {}), ("Normalize", None, {})],
        {**prompts, "similarity_fn_name": "dot"},
        {"max_seq_length": 16, "do_lower_case": False},
    )


def joined(folder: Path) -> Path:
    """Two ways of pooling, a dense layer with tanh, another with a residual."""
    pooling = {
        "word_embedding_dimension": 64,
        "pooling_mode_cls_token": True,
        "pooling_mode_max_tokens": True,
        "pooling_mode_mean_tokens": False,
    }
    both = {"linear.weight": (24, 128), "linear.bias": (24,)}
    again = {"linear.weight": (24, 24), "linear.bias": (24,)}
    other = {"linear.weight": (16, 24), "residual.weight": (16, 24)}
    return write_modules(
        bert(folder),
        [
            ("Pooling", pooling, {}),
            ("Dense", dense(128, 24, "Tanh"), both),
            ("Dense", dense(24, 24, "ReLU", use_residual=True), again),
            ("Dense", dense(24, 16, "GELU", use_residual=True, bias=False), other),
        ],
        {"truncate_dim": 12},
        {"max_seq_length": 30},
    )


def without_prompt(folder: Path) -> Path:
    """Three more ways of pooling, the tokens of prompts aside; a norm."""
    pooling = {
        "embedding_dimension": 64,
        "pooling_mode": ["mean", "weightedmean", "mean_sqrt_len_tokens"],
        "include_prompt": False,
    }
    norm = {"norm.weight": (192,), "norm.bias": (192,)}
    return write_modules(
        bert(folder),
        [("Pooling", pooling, {}), ("LayerNorm", {"dimension": 192}, norm)],
        {"prompts": {"query": "the small fox "}},
        {"max_seq_length": 30},
    )


def last_token(folder: Path) -> Path:
    """A decoder whose last token counts, and a dense layer."""
    pooling = {"embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": True}
    shapes = {"linear.weight": (32, 64), "linear.bias": (32,)}
    return write_modules(
        qwen3(folder),
        [
            ("Pooling", pooling, {}),
            ("Dense", dense(64, 32, "Identity"), shapes),
            ("Normalize", None, {}),
        ],
        {"prompts": {"query": "Query: "}},
    )


EMBEDDERS = {
    "plain": plain,
    "joined": joined,
    "without_prompt": without_prompt,
    "last_token": last_token,
}


def cross_encoder(folder: Path, activation: str | None = None, labels: int = 1) -> Path:
    """A BERT that scores pairs, as older versions saved it."""
    golden = load_embeddings("bert", "reranker")
    folder.mkdir(parents=True, exist_ok=True)
    size = wordpiece(folder)
    config = {**golden.config, "vocab_size": size}
    kept = held(golden, size)
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
    config["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    for name in ("classifier.weight", "classifier.bias"):
        kept[name] = tensor(name, (labels, *kept[name].shape[1:]))
    if activation is not None:
        config["sentence_transformers"] = {"activation_fn": f"torch.nn.modules.{activation}"}
    return write_model(folder, config, kept)


TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'query' %}<|im_start|>Query: {{ m['content'] }}"
    "{% else %} Document: {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
    "<|im_start|>answer: "
)


def logit_score(folder: Path, tied: bool = True) -> Path:
    """A Qwen 3 that ranks by its logits of "yes" and "no", as a CrossEncoder."""
    qwen3(folder, closing=False, template=TEMPLATE, tied=tied)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ids = {"true_token_id": vocabulary["yes"], "false_token_id": vocabulary["no"]}
    task = {
        "transformer_task": "text-generation",
        "modality_config": {
            "text": {"method": "forward", "method_output_name": "logits"},
            "message": {"method": "forward", "method_output_name": "logits", "format": "flat"},
        },
        "module_output_name": "causal_logits",
    }
    settings = {
        "model_type": "CrossEncoder",
        "activation_fn": "torch.nn.modules.activation.Sigmoid",
        "prompts": {},
        "default_prompt_name": None,
    }
    return write_modules(folder, [("LogitScore", ids, {})], settings, task)


def labels_tokens(folder: Path, family: str) -> Path:
    """A head that labels tokens: of "bert", "roberta", "modernbert", "distilbert", "electra"."""
    case = {
        "bert": ("bert", "released"),
        "distilbert": ("bert", "distilbert"),
        "electra": ("bert", "electra"),
        "roberta": ("bert", "roberta_head"),
        "modernbert": ("modern_bert", "head"),
    }[family]
    golden = load_embeddings(*case)
    folder.mkdir(parents=True, exist_ok=True)
    size = letters(folder) if family == "roberta" else wordpiece(folder)
    kept = held(golden, size)
    drop = ("pre_classifier.", "classifier.")
    kept = {n: x for n, x in kept.items() if not n.startswith(drop)}
    prefix = "bert." if family == "bert" else ""
    kept = {prefix + n: x for n, x in kept.items() if family != "bert" or "pooler" not in n}
    if family == "modernbert":
        table = "model.embeddings.tok_embeddings.weight"
        kept[table] = tensor(table, (size, kept[table].shape[1]))
    width: Any = golden.config.get("hidden_size", golden.config.get("dim"))
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    kept["classifier.weight"] = tensor("classifier.weight", (len(names), width))
    kept["classifier.bias"] = tensor("classifier.bias", (len(names),))
    kinds = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}
    kinds["roberta"] = "Roberta"
    config = {
        **golden.config,
        "architectures": [f"{kinds.get(family, 'ModernBert')}ForTokenClassification"],
        "vocab_size": size,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    return write_model(folder, config, kept)


def classifier(folder: Path) -> Path:
    """A Qwen 3 that classifies texts by their last token."""
    qwen3(folder, closing=False)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "pad_token_id": 0}
    config["id2label"] = {"0": "bad", "1": "good", "2": "neither"}
    config["label2id"] = {"bad": 0, "good": 1, "neither": 2}
    golden = load_golden("qwen3", "tied")
    kept = held(golden, config["vocab_size"])
    kept["score.weight"] = tensor("score.weight", (3, 64))
    return write_model(folder, config, kept)


def further_heads(folder: Path) -> Path:
    """A BERT with BGE-M3's heads beside it: weights of tokens, and rows of tokens."""
    bert(folder)
    shapes = {"sparse_linear": (1, 64), "colbert_linear": (48, 64)}
    for name, shape in shapes.items():
        made = {"weight": stored(tensor(f"{name}.weight", shape))}
        made["bias"] = stored(tensor(f"{name}.bias", shape[:1]))
        write_safetensors(folder / f"{name}.safetensors", made)
    return folder
