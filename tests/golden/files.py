"""The golden files `tests/golden/<arch>/<case>.npz`: one place that knows their format.

Needs numpy, and safetensors for `checkpoint`; never torch. `generate.py` writes them, tests read
them.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.golden.weights import weight

HERE = Path(__file__).parent
GREEDY = 12  # tokens in the greedy continuation


@dataclass
class Golden:
    """What transformers computed for one tiny model."""

    config: dict[str, Any]
    """config.json as transformers read it, in the old spelling (`rope_theta`, `rope_scaling`)."""
    saved_config: dict[str, Any]
    """config.json as that transformers writes it: `rope_parameters`, and all defaults filled in."""
    versions: dict[str, str]
    """torch, transformers and numpy of the run."""
    tensors: dict[str, tuple[int, ...]]
    """Names and numpy shapes of the checkpoint on disk, sorted; without a tied head, as on disk."""
    prompt: NDArray[np.int32]
    """[n] token ids."""
    logits: NDArray[np.float32]
    """[n, vocab] for every position of the prompt, float32 on CPU, eager attention."""
    logits_f16: NDArray[np.float32]
    """The same when `lossy` tensors were rounded to F16 first (activations stay float32)."""
    logits_q8_0: NDArray[np.float32]
    """The same when `lossy` tensors went through Q8_0 first (activations stay float32)."""
    greedy: NDArray[np.int32]
    """[GREEDY] ids that follow the prompt; the same for F32, F16 and Q8_0 weights."""
    greedy_margins: NDArray[np.float32]
    """[GREEDY] top logit minus the second, the smallest of the three runs."""

    @classmethod
    def load(cls, arch: str, case: str) -> "Golden":
        with np.load(path(arch, case), allow_pickle=False) as file:
            values = {f.name: file[f.name] for f in fields(cls)}
        for name in ("config", "saved_config", "versions", "tensors"):
            values[name] = json.loads(str(values[name]))
        values["tensors"] = {name: tuple(shape) for name, shape in values["tensors"].items()}
        return cls(**values)

    def save(self, arch: str, case: str) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("config", "saved_config", "versions", "tensors"):
            values[name] = np.array(json.dumps(values[name]))
        np.savez_compressed(path(arch, case), **values)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return {name: weight(name, shape) for name, shape in self.tensors.items()}


def path(arch: str, case: str) -> Path:
    return HERE / arch / f"{case}.npz"


def cases(arch: str) -> list[str]:
    """The names of the committed files of an architecture."""
    return sorted(file.stem for file in (HERE / arch).glob("*.npz"))


def lossy(name: str, shape: tuple[int, ...]) -> bool:
    """Whether F16 and Q8_0 files hold this tensor in that type: matrices, but not an expert router.

    That is llama.cpp's habit too (`ffn_gate_inp` stays F32): a rounded router may choose other
    experts.
    """
    return len(shape) >= 2 and not name.endswith((".gate.weight", ".router.weight"))


def checkpoint(
    folder: Path, config: dict[str, Any], weights: dict[str, NDArray[np.float32]]
) -> None:
    """Write a Hugging Face checkpoint: config.json and model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
