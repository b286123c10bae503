"""Writes goldens.npz: what the image processors of transformers make of pictures of noise.

    pip install torch==2.13.0 torchvision transformers==5.23.0 pillow
    PYTHONPATH=. python tests/image/make_goldens.py

These are transformers' default processors, on torchvision. It resizes bytes as bytes where the
processor has AVX2; elsewhere it goes through floating point and some levels differ by one.
"""

from pathlib import Path

import numpy as np
import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resize
from transformers.image_utils import SizeDict
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.llama4.image_processing_llama4 import (
    Llama4ImageProcessor,
    find_supported_resolutions,
    get_best_fit,
    get_max_res_without_distortion,
)
from transformers.models.mllama.image_processing_mllama import (
    MllamaImageProcessor,
    get_image_size_fit_to_canvas,
    get_optimal_tiled_canvas,
)

from tests.image.noise import LARGE, RESIZED, SIDE, SIZES, noise

MODES = {
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
    "lanczos": InterpolationMode.LANCZOS,  # from torchvision 0.27 on
}
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]


def llama4_sizes(width: int, height: int) -> list[int]:
    """Canvas and scaled picture for 16 tiles of 336, both as width, height."""
    canvases = torch.tensor(find_supported_resolutions(16, SizeDict(height=336, width=336)))
    canvas = get_best_fit((height, width), canvases)
    limit = [min(max(height, 336), canvas[0]), min(max(width, 336), canvas[1])]
    scaled = get_max_res_without_distortion((height, width), limit)
    return [int(v) for v in (canvas[1], canvas[0], scaled[1], scaled[0])]


def mllama_sizes(width: int, height: int) -> list[int]:
    """The same for 4 tiles of 560."""
    canvas = get_optimal_tiled_canvas(height, width, 4, 560)
    scaled = get_image_size_fit_to_canvas(height, width, *canvas, 560)
    return [int(v) for v in (canvas[1], canvas[0], scaled[1], scaled[0])]


def main() -> None:
    made = {}
    for n, ((width, height), (to_width, to_height), method) in enumerate(RESIZED):
        planes = torch.from_numpy(np.array(noise(width, height))).permute(2, 0, 1)
        small = resize(planes, [to_height, to_width], MODES[method], antialias=True)
        made[f"resized.{n}"] = small.permute(1, 2, 0).numpy()
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    tile = {"height": SIDE, "width": SIDE}
    gemma3 = Gemma3ImageProcessor(size=tile, **half)
    llama4 = Llama4ImageProcessor(size=tile, max_patches=16)
    mllama = MllamaImageProcessor(size=tile, image_mean=CLIP_MEAN, image_std=CLIP_STD)
    for n, size in enumerate(SIZES):
        image = noise(*size, channels=3 + n % 2)
        made[f"gemma3.{n}"] = gemma3(image, return_tensors="np")["pixel_values"][0]
        out = llama4(image, return_tensors="pt")
        made[f"llama4.{n}"] = out["pixel_values"].float().numpy()
        made[f"llama4.grid.{n}"] = out["aspect_ratios"][0].numpy()
        out = mllama(image, return_tensors="np")
        made[f"mllama.{n}"] = out["pixel_values"][0, 0]
        made[f"mllama.ratio.{n}"] = out["aspect_ratio_ids"][0, 0]
        made[f"mllama.mask.{n}"] = out["aspect_ratio_mask"][0, 0]
    made["llama4.sizes"] = np.array([llama4_sizes(*size) for size in LARGE])
    made["mllama.sizes"] = np.array([mllama_sizes(*size) for size in LARGE])
    path = Path(__file__).parent / "goldens.npz"
    np.savez_compressed(path, **made)
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
