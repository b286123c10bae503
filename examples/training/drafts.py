"""Train tiny models that draft: a small draft model for the embedded storyteller, and a Qwen 3.5
with a head for multi-token prediction (MTP), for benchmarks/speculation.py.

    pip install torch==2.13.0 transformers gguf tokenizers
    python examples/training/drafts.py FOLDER --minutes 4

Both have the vocabulary of ``assets/stories.gguf`` and read stories out of ``story_grammar.py``.
The draft model, ``stories-draft.gguf``, is a llama of one layer. ``stories-mtp.gguf`` has a
gated delta net, a layer of attention, and the head, which is trained with them: its loss is that of
the token after the next one, from the model's hidden states behind the last norm. Matrices are in
Q8_0. transformers has no such head, so it is written here with its blocks, as published.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

sys.path.insert(0, str(Path(__file__).parent))
import stories

from ggmodel.convert import from_hf, quantize
from ggmodel.gguf_file import MemorySource, open_gguf
from ggmodel.model import find

STORIES = Path(__file__).parents[1] / "assets" / "stories.gguf"
ROWS = 4  # in a batch
LENGTH = 128  # tokens in a row
HEAD_LOSS = 0.5  # weight of the head's loss


def draft_model() -> LlamaForCausalLM:
    """A llama of one layer."""
    return LlamaForCausalLM(
        LlamaConfig(
            architectures=["LlamaForCausalLM"],
            vocab_size=stories.VOCABULARY,
            hidden_size=96,
            intermediate_size=192,
            num_hidden_layers=1,
            num_attention_heads=3,
            num_key_value_heads=1,
            max_position_embeddings=stories.CONTEXT,
            tie_word_embeddings=True,
        )
    )


def qwen_config() -> Qwen3_5TextConfig:
    """A Qwen 3.5 of a gated delta net and a layer of attention."""
    return Qwen3_5TextConfig(
        architectures=["Qwen3_5ForCausalLM"],
        vocab_size=stories.VOCABULARY,
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_conv_kernel_dim=4,
        max_position_embeddings=stories.CONTEXT,
        tie_word_embeddings=True,
        mtp_num_hidden_layers=1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )


class Head(torch.nn.Module):
    """The head for multi-token prediction, with the names of published checkpoints."""

    def __init__(self, config: Any):
        super().__init__()
        width = config.hidden_size
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        attention = config.layer_types.index("full_attention")
        self.layers = torch.nn.ModuleList([qwen.Qwen3_5DecoderLayer(config, attention)])
        self.norm = qwen.Qwen3_5RMSNorm(width, config.rms_norm_eps)
        self.pre_fc_norm_embedding = qwen.Qwen3_5RMSNorm(width, config.rms_norm_eps)
        self.pre_fc_norm_hidden = qwen.Qwen3_5RMSNorm(width, config.rms_norm_eps)

    def forward(self, e: torch.Tensor, h: torch.Tensor, rope: Any) -> torch.Tensor:
        both = [self.pre_fc_norm_embedding(e), self.pre_fc_norm_hidden(h)]
        return self.norm(self.layers[0](self.fc(torch.cat(both, -1)), rope))


def plain_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The loss of each next token."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def loss_with_head(model: Any, head: Head, ids: torch.Tensor) -> torch.Tensor:
    """The loss of each next token, and the head's of the one after it."""
    h = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(h)
    loss = cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    e = model.model.embed_tokens(ids[:, 1:-1])
    places = torch.arange(e.shape[1]).view(1, 1, -1).expand(3, len(ids), -1)
    logits = model.lm_head(head(e, h[:, :-1], model.model.rotary_emb(e, places)))
    return loss + HEAD_LOSS * cross_entropy(logits.flatten(0, 1).float(), ids[:, 2:].flatten())


def train(
    parameters: list[torch.nn.Parameter],
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    minutes: float,
) -> None:
    """Trains for some minutes."""
    rows = stories.rows(stories.read_tokenizer(STORIES), seed=7)
    maker = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    start, step = time.monotonic(), 0
    while (progress := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in maker.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 30 + 0.02) * (1 - 0.97 * progress)
        loss = loss_of(torch.tensor([next(rows)[: LENGTH + 1] for _ in range(ROWS)]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        maker.step()
        maker.zero_grad()
        step += 1
        if step % 50 == 0:
            print(f"step {step}  {progress:6.1%}  loss {loss.item():.3f}", flush=True)


def write(path: Path, architecture: str, config: Any, weights: dict[str, np.ndarray]) -> None:
    """Writes a model with the vocabulary of the stories."""
    source = from_hf(find(architecture), config.to_dict(), weights)
    with open_gguf(STORIES) as file:
        vocabulary = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.")}
        tensors = {
            name: np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])
            for name, info in source.tensors.items()
        }
        quantize(MemorySource({**source.metadata, **vocabulary}, tensors), path, "q8_0", force=True)


def weights_of(module: torch.nn.Module, prefix: str = "") -> dict[str, np.ndarray]:
    named = {f"{prefix}{name}": value for name, value in module.state_dict().items()}
    return {n: v.float().numpy() for n, v in named.items() if n != "lm_head.weight"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=4.0, help="of training, in all")
    args = parser.parse_args()
    torch.manual_seed(0)
    small = draft_model()
    train([*small.parameters()], lambda ids: plain_loss(small, ids), 0.3 * args.minutes)
    write(args.folder / "stories-draft.gguf", "llama", small.config, weights_of(small))
    config = qwen_config()
    model, head = qwen.Qwen3_5ForCausalLM(config), Head(config)
    parameters = [*model.parameters(), *head.parameters()]
    train(parameters, lambda ids: loss_with_head(model, head, ids), 0.7 * args.minutes)
    weights = weights_of(model) | weights_of(head, "mtp.")
    write(args.folder / "stories-mtp.gguf", "qwen35", config, weights)


if __name__ == "__main__":
    main()
