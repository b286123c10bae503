"""Makes the goldens of this folder with the package rwkv, by the author of the architecture:

    pip install rwkv==0.8.32    # beside torch and transformers
    python -m tests.golden.rwkv7.make

transformers writes and reads the checkpoints, whose names are those of flash-linear-attention, and
the model within is `RWKV_x070` of the package, in float32 on the CPU, with the same weights by its
own names. flash-linear-attention itself needs a GPU.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math
import os
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["RWKV_V7_ON"] = "1"  # before the package is imported

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from ggmodel.workbench.golden import reference, update

transformers = reference.transformers  # a second import may be another module

# Names in the checkpoint → in the package, which has matrices of low rank the other way around.
NAMES = {
    r"model\.embeddings": "emb",
    r"model\.norm": "ln_out",
    r"lm_head": "head",
    r"model\.layers\.": "blocks.",
    r"\.pre_norm": ".ln0",
    r"\.attn_norm": ".ln1",
    r"\.ffn_norm": ".ln2",
    r"\.attn\.": ".att.",
    r"_lora\.lora\.0\.weight": "1",
    r"_lora\.lora\.2\.weight": "2",
    r"_lora\.lora\.2\.bias": "0",
    r"\.r_proj": ".receptance",
    r"\.k_proj": ".key",
    r"\.v_proj": ".value",
    r"\.o_proj": ".output",
    r"\.g_norm": ".ln_x",
}


class RWKV7Config(transformers.PretrainedConfig):
    model_type = "rwkv7"


class Lora(nn.Module):
    def __init__(self, width: int, rank: int, bias: bool = True):
        super().__init__()
        inner = nn.Linear(width, rank, bias=False), nn.Identity(), nn.Linear(rank, width, bias)
        self.lora = nn.Sequential(*inner)


class Attention(nn.Module):
    def __init__(self, c: Any, first: bool):
        super().__init__()
        width, heads = c.hidden_size, c.hidden_size // c.head_dim
        for name in "rwkvag":
            self.register_parameter(f"x_{name}", nn.Parameter(torch.zeros(1, 1, width)))
        for name in ("k_k", "k_a"):
            self.register_parameter(name, nn.Parameter(torch.zeros(width)))
        self.r_k = nn.Parameter(torch.zeros(heads, c.head_dim))
        for name in "rkvo":
            self.add_module(f"{name}_proj", nn.Linear(width, width, bias=False))
        self.w_lora = Lora(width, c.decay_low_rank_dim)
        self.a_lora = Lora(width, c.a_low_rank_dim)
        self.g_lora = Lora(width, c.gate_low_rank_dim, bias=False)
        if not first:
            self.v_lora = Lora(width, c.v_low_rank_dim)
        self.g_norm = nn.GroupNorm(heads, width)


class FeedForward(nn.Module):
    def __init__(self, c: Any):
        super().__init__()
        ratio = math.ceil(c.hidden_size * c.hidden_ratio / 32) * 32
        inner = c.intermediate_size or ratio
        self.x_k = nn.Parameter(torch.zeros(c.hidden_size))
        self.key = nn.Linear(c.hidden_size, inner, bias=False)
        self.value = nn.Linear(inner, c.hidden_size, bias=False)


class Layer(nn.Module):
    def __init__(self, c: Any, first: bool):
        super().__init__()
        if first:
            self.pre_norm = nn.LayerNorm(c.hidden_size)
        self.attn_norm, self.ffn_norm = nn.LayerNorm(c.hidden_size), nn.LayerNorm(c.hidden_size)
        self.attn, self.ffn = Attention(c, first), FeedForward(c)


class RWKV7ForCausalLM(transformers.PreTrainedModel):
    """The tensors of a checkpoint; the package computes."""

    config_class = RWKV7Config

    def __init__(self, config: Any):
        super().__init__(config)
        layers = [Layer(config, i == 0) for i in range(config.num_hidden_layers)]
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(layers)
        self.model.norm = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._net: Any = None
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        pass

    def forward(self, input_ids: Any, **_: Any) -> Any:
        if self._net is None:
            from rwkv.model import RWKV_x070

            with tempfile.TemporaryDirectory() as folder:
                path = str(Path(folder) / "net")
                torch.save(
                    {_named(n): _turned(n, x) for n, x in self.state_dict().items()}, f"{path}.pth"
                )
                self._net = RWKV_x070(path, "cpu fp32")
        # A single token has one row without a dim for rows.
        logits, _ = self._net.forward(input_ids[0].tolist(), None, full_output=True)
        return CausalLMOutput(logits=logits.reshape(1, -1, self.config.vocab_size))


def _named(name: str) -> str:
    for pattern, own in NAMES.items():
        name = re.sub(pattern, own, name)
    return name


def _turned(name: str, tensor: Any) -> Any:
    return tensor.T.contiguous() if re.search(r"lora\.[02]\.weight", name) else tensor.clone()


def register() -> None:
    """Has transformers write and read the checkpoints."""
    transformers.AutoConfig.register("rwkv7", RWKV7Config, exist_ok=True)
    transformers.RWKV7ForCausalLM = RWKV7ForCausalLM


def main() -> None:
    register()
    reference.VERSIONS["rwkv"] = version("rwkv")
    for made in update.update(Path(__file__).parent, tell=print):
        print(made)


if __name__ == "__main__":
    main()
