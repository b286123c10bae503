"""Train the embedded example model: a llama of about two million parameters that tells stories.

    pip install torch==2.13.0 transformers gguf tokenizers
    python examples/training/stories.py --minutes 30
    python examples/training/stories.py --resume --minutes 5    # train the file that is there on
    python examples/training/stories.py --evaluate              # only measure it

One file does everything, on a CPU: a byte-level BPE vocabulary and a small llama are trained on
stories out of ``story_grammar.py``; the model is written as ``stories.gguf`` (matrices in Q8_0);
and the file just written is loaded again, dequantised and measured with torch and transformers.
The figures go to ``stories.json``, where a test of another engine finds what it has to reproduce.

Four in ten of the training documents are conversations, so that the model also answers
"Tell me a story about a small fox named Pip." in its chat template:

    <|bos|><|user|>REQUEST<|end|><|assistant|>STORY<|eos|>

The learning rate follows the clock (``--minutes``) or, to repeat a run exactly, a number of steps
(``--steps``; stories.json notes how many were made).

The file in ``assets`` was made by the first two of these commands (the second with ``--seed 2``);
between them one template of the grammar was replaced and the share of conversations went from
three in ten to four, so its vocabulary is that of the slightly older stories.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
import story_grammar as grammar

SPECIAL = ("<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|end|>")
BOS, EOS, USER, ASSISTANT, END = range(len(SPECIAL))

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|eos|>"
    "{% else %}<|user|>{{ message['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

VOCABULARY = 1536
HIDDEN = 192
FEED_FORWARD = 512
LAYERS = 5
HEADS = 6
KV_HEADS = 2
CONTEXT = 512

ROW = 384  # tokens in a training row: one story after another, the first from its beginning
BATCH = 8
MATRIX_RATE = 4e-3  # Muon, for the matrices of the layers
OTHER_RATE = 3e-3  # AdamW, for embeddings and norms
WARM_UP = 0.01
WEIGHT_DECAY = 0.1
RESUMED = 0.35  # of these rates, where training goes on
CHATS = 0.4  # of the documents

GREEDY_TOKENS = 120
MARGIN = 0.1
HEROES = (
    ("fox", "Pip"),
    ("dragon", "Luna"),
    ("robot", "Otto"),
    ("girl", "Mia"),
    ("mouse", "Tilly"),
    ("hedgehog", "Hazel"),
    ("bear", "Bruno"),
    ("penguin", "Oscar"),
    ("boy", "Leo"),
    ("squirrel", "Willow"),
    ("puppy", "Max"),
    ("princess", "Clara"),
    ("wizard", "Felix"),
    ("turtle", "Nora"),
    ("panda", "Milo"),
    ("rabbit", "Poppy"),
)
PROMPTS = (
    "Once upon a time, {where}, there lived a little {kind} named {name}.",
    "One windy afternoon, a brave {kind} named {name} was on the way home. {name} lived {where}.",
    "There once was a clever {kind} called {name} who lived {where}.",
)
REQUEST = "Tell me a story about a little {kind} named {name}."
TOKENIZE = (
    "Once upon a time",
    "One morning, a small fox named Pip couldn't find his hat.",
    "  Two spaces,\n\na new paragraph; 1234 numbers & signs!",
    "Zoë said: “Grüße aus München” – 日本 🦊",
)


# ---------------------------------------------------------------------------------------- data


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE vocabulary with GPT-2's splitting of text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [grammar.story(seed) for seed in grammar.TRAINING_SEEDS[:12_000]]
    texts += [request for seed in range(3_000) for request, _ in grammar.chat(seed)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def story_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of a story: BOS, text, EOS."""
    return [BOS, *tokenizer.encode(text).ids, EOS]


def chat_ids(tokenizer: Tokenizer, seed: int) -> list[int]:
    """The token ids of a conversation."""
    ids = [BOS]
    for request, answer in grammar.chat(seed):
        ids += [USER, *tokenizer.encode(request).ids, END]
        ids += [ASSISTANT, *tokenizer.encode(answer).ids, EOS]
    return ids


def rows(tokenizer: Tokenizer, seed: int) -> Iterator[list[int]]:
    """Training rows without end; no document twice (there are a million numbers)."""
    chooser = random.Random(seed)
    numbers = iter(chooser.sample(grammar.TRAINING_SEEDS, len(grammar.TRAINING_SEEDS)))
    while True:
        row: list[int] = []
        while len(row) <= ROW:
            number = next(numbers)
            if chooser.random() < CHATS:
                row += chat_ids(tokenizer, number)
            else:
                row += story_ids(tokenizer, grammar.story(number))
        yield row[: ROW + 1]


# ------------------------------------------------------------------------------------ training


