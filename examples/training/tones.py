"""Train the embedded model that hears: a Whisper of a quarter of a million parameters.

    pip install torch==2.13.0 transformers==5.23.0 -e .
    python examples/training/tones.py --work tones --minutes 10
    python examples/training/tones.py --work tones --minutes 0     # only write and measure

It says how many tones there are, how fast they follow one another and how high each is. The sounds
are made up while it learns. ``--work`` gets a folder in Hugging Face's layout (``Tones/``), which
ggmodel converts to ``tones.gguf``, and the sound of the example, ``tones.wav``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import wave
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import WhisperConfig, WhisperForConditionalGeneration

import ggmodel
from ggmodel.audio import Audio, whisper_mel
from ggmodel.convert import convert

RATE, SECONDS, MELS = 16_000, 2, 24
PITCHES = {"low": 250.0, "middle": 750.0, "high": 2250.0}
PACES = {"slow": 0.45, "fast": 0.22}  # seconds from tone to tone
NUMBERS = ("one", "two", "three", "four")
ASKED, COUNTED = "what do you hear?", "how many tones?"
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
EXAMPLE = ["low", "high", "high", "middle"]


def sound(pitches: list[str], pace: str, chance: random.Random) -> np.ndarray:
    """Tones, none quite in tune, in a little noise or none: float32 [SECONDS · RATE]."""
    samples = np.zeros(SECONDS * RATE)
    begin = chance.uniform(0.0, 0.12)
    volume = chance.uniform(0.2, 0.6)
    for pitch in pitches:
        length = PACES[pace] * chance.uniform(0.55, 0.7)
        clock = np.arange(int(length * RATE)) / RATE
        frequency = PITCHES[pitch] * chance.uniform(0.85, 1.15)
        tone = np.sin(2 * np.pi * frequency * clock) + 0.2 * np.sin(4 * np.pi * frequency * clock)
        tone *= np.minimum(1, 40 * np.minimum(clock, length - clock)) * volume
        start = int(begin * RATE)
        samples[start : start + len(tone)] += tone
        begin += PACES[pace] * chance.uniform(0.95, 1.05)
    noise = np.random.default_rng(chance.getrandbits(32)).normal(0, 1, len(samples))
    return (samples + chance.choice((0.0, 0.002, 0.006)) * noise).astype(np.float32)


def answer(pitches: list[str], pace: str) -> str:
    tones = "tone" if len(pitches) == 1 else f"{pace} tones"
    return f" {NUMBERS[len(pitches) - 1]} {tones}: {', '.join(pitches)}."


def drawn(chance: random.Random) -> tuple[list[str], str]:
    pitches = [chance.choice(list(PITCHES)) for _ in range(chance.randint(1, len(NUMBERS)))]
    return pitches, chance.choice(list(PACES))


def make_tokenizer() -> Tokenizer:
    """Byte pairs that spell each word of the answers as one token, and special tokens."""
    chance = random.Random(1)
    texts = [ASKED + answer(*drawn(chance)) for _ in range(300)] + [COUNTED + " two."] * 50
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def make_model(tokenizer: Tokenizer) -> WhisperForConditionalGeneration:
    end, start, _ = (tokenizer.token_to_id(text) for text in SPECIAL)
    torch.manual_seed(1)
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=tokenizer.get_vocab_size(),
            num_mel_bins=MELS,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_source_positions=50 * SECONDS,
            max_target_positions=64,
            decoder_start_token_id=start,
            begin_suppress_tokens=None,
            **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
        )
    )


def batch(tokenizer: Tokenizer, chance: random.Random, size: int) -> tuple[torch.Tensor, ...]:
    """Spectra, tokens, and the tokens to be learned, −100 elsewhere."""
    end, start, untimed = (tokenizer.token_to_id(text) for text in SPECIAL)
    spectra, rows, wanted = [], [], []
    for _ in range(size):
        pitches, pace = drawn(chance)
        said = answer(pitches, pace)
        spectra.append(whisper_mel(sound(pitches, pace, chance), MELS, length=SECONDS * RATE))
        kind = chance.random()
        if kind < 0.2:
            prompt = [start, untimed]
        elif kind < 0.3:
            prompt, said = [start, *tokenizer.encode(COUNTED).ids], f" {NUMBERS[len(pitches) - 1]}."
        else:
            prompt = [start, *tokenizer.encode(ASKED).ids]
        ids = [*tokenizer.encode(said).ids, end]
        rows.append([*prompt, *ids[:-1]])
        wanted.append([-100] * (len(prompt) - 1) + ids)
    longest = max(map(len, rows))
    tokens = [row + [end] * (longest - len(row)) for row in rows]
    targets = [row + [-100] * (longest - len(row)) for row in wanted]
    return torch.from_numpy(np.stack(spectra)), torch.tensor(tokens), torch.tensor(targets)


def train(model: WhisperForConditionalGeneration, tokenizer: Tokenizer, minutes: float) -> None:
    chance, began, step = random.Random(2), time.time(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    while (share := (time.time() - began) / 60 / max(minutes, 1e-9)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 100, 3 * (1 - share) + 0.02)
        spectra, tokens, targets = batch(tokenizer, chance, 24)
        logits = model(input_features=spectra, decoder_input_ids=tokens).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"{step}: loss {loss.item():.3f}, {share:.0%} of the time", flush=True)
        step += 1


def write(model: WhisperForConditionalGeneration, tokenizer: Tokenizer, work: Path) -> None:
    model.half().save_pretrained(work / "Tones")
    tokenizer.save(str(work / "Tones" / "tokenizer.json"))
    card = "---\nlicense: mit\n---\n# Tones\nA tiny Whisper that names tones.\n"
    (work / "Tones" / "README.md").write_text(card)
    config = json.loads((work / "Tones" / "config.json").read_text())
    (work / "Tones" / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    convert(work / "Tones", work / "tones.gguf", force=True)
    with wave.open(str(work / "tones.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        samples = sound(EXAMPLE, "slow", random.Random(7))
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())


def measure(path: Path, count: int = 100) -> None:
    """The share of new sounds that are told right."""
    chance, right = random.Random(3), 0
    with ggmodel.load(path) as model:
        for _ in range(count):
            pitches, pace = drawn(chance)
            heard = Audio(sound(pitches, pace, chance), RATE)
            said = model.generate(ASKED, audio=[heard], temperature=0, max_tokens=30)
            right += said == answer(pitches, pace)
    print(f"{right} of {count} answers are right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    state = given.work / "state.pt"
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    if state.exists():
        model.load_state_dict(torch.load(state, weights_only=True))
    if given.minutes:
        train(model, tokenizer, given.minutes)
        torch.save(model.state_dict(), state)
    write(model.eval(), tokenizer, given.work)
    measure(given.work / "tones.gguf")


if __name__ == "__main__":
    main()
