"""Writes `published/NAME.json`: config.json, and the shapes of all tensors (numpy order), of tiny
models of transformers with random weights, as `save_pretrained` writes them.

    python -m tests.workbench.make_published        # needs torch and transformers
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "published"
TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS = ["conv", "conv", "full_attention", "conv"]
MODELS: dict[str, dict[str, Any]] = {
    "cohere2": {**TEXT, "model_type": "cohere2", "sliding_window": 16, "logit_scale": 0.25},
    "lfm2": {
        **TEXT,
        "model_type": "lfm2",
        "layer_types": KINDS,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
    },
    "qwen2_5_vl": {
        "model_type": "qwen2_5_vl",
        "image_token_id": 90,
        "video_token_id": 91,
        "vision_start_token_id": 92,
        "vision_end_token_id": 93,
        "text_config": {
            **TEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1000000.0,
                "mrope_section": [2, 3, 3],
            },
        },
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_heads": 4,
            "patch_size": 14,
            "out_hidden_size": 64,
            "window_size": 112,
            "fullatt_block_indexes": [1],
        },
    },
    "idefics3": {
        "model_type": "idefics3",
        "image_token_id": 90,
        "scale_factor": 2,
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 16,
        },
    },
}
CLASSES = {
    "cohere2": "AutoModelForCausalLM",
    "lfm2": "AutoModelForCausalLM",
    "qwen2_5_vl": "AutoModelForImageTextToText",
    "idefics3": "AutoModelForImageTextToText",
}


def main() -> None:
    import transformers
    from safetensors import safe_open

    for name, given in MODELS.items():
        config = transformers.AutoConfig.for_model(**given)
        model = getattr(transformers, CLASSES[name]).from_config(config)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            written = json.loads((Path(folder) / "config.json").read_text())
            with safe_open(Path(folder) / "model.safetensors", "numpy") as file:
                shapes = {n: file.get_slice(n).get_shape() for n in sorted(file.keys())}
        entries = ",\n".join(f"    {json.dumps(n)}: {s}" for n, s in shapes.items())
        text = f'{{\n  "config": {json.dumps(written)},\n  "shapes": {{\n{entries}\n  }}\n}}\n'
        (FOLDER / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
