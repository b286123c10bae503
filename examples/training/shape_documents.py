"""The vocabulary, prompts and training documents of the model of ``shapes.py``.

Questions come in two forms, the picture (P) as gemma3 frames it, and mostly first:

    <bos><start_of_turn>user\\nP QUESTION<end_of_turn>\\n<start_of_turn>model\\nANSWER<end_of_turn>
    <bos>P QUESTION ANSWER<end_of_turn>

without the spaces shown here. One conversation asks several questions, sometimes with a new
picture; then the answers are about the latest one.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from ggmodel.image import normalize, resize

sys.path.insert(0, str(Path(__file__).parent))
import shape_pictures as pictures

CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
CONTROL += ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
PAD, EOS, BOS, UNK, START, END, IMAGE_START, IMAGE_END, SOFT = range(len(CONTROL))
DEFINED = ("\n", "\n\n")
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
VOCABULARY = 768
SPACE = "▁"

IMAGE = 64
IMAGE_TOKENS = 16

TURNS = 3
RAW = 0.3  # of the batches: one question without a chat template
BARE = 0.1  # of the pictures: not framed by "\n\n"
BEHIND = 0.1  # of the pictures: behind their question
ANOTHER = 0.15  # of the later questions: about a new picture


def make_tokenizer(pieces: list[str]) -> Tokenizer:
    """The vocabulary of control tokens, bytes and `pieces`, joined as SentencePiece does: of all
    neighbours those whose union comes first among the pieces."""
    ids = {text: n for n, text in enumerate((*CONTROL, *DEFINED, *BYTES, *pieces))}
    known = set(pieces)
    merges = [
        (piece[:at], piece[at:])
        for piece in pieces
        for at in range(1, len(piece))
        if piece[:at] in known and piece[at:] in known
    ]
    model = models.BPE(ids, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in DEFINED])
    return tokenizer


def train_pieces() -> list[str]:
    """Pieces of words in order of merit; all printable characters of ASCII are among them."""
    texts = []
    for seed in pictures.TRAINING_SEEDS[:4_000]:
        asked = pictures.questions(pictures.picture(seed))
        texts += [text for _, ask, answer in asked for text in (ask, f" {answer}", answer)]
    texts += [text[0].upper() + text[1:] for text in texts]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(SPACE, "merged_with_next"), pre_tokenizers.Punctuation()]
    )
    alphabet = [SPACE, *map(chr, range(0x21, 0x7F))]
    room = VOCABULARY - len(CONTROL) - len(DEFINED) - len(BYTES)
    trainer = BpeTrainer(
        vocab_size=room, initial_alphabet=alphabet, min_frequency=200, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    trained = tokenizer.get_vocab()
    pieces = sorted(trained, key=trained.__getitem__)
    return [*(p for p in pieces if len(p) > 1), *(p for p in pieces if len(p) == 1)]


def pixels(image: Image.Image) -> np.ndarray:
    """[3, IMAGE, IMAGE] in [-1, 1], as Gemma 3 prepares a picture."""
    return normalize(resize(image, (IMAGE, IMAGE)), 0.5, 0.5)


def new_picture(chooser: random.Random) -> pictures.Picture:
    return pictures.picture(chooser.choice(pictures.TRAINING_SEEDS))


def seen(shown: list[pictures.Picture]) -> tuple[torch.Tensor, torch.Tensor]:
    """The pixels of pictures, [n, 3, IMAGE, IMAGE], and the numbers of the kind and the colour at
    each place, 0 for none, [n, 2, places]."""
    there = torch.zeros(len(shown), 2, len(pictures.PLACES), dtype=torch.long)
    for n, picture in enumerate(shown):
        for shape in picture.shapes:
            place = list(pictures.PLACES).index(shape.place)
            there[n, 0, place] = 1 + pictures.KINDS.index(shape.kind)
            there[n, 1, place] = 1 + list(pictures.COLOURS).index(shape.colour)
    return torch.from_numpy(np.stack([pixels(pictures.draw(p)) for p in shown])), there


@dataclass
class Document:
    """A text for the model: ids, which of them are answers, and its pictures."""

    ids: list[int] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    pictures: list[pictures.Picture] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    def add(self, ids: list[int], answer: bool = False) -> None:
        self.ids += ids
        self.answers += [answer] * len(ids)


class Writer:
    """Turns pictures and questions into documents."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def framed(self, bare: bool = False) -> list[int]:
        """The tokens of a picture."""
        tokens = [IMAGE_START, *[SOFT] * IMAGE_TOKENS, IMAGE_END]
        lines = self.encode("\n\n")
        return tokens if bare else [*lines, *tokens, *lines]

    def user(self, question: str, shown: bool, chooser: random.Random | None = None) -> list[int]:
        """A question, with its picture if it is `shown`."""
        if not shown:
            return self.encode(question)
        frame = self.framed(chooser is not None and chooser.random() < BARE)
        behind = chooser is not None and chooser.random() < BEHIND
        return self.encode(question) + frame if behind else frame + self.encode(question)

    def prompt(self, question: str, raw: bool) -> list[int]:
        """A single question about a single picture, up to where the answer begins."""
        if raw:
            return [BOS, *self.user(question, True)]
        head, tail = self.encode("user\n"), self.encode("\n")
        turn = [START, *head, *self.user(question, True), END, *tail]
        return [BOS, *turn, START, *self.encode("model\n")]

    def document(self, chooser: random.Random, raw: bool) -> Document:
        """A training document: one question, or a conversation."""
        made = Document([BOS], [False])
        shown = new_picture(chooser)
        for turn in range(1 if raw else TURNS):
            another = turn > 0 and chooser.random() < ANOTHER
            shown = new_picture(chooser) if another else shown
            new = another or turn == 0
            if new:
                made.pictures.append(shown)
            topic, question, answer = pictures.ask(shown, chooser)
            made.topics.append(topic)
            user = self.user(question, new, chooser)
            if raw:
                made.add(user + self.encode(chooser.choice(("", "", "", "\n", " "))))
                made.add([*self.encode(answer), END], True)
                continue
            made.add([START, *self.encode("user\n"), *user, END, *self.encode("\n")])
            made.add([START, *self.encode("model\n")])
            made.add([*self.encode(answer), END], True)
            made.add(self.encode("\n"))
        return made


def collate(
    documents: list[Document],
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """The model's inputs, padded behind; the next token where that is an answer, else -100; and
    what the pictures show, as `seen` says it."""
    longest = max(len(made.ids) for made in documents)
    ids = torch.full((len(documents), longest), PAD)
    targets = torch.full((len(documents), longest), -100)
    for n, made in enumerate(documents):
        row, answers = torch.tensor(made.ids), torch.tensor(made.answers)
        ids[n, : len(row)] = row
        targets[n, : len(row) - 1] = torch.where(answers[1:], row[1:], -100)
    images, there = seen([shown for made in documents for shown in made.pictures])
    inputs = {"input_ids": ids, "pixel_values": images, "token_type_ids": (ids == SOFT).long()}
    return inputs, targets, there
