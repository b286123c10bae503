"""Train the embedded multimodal model: a gemma3 of about a million parameters.

    pip install torch==2.13.0 transformers==5.23.0 safetensors -e .
    python examples/training/shapes.py --work shapes --minutes 75
    python examples/training/shapes.py --work shapes --export     # only write and measure

On a CPU, a small SentencePiece-like vocabulary and a gemma3 with a SigLIP tower are trained on the
pictures and questions of ``shape_pictures.py``, in the prompts of ``shape_documents.py``: first the
tower alone, to locate shapes, then the whole model, to answer. ``--work`` holds the state of a run,
which can be stopped and continued, and finally the checkpoint in Hugging Face's layout (``hf/``),
rounded to F16. ggmodel converts that to ``shapes.gguf``. The results of transformers with the same
weights go to ``shapes.json``, for the tests of other engines.

The file in ``assets`` was made with interruptions: on the way the batch went from 48 documents to
16, and pictures of one shape and the topics learned first became rarer, as they are now; its
vocabulary is that of the older mix.
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
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from ggmodel.convert import from_hf
from ggmodel.model.registry import find

sys.path.insert(0, str(Path(__file__).parent))
import shape_pictures as pictures
from shape_documents import (
    BOS,
    BYTES,
    CONTROL,
    DEFINED,
    END,
    EOS,
    IMAGE,
    IMAGE_END,
    IMAGE_START,
    IMAGE_TOKENS,
    PAD,
    RAW,
    SOFT,
    UNK,
    Document,
    Writer,
    collate,
    make_tokenizer,
    new_picture,
    pixels,
    seen,
    train_pieces,
)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

PATCH = 8
CONTEXT = 512

LOOKING = 0.15  # of the time: the tower alone learns to see
LOOKS = 64  # pictures in a batch of that
SIGHT = 0.3  # weight of seeing beside answering
BATCH = 16  # documents
MATRIX_RATE = 4e-3  # Muon, for the matrices of the layers
OTHER_RATE = 3e-3  # AdamW, for everything else
WEIGHT_DECAY = 0.05
WARM_UP = 0.01

EXAMPLES = 60  # answers in shapes.json


# ------------------------------------------------------------------------------------ training


def configuration(vocabulary: int) -> Gemma3Config:
    """The architecture: two local layers, a global one, and again."""
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "max_position_embeddings": CONTEXT,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "image_size": IMAGE,
        "patch_size": PATCH,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "vision_use_head": False,
    }
    return Gemma3Config(
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=IMAGE_TOKENS,
        boi_token_index=IMAGE_START,
        eoi_token_index=IMAGE_END,
        image_token_index=SOFT,
        eos_token_id=[EOS, END],
        pad_token_id=PAD,
        bos_token_id=BOS,
        tie_word_embeddings=True,
    )


def new_model(vocabulary: int) -> Gemma3ForConditionalGeneration:
    """Fresh weights, including the projection, which transformers leaves zero."""
    model = Gemma3ForConditionalGeneration(configuration(vocabulary))
    projection = model.model.multi_modal_projector.mm_input_projection_weight
    torch.nn.init.normal_(projection, std=projection.shape[0] ** -0.5)
    return model


class Sight(torch.nn.Module):
    """Classifies each place of a picture from its tokens; used for training only."""

    def __init__(self, width: int):
        super().__init__()
        side = math.isqrt(IMAGE_TOKENS)
        line = (torch.arange(side) + 0.5) / side
        places = torch.tensor(list(pictures.PLACES.values()))
        across = (places[:, :1] - line.repeat(side)) ** 2
        down = (places[:, 1:] - line.repeat_interleave(side)) ** 2
        self.near = torch.nn.Parameter(-20 * (across + down))
        self.kind = torch.nn.Linear(width, 1 + len(pictures.KINDS))
        self.colour = torch.nn.Linear(width, 1 + len(pictures.COLOURS))

    def loss(self, tokens: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """The cross-entropy of kinds and colours, given [n, IMAGE_TOKENS, width]."""
        spots = self.near.softmax(-1) @ tokens
        told = zip((self.kind, self.colour), there.unbind(1), strict=True)
        losses = [cross_entropy(head(spots).transpose(1, 2), right) for head, right in told]
        return losses[0] + losses[1]


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the rest."""
    named = dict(model.named_parameters())
    layers = [p for name, p in named.items() if p.dim() == 2 and ".layers." in name]
    rest = [p for name, p in named.items() if p.dim() != 2 or ".layers." not in name]
    return [
        torch.optim.Muon(
            layers, lr=MATRIX_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


class Run:
    """A training run that can be stopped and continued."""

    def __init__(self, tokenizer: Tokenizer, work: Path, seed: int):
        self.writer = Writer(tokenizer)
        self.model = new_model(tokenizer.get_vocab_size())
        self.sight = Sight(self.model.config.text_config.hidden_size)
        self.both = torch.nn.ModuleList([self.model, self.sight])
        self.makers = optimizers(self.both)
        self.rates = [[group["lr"] for group in maker.param_groups] for maker in self.makers]
        self.file = work / "state.pt"
        self.step, self.seconds, self.average = 0, 0.0, 0.0
        if self.file.exists():
            state = torch.load(self.file)
            self.step, self.seconds, self.average = state["at"]
            self.both.load_state_dict(state["both"])
            for maker, values in zip(self.makers, state["makers"], strict=True):
                maker.load_state_dict(values)
        self.chooser = random.Random(seed + self.step)

    def save(self) -> None:
        values = [maker.state_dict() for maker in self.makers]
        at = (self.step, self.seconds, self.average)
        torch.save({"both": self.both.state_dict(), "makers": values, "at": at}, self.file)

    def look(self) -> torch.Tensor:
        """The loss of seeing."""
        images, there = seen([new_picture(self.chooser) for _ in range(LOOKS)])
        return self.sight.loss(self.model.model.get_image_features(images).pooler_output, there)

    def answer(self) -> torch.Tensor:
        """The loss of answering, and a little of seeing."""
        raw = self.chooser.random() < RAW
        made = [self.writer.document(self.chooser, raw) for _ in range(BATCH)]
        inputs, targets, there = collate(made)
        out = self.model(**inputs, use_cache=False)
        answered = cross_entropy(out.logits.flatten(0, 1), targets.flatten())
        return answered + SIGHT * self.sight.loss(out.image_hidden_states, there)

    def train(self, minutes: float) -> None:
        """Trains until the time is spent; the learning rate follows the clock, twice."""
        start, saved = time.monotonic() - self.seconds, self.seconds
        while self.seconds < 60 * minutes:
            progress = self.seconds / (60 * minutes)
            looking = progress < LOOKING
            within = progress / LOOKING if looking else (progress - LOOKING) / (1 - LOOKING)
            scale = min(within / WARM_UP + 0.05, 1) * (
                0.01 + 0.495 * (1 + math.cos(math.pi * within))
            )
            for maker, rates in zip(self.makers, self.rates, strict=True):
                for group, rate in zip(maker.param_groups, rates, strict=True):
                    group["lr"] = rate * scale
            loss = self.look() if looking else self.answer()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.both.parameters(), 1.0)
            for maker in self.makers:
                maker.step()
                maker.zero_grad()
            self.step += 1
            self.average += (loss.item() - self.average) * 0.05
            if self.step % 100 == 0:
                print(f"step {self.step}  {progress:.1%}  loss {self.average:.4f}", flush=True)
            self.seconds = time.monotonic() - start
            if self.seconds - saved > 120:
                saved = self.seconds
                self.save()
                print(f"{saved / 60:.1f} min", accuracy(self.model, self.writer, 96), flush=True)
        self.save()


# ---------------------------------------------------------------------------------- evaluation


@torch.inference_mode()
def accuracy(model: Gemma3ForConditionalGeneration, writer: Writer, count: int) -> dict[str, float]:
    """The share of held-out questions answered right, word for word; by topic and in all.

    Each picture gets one question in either form. A greedy answer is right if each of its tokens is
    the likeliest after those before.
    """
    right: dict[str, list[bool]] = {}
    for first in range(0, count, 32):
        made = []
        for seed in pictures.HELD_OUT_SEEDS[first : min(first + 32, count)]:
            for raw in (False, True):
                topic, prompt, answer = held_out(writer, seed, raw)
                one = Document(pictures=[pictures.picture(seed)], topics=[topic])
                one.add(prompt)
                one.add([*writer.encode(answer), END], True)
                made.append(one)
        inputs, targets, _ = collate(made)
        guesses = model(**inputs, use_cache=False).logits.argmax(-1)
        hits = ((guesses == targets) | (targets == -100)).all(1)
        for one, hit in zip(made, hits.tolist(), strict=True):
            right.setdefault(one.topics[0], []).append(hit)
    right["all"] = [hit for hits in right.values() for hit in hits]
    return {topic: round(sum(hits) / len(hits), 4) for topic, hits in sorted(right.items())}


def held_out(writer: Writer, seed: int, raw: bool) -> tuple[str, list[int], str]:
    """The question about a held-out picture: topic, prompt and right answer."""
    topic, question, answer = pictures.ask(pictures.picture(seed), random.Random(2 * seed + raw))
    return topic, writer.prompt(question, raw), answer


@torch.inference_mode()
def reply(
    model: Gemma3ForConditionalGeneration, prompt: list[int], image: np.ndarray
) -> tuple[list[int], float]:
    """The greedy answer, END included, and the smallest gap between the two largest logits."""
    answer: list[int] = []
    margin = math.inf
    while len(answer) < 40 and answer[-1:] != [END]:
        ids = torch.tensor([prompt + answer])
        out = model(
            input_ids=ids,
            pixel_values=torch.from_numpy(image[None]),
            token_type_ids=(ids == SOFT).long(),
            use_cache=False,
        )
        top = out.logits[0, -1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        answer.append(int(top.indices[0]))
    return answer, margin


def answers(model: Gemma3ForConditionalGeneration, writer: Writer) -> list[dict[str, object]]:
    """Held-out questions and what the model answers, right or wrong."""
    made = []
    for seed in pictures.HELD_OUT_SEEDS[-EXAMPLES:]:
        shown, raw = pictures.picture(seed), seed % 2 == 1
        _, question, expected = pictures.ask(shown, random.Random(2 * seed + raw))
        image = pictures.draw(shown)
        prompt = writer.prompt(question, raw)
        ids, margin = reply(model, prompt, pixels(image))
        made.append(
            {
                "seed": seed,
                "drawn_sha256": hashlib.sha256(image.tobytes()).hexdigest(),
                "form": "raw" if raw else "chat",
                "question": question,
                "prompt_ids": prompt,
                "expected": expected,
                "answer": writer.tokenizer.decode(ids),
                "answer_ids": ids,
                "min_margin": round(margin, 4),
            }
        )
    return made


# ------------------------------------------------------------------------------------- writing


def save(run: Run, folder: Path) -> None:
    """The checkpoint in Hugging Face's layout, and under the names of the published ones; its
    matrices rounded to F16."""
    folder.mkdir(parents=True, exist_ok=True)
    run.model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in list(weights):
        weight = weights.pop(name)
        weight = weight.astype(np.float16).astype(np.float32) if weight.ndim > 1 else weight
        published = re.sub(r"^vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.", name)
        weights[published] = weight
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    run.writer.tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), CONTROL, strict=False))
    names |= {"boi_token": CONTROL[IMAGE_START], "eoi_token": CONTROL[IMAGE_END]}
    size = {"height": IMAGE, "width": IMAGE}
    half = [0.5, 0.5, 0.5]
    files = {
        "tokenizer_config.json": {
            **names,
            "image_token": CONTROL[SOFT],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHAT_TEMPLATE,
        },
        "preprocessor_config.json": {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": size,
            "image_mean": half,
            "image_std": half,
        },
        "training.json": {"steps": run.step, "minutes": round(run.seconds / 60, 1)},
    }
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def vocabulary(tokenizer: Tokenizer) -> dict[str, object]:
    """The metadata of the vocabulary."""
    ids = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = dict.fromkeys(CONTROL, gguf.TokenType.CONTROL)
    kinds |= dict.fromkeys(DEFINED, gguf.TokenType.USER_DEFINED)
    kinds |= dict.fromkeys(BYTES, gguf.TokenType.BYTE)
    kinds[CONTROL[UNK]] = gguf.TokenType.UNKNOWN
    first = len(CONTROL) + len(DEFINED) + len(BYTES)
    return {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": [int(kinds.get(token, gguf.TokenType.NORMAL)) for token in tokens],
        "scores": [float(-max(0, n - first + 1)) for n in range(len(tokens))],
        "padding_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "unknown_token_id": UNK,
        "eot_token_id": END,
        "add_bos_token": True,
        "add_eos_token": False,
        "add_space_prefix": False,
    }


