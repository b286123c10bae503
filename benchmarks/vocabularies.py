"""Vocabularies of made-up words, for models of random weights."""

from __future__ import annotations

import gguf

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # kinds of tokens


def words(first: list[str], letters: list[str], count: int) -> tuple[list[str], list[str]]:
    """Different tokens, each one of `first` or an earlier token and a letter, and the merges "left
    right" that make them."""
    tokens, merges = list(first), []
    for token in tokens:  # which grows
        for letter in letters:
            if len(tokens) >= count:
                return tokens[:count], merges
            tokens.append(token + letter)
            merges.append(f"{token} {letter}")
    return tokens[:count], merges


def add_vocabulary(writer: gguf.GGUFWriter, pre: str, count: int, special: int) -> None:
    """A made-up vocabulary.

    Args:
        pre: the pre-tokenizer of a BPE vocabulary; "" for a SentencePiece vocabulary.
        count: number of tokens. special: number of special ones among them.
    """
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    if pre:
        _add_bpe(writer, pre, count, special, letters)
    else:
        _add_spm(writer, count, special, letters)


def _add_bpe(
    writer: gguf.GGUFWriter, pre: str, count: int, special: int, letters: list[str]
) -> None:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves
    odd = [256 + i for i in range(256 - len(plain))]
    base = [chr(c) for c in plain + odd]
    seeds = ["\u0120", *letters]  # a space, and letters
    made, merges = words(seeds, letters, count - special - len(base) + len(seeds))
    ordinary = base + made[len(seeds) :]
    controls = [f"<|special_{i}|>" for i in range(special)]
    llama3 = pre == "llama-bpe"  # its special tokens come last
    tokens = ordinary + controls if llama3 else controls + ordinary
    first = len(ordinary) if llama3 else 0
    names = ("<|begin_of_text|>", "<|end_of_text|>") if llama3 else ("<|im_start|>", "<|im_end|>")
    tokens[first : first + 2] = names
    kinds = [NORMAL] * len(tokens)
    kinds[first : first + special] = [CONTROL] * special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(first)
    writer.add_eos_token_id(first + 1)
    writer.add_add_bos_token(llama3)


def _add_spm(writer: gguf.GGUFWriter, count: int, special: int, letters: list[str]) -> None:
    controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    controls = controls[:special]
    single = [f"<0x{i:02X}>" for i in range(256)]
    seeds = ["\u2581", *letters, *(chr(c) for c in range(33, 127) if not chr(c).islower())]
    made, _ = words(seeds, letters, count - len(controls) - len(single))
    kinds = [CONTROL] * len(controls) + [BYTE] * len(single) + [NORMAL] * len(made)
    kinds[3] = UNKNOWN
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*controls, *single, *made])
    writer.add_token_types(kinds)
    writer.add_token_scores(
        [0.0] * (len(controls) + len(single)) + [-float(i) for i in range(len(made))]
    )
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
