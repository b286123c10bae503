"""Make examples/assets/shout, a LoRA adapter of stories.gguf: sentences end with "!".

Nothing is trained. The head's row of "." is added to that of "!", and taken away from its own:
B·A, where A is that row and B has 1 for the one token and -1 for the other.

    python examples/training/shout.py
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import ggmodel

ASSETS = Path(__file__).parents[1] / "assets"


def main() -> None:
    with ggmodel.load(ASSETS / "stories.gguf") as model:
        stop, shout = (model.tokenize(mark)[-1] for mark in ".!")
        rows = model.backend.tensors["token_embd.weight"].numpy()
    b = np.zeros((len(rows), 1), np.float32)
    b[shout], b[stop] = 1, -1
    folder = ASSETS / "shout"
    folder.mkdir(exist_ok=True)
    name = "base_model.model.lm_head.lora_{}.weight"
    save_file(
        {name.format("A"): rows[[stop]], name.format("B"): b}, folder / "adapter_model.safetensors"
    )
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["lm_head"]}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
