"""Make what transformers' hooks give for tiny models: results of modules, and logits of patched
models.

    python -m tests.runner.requests.make_hooks [NAME]

Run it from the root of the repository, in an environment with what `ggmodel golden --update` needs
and ggmodel. Weights come from the names of tensors, as those of the goldens do.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.golden import files
from tests.golden.files import load_golden
from tests.runner.requests.hooks import CASES, HERE, LAYER, direction


def layers_of(net: Any) -> Any:
    """The list of the decoder's layers."""
    return next(m for n, m in net.named_modules() if n.rpartition(".")[2] == "layers")


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def make(arch: str, case: str) -> None:
    golden = load_golden(arch, case)
    ids = torch.from_numpy(np.array(golden.prompt[:12])).long().reshape(1, -1)
    arrays: dict[str, np.ndarray] = {"ids": ids.numpy()[0].astype(np.int32)}
    with tempfile.TemporaryDirectory() as folder:
        files.checkpoint(Path(folder), golden.config, golden.weights())
        net = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    layers = layers_of(net)

    def keep(name: str) -> Any:
        def hook(module: Any, given: Any, result: Any) -> None:
            rows = first(result).detach().numpy()
            arrays[name] = rows.reshape(ids.shape[1], -1).astype(np.float32)

        return hook

    handles = []
    for i, layer in enumerate(layers):
        handles.append(layer.register_forward_hook(keep(f"layers.{i}")))
    mixer = getattr(layers[LAYER], "self_attn", None) or layers[LAYER].linear_attn
    handles.append(mixer.register_forward_hook(keep(f"layers.{LAYER}.mixer")))
    handles.append(layers[LAYER].mlp.register_forward_hook(keep(f"layers.{LAYER}.ffn")))
    with torch.no_grad():
        arrays["logits"] = net(ids, use_cache=False).logits[0].numpy()
    for handle in handles:
        handle.remove()

    def add(module: Any, given: Any, result: Any) -> Any:
        moved = first(result) + torch.from_numpy(direction(first(result).shape[-1]))
        return (moved, *result[1:]) if isinstance(result, tuple) else moved

    layers[LAYER].register_forward_hook(add)
    with torch.no_grad():
        arrays["patched"] = net(ids, use_cache=False).logits[0].numpy()
    path = HERE / f"{arch}.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {', '.join(arrays)}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        make(name, CASES[name])
