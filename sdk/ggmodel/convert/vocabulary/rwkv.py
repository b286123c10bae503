"""RWKV's vocabulary: a text file with a line for each token, "261 '\\n\\n' 2": its id, its spelling
in Python, as a text or as bytes, and its number of bytes."""

from __future__ import annotations

import ast
import warnings
from typing import Any

import numpy as np

from ...tokenizer.vocabulary import LONGEST, PREFIX, TokenType, check_count, check_letters
from .files import RWKV_WORLD, Files, special_tokens

_END = "<s>"  # the token 0, which the file does not have
_END_OF_TURN = b"\n\n"


def rwkv(files: Files) -> dict[str, Any]:
    """The metadata. Answers end with an empty line, which chats are written with.

    Raises:
        FormatError: the file is damaged.
        TokenizerError: it exceeds a limit of vocabularies.
    """
    lines = (files.text(RWKV_WORLD) or "").split("\n")
    tokens = [_token(files, line, id) for id, line in enumerate(lines[:-1], 1)]
    size = files.vocab_size or len(tokens) + 1
    if not tokens or lines[-1] or size <= len(tokens):
        raise files.damaged(RWKV_WORLD, f"it has {len(tokens)} whole lines, for {size} tokens")
    check_count(str(files.folder / RWKV_WORLD), size)
    padding = range(len(tokens) + 1, size)
    texts = [_END, *(repr(token)[2:-1] for token in tokens), *(f"[PAD{id}]" for id in padding)]
    check_letters(str(files.folder / RWKV_WORLD), texts)
    normal, unused = [TokenType.NORMAL] * len(tokens), [TokenType.UNUSED] * len(padding)
    ends = {"eot_token_id": tokens.index(_END_OF_TURN) + 1} if _END_OF_TURN in tokens else {}
    ends |= {"bos_token_id": 0, "eos_token_id": 0}
    return {
        PREFIX + "model": "rwkv",
        PREFIX + "tokens": texts,
        PREFIX + "token_type": np.array([TokenType.CONTROL, *normal, *unused], np.int32),
        **special_tokens(files, texts),
        **{PREFIX + key: id for key, id in ends.items()},
    }


def _token(files: Files, line: str, id: int) -> bytes:
    try:
        number, spelled = line.split(" ", 1)
        spelled, length = spelled.rsplit(" ", 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes
            value = ast.literal_eval(spelled)
        token = value.encode() if isinstance(value, str) else value
        fits = isinstance(token, bytes) and int(number) == id and int(length) == len(token)
        fits = fits and 0 < len(token) <= LONGEST
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        token, fits = b"", False
    if not fits:
        raise files.damaged(RWKV_WORLD, f"line {id} is {line!r:.80}, not id, token and its length")
    return token
