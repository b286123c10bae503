"""Which keys of preprocessor_config.json and the like transformers reads, found in its source
without importing it.

A processor of images or videos reads the keys of its `valid_kwargs`, with the attributes of the
class as defaults; other processors read the arguments of `__init__`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ggmodel.workbench.reference_keys import (
    SourceFile,
    bases,
    config_of,
    source,
    source_of,
    transformers_root,
    value_of,
)

# Beginning of the name of a file with the class, by the end of the class's name.
_FILES = {
    "ImageProcessor": "image_processing",
    "VideoProcessor": "video_processing",
    "FeatureExtractor": "feature_extraction",
    "Processor": "processing",
}
_AUTO = ("auto_mappings", "image_processing_auto", "video_processing_auto")
_AUTO += ("feature_extraction_auto", "processing_auto")
# Types of models whose published folders name the processors of another one.
_FOLLOWING = {"glm_ocr": "glm46v"}
# About other objects, the form of arrays, batches, or what follows from the picture itself.
_WITHOUT_EFFECT = frozenset(
    "self kwargs image_processor video_processor feature_extractor tokenizer audio_tokenizer "
    "chat_template data_format input_data_format device return_tensors disable_grouping "
    "do_convert_rgb default_to_square image_seq_length return_metadata video_metadata "
    "return_attention_mask padding_side".split()
)
_RESAMPLING = ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING")


def processors_of(name: str, root: Path | None = None) -> list[str]:
    """The processors that transformers takes for a model class, "Gemma3ForConditionalGeneration";
    none for one that it lacks."""
    root = root or transformers_root()
    home = None if root is None else source_of(root, "modeling", name)
    config = None if home is None else config_of(home, name)
    if root is None or config is None or config.model_type is None:
        return []
    kind = _FOLLOWING.get(config.model_type, config.model_type)
    entry = re.compile(rf'\(\s*"{re.escape(kind)}",\s*(\{{[^}}]*\}}|"\w+")')
    processors: dict[str, None] = {}
    for file in _AUTO:
        path = root / "models" / "auto" / f"{file}.py"
        text = path.read_text("utf-8") if path.is_file() else ""
        for match in entry.finditer(text):
            names = re.findall(r'"(\w+)"', match[1])
            fitting = (n for n in names if n.endswith(tuple(_FILES)))
            processors |= dict.fromkeys(fitting)
    return list(processors)


def processor_keys(name: str, root: Path | None = None) -> dict[str, Any] | None:
    """The keys that a processor reads, and their defaults.

    Args:
        name: of the class, "Gemma3ImageProcessor".
        root: transformers' folder; None for the one that is installed.

    Returns:
        Key → default; None for a default that is null, computed, or missing. None if transformers
        is not installed or lacks the class.
    """
    root = root or transformers_root()
    kind = next((kind for end, kind in _FILES.items() if name.endswith(end)), None)
    home = None if root is None or kind is None else source_of(root, kind, name)
    if root is None or home is None:
        return None
    defaults: dict[str, Any] = {}
    if kind in ("image_processing", "video_processing"):
        attributes: dict[str, Any] = {}
        arguments: tuple[SourceFile, str] | None = None
        for module, cls in reversed(list(bases(home, name))):
            for key, value in _attributes(cls):
                attributes[key] = _constant(module, value)
                if key == "valid_kwargs":
                    arguments = module, getattr(value, "id", "")
        for _, cls in bases(*arguments) if arguments else ():
            keys = (i.target for i in cls.body if isinstance(i, ast.AnnAssign))
            defaults |= {k.id: attributes.get(k.id) for k in keys if isinstance(k, ast.Name)}
    else:
        for module, cls in reversed(list(bases(home, name))):
            defaults |= {key: _constant(module, value) for key, value in _arguments(cls)}
    return {key: defaults[key] for key in sorted(defaults) if key not in _WITHOUT_EFFECT}


def _attributes(cls: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    for item in cls.body:
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            yield item.targets[0].id, item.value


def _arguments(cls: ast.ClassDef) -> Iterator[tuple[str, ast.AST | None]]:
    for item in cls.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            names = [a.arg for a in item.args.args]
            lacking: list[ast.AST | None] = [None] * (len(names) - len(item.args.defaults))
            yield from zip(names, [*lacking, *item.args.defaults], strict=True)


def _constant(module: SourceFile, node: ast.AST | None) -> Any:
    """The value of a literal, a product, a list or an object of these, or a constant by its
    name."""
    if isinstance(node, ast.Attribute) and node.attr in _RESAMPLING:
        return _RESAMPLING.index(node.attr)
    if isinstance(node, ast.Dict):
        keys = [value_of(key) for key in node.keys]
        return dict(zip(keys, (_constant(module, v) for v in node.values), strict=True))
    if isinstance(node, ast.Name):
        home, name = _definition(module, node.id)
        assigned = home.defined.get(name)
        return value_of(assigned.value) if isinstance(assigned, ast.Assign) else None
    return value_of(node)


def _definition(module: SourceFile, name: str) -> tuple[SourceFile, str]:
    """The file in which a name is defined, and its name there."""
    while name not in module.defined and name in module.imported:
        path, name = module.imported[name]
        package = path.with_suffix("") / "__init__.py"
        if not (path.is_file() or package.is_file()):
            break
        module = source(path if path.is_file() else package)
    return module, name


def processor_table(names: Iterable[str], root: Path) -> dict[str, Any]:
    """For model classes: "of", class → its processors, and "keys", processor → `processor_keys`."""
    of = {name: value for name in names if (value := processors_of(name, root))}
    every = sorted({processor for value in of.values() for processor in value})
    keys = {name: value for name in every if (value := processor_keys(name, root)) is not None}
    return {"of": of, "keys": keys}