def new_model() -> LlamaForCausalLM:
    """The architecture, with fresh weights."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=FEED_FORWARD,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            tie_word_embeddings=True,
            initializer_range=0.03,
            bos_token_id=BOS,
            eos_token_id=EOS,
            attn_implementation="sdpa",
        )
    )


def token_losses(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """The negative log-likelihood of each token but the first, in float32."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
    targets = ids[:, 1:].reshape(-1)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="none")


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, with two thirds of AdamW's tokens; AdamW for the rest."""
    named = dict(model.named_parameters())
    layers = [p for name, p in named.items() if p.dim() == 2 and ".layers." in name]
    tables = [p for name, p in named.items() if p.dim() == 2 and ".layers." not in name]
    norms = [p for p in named.values() if p.dim() == 1]
    return [
        torch.optim.Muon(
            layers, lr=MATRIX_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(
            [
                {"params": tables, "weight_decay": WEIGHT_DECAY},
                {"params": norms, "weight_decay": 0.0},
            ],
            lr=OTHER_RATE,
            betas=(0.9, 0.95),
            fused=True,
        ),
    ]


def train(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    minutes: float,
    steps: int | None,
    seed: int,
    before: dict[str, float],
    save: Callable[[dict[str, float]], None],
) -> None:
    """Trains until the time or the steps are spent; saves now and then, and at the end."""
    makers = optimizers(model)
    scale = RESUMED if before else 1.0
    groups = [(group, scale * group["lr"]) for maker in makers for group in maker.param_groups]
    source = rows(tokenizer, seed)
    start = time.monotonic()
    step, average, saved, progress = 0, 0.0, 0, 0.0
    while True:
        seconds = time.monotonic() - start
        progress = step / steps if steps else seconds / (60 * minutes)
        if progress >= 1 or int(progress * 10) > saved:
            saved = int(progress * 10)
            done = {"steps": step, "tokens": step * BATCH * ROW, "minutes": seconds / 60}
            total = {key: value + before.get(key, 0) for key, value in done.items()}
            save({"seed": seed, **total, "loss": average})
        if progress >= 1:
            break
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        for group, rate in groups:
            group["lr"] = rate * min(progress / WARM_UP + 0.05, 1) * (0.01 + 0.99 * cosine)
        batch = torch.tensor([next(source) for _ in range(BATCH)])
        with torch.autocast("cpu", torch.bfloat16):
            loss = token_losses(model, batch).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for maker in makers:
            maker.step()
            maker.zero_grad()
        step += 1
        average += (loss.item() - average) * max(0.02, 1 / step)
        if step % 50 == 0:
            speed = step * BATCH * ROW / (time.monotonic() - start)
            print(
                f"step {step:5d}  {progress:6.1%}  loss {average:.4f}  {speed:.0f} tokens/s",
                flush=True,
            )


# ---------------------------------------------------------------------------------------- gguf


def tensor_names() -> dict[str, str]:
    """The transformers name of each tensor by its GGUF name."""
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    for n in range(LAYERS):
        for ours, theirs in (
            ("attn_norm", "input_layernorm"),
            ("attn_q", "self_attn.q_proj"),
            ("attn_k", "self_attn.k_proj"),
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.o_proj"),
            ("ffn_norm", "post_attention_layernorm"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
        ):
            names[f"blk.{n}.{ours}.weight"] = f"model.layers.{n}.{theirs}.weight"
    return names


def rope_heads(name: str) -> int:
    """The number of heads in a rotated tensor's rows; 0 for tensors without rope."""
    return {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2], 0)


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows from halves (x0 x1 … y0 y1 …), as transformers rotates, to pairs (x0 y0 x1 y1 …)."""
    rows_, columns = weight.shape
    halves = weight.reshape(heads, 2, rows_ // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows_, columns)


def deinterleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of ``interleave``."""
    rows_, columns = weight.shape
    pairs = weight.reshape(heads, rows_ // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows_, columns)


def write_gguf(
    path: Path, model: LlamaForCausalLM, tokenizer: Tokenizer, training: dict[str, float]
) -> None:
    """Writes the model and its vocabulary by llama.cpp's conventions."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("ggmodel stories")
    writer.add_description("A tiny storyteller, trained by examples/training/stories.py")
    writer.add_license("mit")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in training.items():
        if isinstance(value, int):
            writer.add_uint32(f"training.{key}", value)
        else:
            writer.add_float32(f"training.{key}", value)

    described = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in described["merges"]])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    weights = model.state_dict()
    for name, theirs in tensor_names().items():
        weight = weights[theirs].float().numpy()
        if heads := rope_heads(name):
            weight = interleave(weight, heads)
        kind = GGMLQuantizationType.Q8_0 if weight.ndim == 2 else GGMLQuantizationType.F32
        weight = np.ascontiguousarray(weight)
        writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tokenizer(path: Path) -> Tokenizer:
    """The vocabulary in the file, for the tokenizers library."""
    fields = gguf.GGUFReader(path).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def read_gguf(path: Path) -> tuple[LlamaForCausalLM, dict[str, float]]:
    """The model with the file's weights, dequantised to float32, and how it was trained."""
    model = new_model()
    reader = gguf.GGUFReader(path)
    training = {
        key.removeprefix("training."): round(field.contents(), 4)
        for key, field in reader.fields.items()
        if key.startswith("training.")
    }
    weights = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if heads := rope_heads(tensor.name):
            weight = deinterleave(weight, heads)
        weights[tensor_names()[tensor.name]] = torch.from_numpy(np.array(weight, np.float32))
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval(), training


# ---------------------------------------------------------------------------------- evaluation


@torch.inference_mode()
def generate(
    model: LlamaForCausalLM,
    prompt: list[int],
    count: int,
    temperature: float = 0.0,
    floor: float = 0.0,
) -> tuple[list[int], float]:
    """Continues a prompt until EOS; returns the new tokens and the smallest top-two logit gap.

    Gives up as soon as the gap is not above ``floor``.
    """
    ids, margin = list(prompt), math.inf
    cache, feed = None, ids
    while len(ids) - len(prompt) < count:
        out = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, out.logits[0, -1].float()
        top = logits.topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        if margin <= floor and not temperature:
            break
        token = int(top.indices[0])
        if temperature:
            token = int(torch.multinomial((logits / temperature).softmax(0), 1))
        ids.append(token)
        feed = [token]
        if token == EOS:
            break
    return ids[len(prompt) :], margin


def greedy_example(
    model: LlamaForCausalLM, tokenizer: Tokenizer, template: str, chat: bool = False
) -> dict[str, object]:
    """The prompt whose greedy continuation depends least on rounding errors."""
    best: dict[str, object] = {}
    floor = 0.0
    for kind, name in HEROES:
        for place in grammar.PLACES:
            prompt = template.format(kind=kind, name=name, where=place.where)
            ids = [BOS, *tokenizer.encode(prompt).ids]
            if chat:
                ids = [BOS, USER, *ids[1:], END, ASSISTANT]
            continuation, margin = generate(model, ids, GREEDY_TOKENS, floor=floor)
            if margin > floor:
                floor = margin
                best = {
                    "prompt": prompt,
                    "prompt_ids": ids,
                    "continuation_ids": continuation,
                    "text": tokenizer.decode(continuation),
                    "min_margin": round(margin, 4),
                }
    if floor <= MARGIN:
        print(f"warning: the best greedy margin is only {floor:.4f}")
    return best


@torch.inference_mode()
def perplexity(model: LlamaForCausalLM, tokenizer: Tokenizer) -> dict[str, object]:
    """The model's likelihood of held-out stories."""
    texts = [grammar.story(seed) for seed in grammar.HELD_OUT_SEEDS]
    nll, count = 0.0, 0
    for text in texts:
        losses = token_losses(model, torch.tensor([story_ids(tokenizer, text)]))
        nll += losses.double().sum().item()
        count += losses.numel()
    return {
        "how": "each story alone: ids = BOS + text + EOS; the negative log-likelihood (natural "
        "log) of every token after BOS, EOS included, summed over all stories; "
        "perplexity = exp(nll / tokens)",
        "story_seeds": list(grammar.HELD_OUT_SEEDS),
        "texts_sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest(),
        "nll": round(nll, 4),
        "tokens": count,
        "perplexity": round(math.exp(nll / count), 5),
    }


# ---------------------------------------------------------------------------------------- main


def main() -> None:
    """Train, write, read back, measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30, help="time for training")
    parser.add_argument("--steps", type=int, help="train this many steps instead of --minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="more hardly help a small model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "assets")
    parser.add_argument("--resume", action="store_true", help="go on with the file in --out")
    parser.add_argument("--evaluate", action="store_true", help="only measure the file in --out")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "stories.gguf"
    before: dict[str, float] = {}
    if args.resume or args.evaluate:
        tokenizer = read_tokenizer(path)
        model, before = read_gguf(path)
    else:
        tokenizer = train_tokenizer()
        model = new_model()
    if not args.evaluate:
        train(
            model,
            tokenizer,
            args.minutes,
            args.steps,
            args.seed,
            before,
            lambda training: write_gguf(path, model, tokenizer, training),
        )

    model, training = read_gguf(path)
    parameters = sum(p.numel() for p in model.parameters())
    prompt = [BOS, *tokenizer.encode("Once upon a time").ids]
    for _ in range(5):
        text = tokenizer.decode(prompt + generate(model, prompt, 400, temperature=0.7)[0])
        print(f"\n--- temperature 0.7\n{text}")
    reference = {
        "model": {
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "parameters": parameters,
        },
        "measured_with": f"torch {torch.__version__}, transformers {transformers.__version__}, "
        "float32, weights dequantised from the file",
        "training": training,
        "greedy": [greedy_example(model, tokenizer, prompt) for prompt in PROMPTS],
        "chat": greedy_example(model, tokenizer, REQUEST, chat=True),
        "perplexity": perplexity(model, tokenizer),
        "tokenize": [{"text": t, "ids": tokenizer.encode(t).ids} for t in TOKENIZE],
    }
    text = json.dumps(reference, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\d,\s]+\]", lambda m: re.sub(r"\s+", " ", m[0]), text)
    (args.out / "stories.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