def write_gguf(path: Path, folder: Path) -> None:
    """The checkpoint as GGUF, by the names that ggmodel's gemma3 declares."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    source = from_hf(find("gemma3"), config, load_file(folder / "model.safetensors"))
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_name("ggmodel shapes")
    writer.add_description("Answers questions about shapes; examples/training/shapes.py made it")
    writer.add_license("mit")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_chat_template(CHAT_TEMPLATE)
    keys = {f"tokenizer.ggml.{key}": value for key, value in vocabulary(tokenizer).items()}
    for key, value in {**source.metadata, **keys}.items():
        if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
            writer.add_array(key, list(value))
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    for name, info in source.tensors.items():
        weight = np.frombuffer(source.data(name), np.float32).reshape(info.shape[::-1])
        # Positions are added, not multiplied; ggml wants that in F32.
        halved = weight.ndim > 1 and "position" not in name
        writer.add_tensor(name, weight.astype(np.float16) if halved else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def measure(folder: Path, path: Path) -> dict[str, object]:
    """The contents of shapes.json, for tests with another engine."""
    model = Gemma3ForConditionalGeneration.from_pretrained(folder).eval()
    writer = Writer(Tokenizer.from_file(str(folder / "tokenizer.json")))
    texts = ("What is in the picture?", "a red circle and an orange star.", "Zoë\n\n\n said 42")
    return {
        "model": {
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None,
            "parameters": sum(p.numel() for p in model.parameters()),
        },
        "measured_with": f"torch {torch.__version__}, transformers {transformers.__version__}, "
        "float32, matrices rounded to F16",
        "training": json.loads((folder / "training.json").read_text(encoding="utf-8")),
        "accuracy": accuracy(model, writer, len(pictures.HELD_OUT_SEEDS)),
        "answers": answers(model, writer),
        "tokenize": [{"text": text, "ids": writer.encode(text)} for text in texts],
    }


def main() -> None:
    """Train, save, convert, measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder of this run")
    parser.add_argument("--minutes", type=float, default=75, help="time for training, in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="more hardly help a small model")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "assets")
    parser.add_argument("--export", action="store_true", help="only write and measure")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    folder, path = args.work / "hf", args.out / "shapes.gguf"
    if not args.export:
        kept = args.work / "tokenizer.json"
        if not kept.exists():
            make_tokenizer(train_pieces()).save(str(kept))
        run = Run(Tokenizer.from_file(str(kept)), args.work, args.seed)
        run.train(args.minutes)
        save(run, folder)
    pictures.draw(pictures.SCENE).save(args.out / "scene.png", optimize=True)
    first, *others = pictures.draw_clip()
    frames = {"append_images": others, "duration": 1000 // pictures.FPS}
    first.save(args.out / "clip.gif", save_all=True, **frames)
    write_gguf(path, folder)
    reference = measure(folder, path)
    text = json.dumps(reference, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[\d,\s]+\]", lambda m: re.sub(r"\s+", " ", m[0]), text)
    (args.out / "shapes.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
