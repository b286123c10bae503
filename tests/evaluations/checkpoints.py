"""Tiny F32 checkpoints whose tokenizers read any text, one of which begins texts with a token."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, processors

from tests.convert.folders import write_model
from tests.convert.sentences import byte_pairs, held, qwen3
from tests.golden.files import load_golden


def llama(folder: Path) -> Path:
    """Texts begin with "<|im_start|>"."""
    golden = load_golden("llama", "plain_gqa")
    folder.mkdir(parents=True, exist_ok=True)
    size = byte_pairs(folder, closing=False)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    begin = "<|im_start|>"
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{begin} $A", special_tokens=[(begin, made.token_to_id(begin))]
    )
    made.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"bos_token": begin, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return write_model(folder, {**golden.config, "vocab_size": size}, held(golden, size))


def plain(folder: Path) -> Path:
    """A Qwen 3, whose texts begin with no such token."""
    return qwen3(folder, closing=False)


# Name → a checkpoint, and options of both; a window of 20 is shorter than most texts. The
# beginning of text in Qwen's config.json is none of its tokenizer, and `hf` begins with the end.
CASES = {
    "plain": (plain, ",prefix_token_id=2"),
    "begins": (llama, ""),
    "windows": (plain, ",prefix_token_id=2,max_length=20"),
    "begins-windows": (llama, ",max_length=20"),
}
