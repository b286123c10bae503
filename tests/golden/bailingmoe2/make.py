"""Makes the goldens of Ling 2.0: `python -m tests.golden.bailingmoe2.make PATH/TO/Ling-V2/models`.

transformers has no BailingMoeV2ForCausalLM. The class is the one that its authors published: in
the folder `models` of their repository Ling-V2, written for an older transformers. It runs on
the installed one with what it has renamed since.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import modeling_rope_utils
from transformers.utils import import_utils

from ggmodel.workbench.golden import update


def _frequencies(config: Any, *_: Any, **__: Any) -> tuple[Any, float]:
    """Frequencies of a rope without a scaling, which no table of transformers 5 has."""
    rope = config.rope_parameters
    dims = int(config.head_dim * rope.get("partial_rotary_factor", 1.0))
    steps = torch.arange(0, dims, 2, dtype=torch.int64).float() / dims
    return 1.0 / rope["rope_theta"] ** steps, 1.0


def published(folder: Path) -> Any:
    """The published class, which transformers loads checkpoints with."""
    import_utils.is_torch_fx_available = lambda: False
    modeling_rope_utils.ROPE_INIT_FUNCTIONS["default"] = _frequencies
    sys.path.insert(0, str(folder.parent))
    part = f"{folder.name}.modeling_bailing_moe_v2"
    module = importlib.import_module(part)
    config = module.BailingMoeV2Config
    config.model_type, config.use_return_dict = "bailing_moe", True
    model = module.BailingMoeV2ForCausalLM
    model._tied_weights_keys = {"lm_head.weight": "model.word_embeddings.weight"}
    transformers.AutoConfig.register("bailing_moe", config)
    return model


def main() -> None:
    transformers.BailingMoeV2ForCausalLM = published(Path(sys.argv[1]).resolve())
    for made in update.update(Path(__file__).parent, tell=print):
        print(made)


if __name__ == "__main__":
    main()
