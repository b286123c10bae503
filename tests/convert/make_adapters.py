"""Make tests/convert/adapters: adapters as PEFT saves them, and what their models then compute.

Needs torch, transformers and peft. From the root of the repository:

    python -m tests.convert.make_adapters
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.files import checkpoint, load_golden

HERE = Path(__file__).parent / "adapters"
_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_FFN = ["gate_proj", "up_proj", "down_proj"]
_OF_EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

# Name → architecture and case of the golden, and the keys of LoraConfig.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("llama", "plain_gqa", {"target_modules": [*_ATTENTION, *_FFN, "lm_head"]}),
    "patterns": (
        "llama",
        "attention_bias",
        {
            "target_modules": [*_ATTENTION, "down_proj"],
            "use_rslora": True,
            "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 6},
            "alpha_pattern": {"^model.layers.0.self_attn.o_proj": 3},
        },
    ),
    "dora": ("llama", "plain_gqa", {"target_modules": [*_ATTENTION, *_FFN], "use_dora": True}),
    "tied_embedding": ("llama", "tied", {"target_modules": ["embed_tokens", "v_proj"]}),
    "tied_head": ("llama", "tied", {"target_modules": ["lm_head", "v_proj"]}),
    "transposed": (
        "gpt2",
        "plain",
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
    ),
    "transposed_dora": (
        "gpt2",
        "plain",
        {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True},
    ),
    "fused": ("phi3", "plain", {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj"]}),
    "parts_of_heads": ("gptneox", "plain", {"target_modules": ["query_key_value", "dense"]}),
    "experts": (
        "qwen3",
        "experts",
        {"target_modules": ["q_proj"], "target_parameters": _OF_EXPERTS},
    ),
    "interleaved_experts": (
        "gpt_oss",
        "other_layers",
        {"target_modules": ["v_proj"], "target_parameters": _OF_EXPERTS},
    ),
    "states": ("mamba", "published", {"target_modules": ["in_proj", "x_proj"]}),
}


def main() -> None:
    import torch  # pyright: ignore[reportMissingImports]
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]

    for name, (arch, case, keys) in CASES.items():
        golden = load_golden(arch, case)
        torch.manual_seed(7)
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint(Path(scratch) / "model", golden.config, golden.weights())
            model = AutoModelForCausalLM.from_pretrained(
                Path(scratch) / "model", dtype=torch.float32, attn_implementation="eager"
            ).eval()
            options = {"r": 4, "lora_alpha": 8, "init_lora_weights": False, **keys}
            adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()
            for key, value in adapted.named_parameters():
                if "lora_magnitude" in key:
                    value.data *= 1 + 0.3 * torch.rand_like(value)
                elif "lora_" in key:
                    value.data = 0.15 * torch.randn_like(value)
            adapted.save_pretrained(HERE / name)
            (HERE / name / "README.md").unlink(missing_ok=True)
            ids = torch.tensor(golden.prompt[None].astype(np.int64))
            with torch.no_grad():
                logits = adapted(ids).logits[0].float().numpy()
                # Merging changes both of two tied weights, where one was meant.
                if not name.startswith("tied"):
                    logits = adapted.merge_and_unload()(ids).logits[0].float().numpy()
        np.save(HERE / name / "logits.npy", logits.astype(np.float32))
        config = json.loads((HERE / name / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = f"{arch}/{case}"
        text = json.dumps(config, indent=1, sort_keys=True) + "\n"
        (HERE / name / "adapter_config.json").write_text(text)
        print(name, float(((logits - golden.logits) ** 2).mean() / (golden.logits**2).mean()))


if __name__ == "__main__":
    main()
