"""Make what transformers' hooks give for tiny models: results of modules, and logits, scores and
rows of patched models.

    python -m tests.runner.requests.make_hooks [NAME]

Run it from the root of the repository, in an environment with what `ggmodel golden --update` needs
and ggmodel. Weights come from the names of tensors, as those of the goldens do.
"""

import importlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ggmodel.workbench.golden.reference import loaded
from tests.convert import sentences
from tests.golden.files import load_embeddings, load_golden
from tests.runner.requests.hooks import (
    CASES,
    ENCODERS,
    HERE,
    LABELS,
    LAYER,
    PAIR,
    PAIR_MODULES,
    TOWERS,
    direction,
)


def layers_of(net: Any) -> Any:
    """The list of the decoder's layers."""
    return next(m for n, m in net.named_modules() if n.rpartition(".")[2] == "layers")


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def captured(modules: dict[str, Any], run: Callable[[], Any]) -> dict[str, np.ndarray]:
    """The rows of modules, by name, and the "result"."""
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, given: Any, result: Any) -> None:
            rows = first(result).detach().numpy()
            arrays[name] = rows.reshape(-1, rows.shape[-1]).astype(np.float32)

        return hook

    handles = [m.register_forward_hook(keep(name)) for name, m in modules.items()]
    with torch.no_grad():
        arrays["result"] = run().numpy()
    for handle in handles:
        handle.remove()
    return arrays


def patched(module: Any, run: Callable[[], Any]) -> np.ndarray:
    """The result, with a direction added to what a module gives."""

    def add(module: Any, given: Any, result: Any) -> Any:
        moved = first(result) + torch.from_numpy(direction(first(result).shape[-1]))
        return (moved, *result[1:]) if isinstance(result, tuple) else moved

    handle = module.register_forward_hook(add)
    with torch.no_grad():
        rows = run().numpy()
    handle.remove()
    return rows


def of_text(arch: str, case: str) -> dict[str, np.ndarray]:
    golden = load_golden(arch, case)
    ids = torch.from_numpy(np.array(golden.prompt[:12])).long().reshape(1, -1)
    net = loaded(golden.config, golden.weights())

    def run() -> Any:
        return net(ids, use_cache=False).logits[0]

    layers = layers_of(net)
    modules = {f"layers.{i}": layer for i, layer in enumerate(layers)}
    mixer = getattr(layers[LAYER], "self_attn", None) or layers[LAYER].linear_attn
    modules |= {f"layers.{LAYER}.mixer": mixer, f"layers.{LAYER}.ffn": layers[LAYER].mlp}
    arrays = captured(modules, run)
    arrays["logits"] = arrays.pop("result")
    arrays["ids"] = ids.numpy()[0].astype(np.int32)
    return {**arrays, "patched": patched(layers[LAYER], run)}


def of_encoder(arch: str, case: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows for the first text of a golden of embeddings, and the scores of its head."""
    golden = load_embeddings(arch, case)
    ids = torch.tensor([[int(i) for i in golden.texts[0]]])
    return of_head(loaded(golden.config, golden.weights()), names, input_ids=ids)


def of_head(net: Any, names: Sequence[str], **inputs: Any) -> dict[str, np.ndarray]:
    """Rows of modules, and the scores of a head, for inputs of transformers."""

    def run() -> Any:
        return net(**inputs).logits

    arrays = captured({name: net.get_submodule(name) for name in names}, run)
    return {**arrays, "patched": patched(net.get_submodule(names[0]), run)}


def of_pair() -> dict[str, np.ndarray]:
    golden = load_embeddings("bert", "reranker")
    ids, types = (torch.tensor([each]) for each in PAIR)
    net = loaded(golden.config, golden.weights())
    return of_head(net, PAIR_MODULES, input_ids=ids, token_type_ids=types)


def of_labels(family: str) -> dict[str, np.ndarray]:
    """For the first of the texts that are labelled."""
    with tempfile.TemporaryDirectory() as folder:
        path = sentences.labels_tokens(Path(folder), family)
        net = transformers.AutoModelForTokenClassification.from_pretrained(path).eval()
        ids = transformers.AutoTokenizer.from_pretrained(path)(sentences.TEXTS[0])["input_ids"]
        return of_head(net, LABELS[family], input_ids=torch.tensor([ids]))


def of_tower(arch: str, case: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows for the first item of a golden, and its rows in the text."""
    golden = load_golden(arch, case)
    module: Any = importlib.import_module(f"tests.golden.{arch}.cases")
    net, item = loaded(golden.config, golden.weights()), next(iter(golden.pictures.values()))
    ids = module.image_tokens(golden.config, item)
    more = module.model_inputs(golden.config, ids, [item])
    inputs = {name: torch.from_numpy(np.array(value)) for name, value in more.items()}

    def run() -> Any:
        return module.image_rows(net, {"input_ids": torch.tensor([ids]), **inputs})

    arrays = captured({name: net.get_submodule(name) for name in names}, run)
    return {**arrays, "patched": patched(net.get_submodule(names[0]), run)}


def make(name: str) -> None:
    if name in CASES:
        arrays = of_text(name, CASES[name])
    elif name in ENCODERS:
        arrays = of_encoder(name, ENCODERS[name][0], ENCODERS[name][1:])
    elif name == "pair":
        arrays = of_pair()
    elif name.startswith("labels_"):
        arrays = of_labels(name.removeprefix("labels_"))
    else:
        arrays = of_tower(name, TOWERS[name][0], TOWERS[name][1:])
    path = HERE / f"{name}.npz"
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    print(f"{path.name}: {', '.join(arrays)}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    for name in sys.argv[1:] or [
        *CASES,
        *ENCODERS,
        *TOWERS,
        "pair",
        *(f"labels_{one}" for one in LABELS),
    ]:
        make(name)
