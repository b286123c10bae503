"""Make tests/convert/scales.npz: logits of checkpoints in FP8 and FP4, published layouts in small,
which transformers loads, and the number of each byte in E4M3 and in E8M0. Needs torch and
transformers. From the root of the repository:

    python -m tests.convert.make_scales
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.convert.folders import Stored, stored, write_model, write_safetensors
from tests.golden.files import load_golden

FILE = Path(__file__).parent / "scales.npz"
BLOCK = 16, 32
# As DeepSeek V4 is published: exponents as scales, experts in FP4; and as Qwen 3's experts are.
CASES = {"v4": ("deepseek4", "published"), "qwen3": ("qwen3", "experts")}
# Names in V4's folders, which transformers writes otherwise.
NAMES = {
    "model.": "",
    "embed_tokens": "embed",
    "hc_head.hc_": "hc_head_",
    "attn.norm.": "attn.kv_norm.",
}
PLAIN = ("embed", "head", ".gate.weight", "norm", "compressor", "weights_proj")


def scheme(case: str) -> dict[str, Any]:
    method = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}
    more = {"scale_fmt": "ue8m0", "expert_dtype": "fp4"} if case == "v4" else {}
    return {**method, **more, "weight_block_size": [*BLOCK]}


def eight_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> Stored:
    """Any numbers of E4M3, without NaN."""
    numbers = rng.integers(0, 127, shape) | rng.integers(0, 2, shape) << 7
    return "F8_E4M3", shape, numbers.astype(np.uint8).tobytes()


def exponents(rng: np.random.Generator, shape: tuple[int, ...], least: int) -> Stored:
    return "F8_E8M0", shape, rng.integers(least, least + 4, shape).astype(np.uint8).tobytes()


def folder(path: Path, case: str) -> Path:
    """Writes a checkpoint whose bytes follow from a seed."""
    golden, rng = load_golden(*CASES[case]), np.random.default_rng(1)
    config = {k: v for k, v in golden.config.items() if k != "dtype"}
    config |= {"torch_dtype": "float32", "quantization_config": scheme(case)}
    tensors: dict[str, Stored] = {}
    for name, values in golden.weights().items():
        for other, published in NAMES.items() if case == "v4" else ():
            name = name.replace(other, published)
        stem = name.removesuffix("weight")
        grid = tuple(-(-n // b) for n, b in zip(values.shape, BLOCK, strict=False))
        if name.endswith("tid2eid"):
            tensors[name] = "I64", values.shape, values.astype("<i8").tobytes()
        elif values.ndim != 2 or not stem.endswith(".") or any(part in name for part in PLAIN):
            tensors[name] = stored(values)
        elif case == "v4" and ".experts." in name:
            rows, columns = values.shape
            packed = rng.integers(0, 256, (rows, columns // 2)).astype(np.uint8)
            tensors[name] = "I8", packed.shape, packed.tobytes()
            tensors[f"{stem}scale"] = exponents(rng, (rows, columns // 32), 118)
        else:
            tensors[name] = eight_bits(rng, values.shape)
            if case == "v4":
                tensors[f"{stem}scale"] = exponents(rng, grid, 112)
            else:
                tensors[f"{name}_scale_inv"] = stored((0.1 + rng.random(grid)) * 2**-12)
    if case == "v4":
        tensors["mtp.0.e_proj.weight"] = eight_bits(rng, (64, 64))
        tensors["mtp.0.e_proj.scale"] = exponents(rng, (4, 2), 112)
    write_model(path, config, {})
    write_safetensors(path / "model.safetensors", tensors)
    return path


def prompt(case: str) -> list[int]:
    return load_golden(*CASES[case]).prompt.tolist()


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers.quantizers import (  # pyright: ignore[reportMissingImports]
        quantizer_finegrained_fp8,
    )

    # It asks for a package that it does not need without a GPU.
    setattr(quantizer_finegrained_fp8, "is_accelerate_available", lambda: True)  # noqa: B010
    bytes_ = torch.arange(256, dtype=torch.uint8)
    formats = {"e4m3": torch.float8_e4m3fn, "e8m0": torch.float8_e8m0fnu}
    made = {name: bytes_.view(kind).float().numpy() for name, kind in formats.items()}
    for case in CASES:
        with tempfile.TemporaryDirectory() as empty:
            net = transformers.AutoModelForCausalLM.from_pretrained(
                folder(Path(empty), case), dtype=torch.float32
            )
            with torch.no_grad():
                made[case] = net(torch.tensor([prompt(case)]), use_cache=False).logits[0].numpy()
    np.savez_compressed(FILE, **made)


if __name__ == "__main__":
    main()
