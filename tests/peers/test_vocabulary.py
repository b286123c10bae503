"""Pre-tokenizers as they are published, on the published vocabularies, by llama.cpp's own check.

llama.cpp's converter tells a pre-tokenizer by the ids of a text. Sections of a tokenizer.json that
give those ids on the published vocabulary are the true ones; the name must be found from them.
"""

import ast
import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
import tokenizers

from ggmodel.convert.vocabulary import vocabulary
from ggmodel.gguf_file import open_gguf
from ggmodel.tokenizer.pretokenizers import PRE_TOKENIZERS
from tests.convert.vocabulary.published import PUBLISHED

pytestmark = pytest.mark.timeout(1200)  # the first test downloads what it compares with

# Published vocabulary -> entry of PUBLISHED with the same tokenizer.json.
SECTIONS = {
    "command-r": "command-r",
    "deepseek-coder": "deepseek coder",
    "falcon": "falcon",
    "gpt-2": "gpt-2",
    "llama-bpe": "llama 3",
    "mpt": "olmo",
    "qwen2": "qwen2, qwen3",
    "refact": "granite",
    "starcoder": "starcoder",
}


# Vocabularies that put a token in front of every text.
BEGIN = ("command-r", "deepseek-coder", "llama-bpe")


def check(folder: Path) -> tuple[str, dict[str, str]]:
    """The text that the converter encodes, and the name it gives to each hash of its ids."""
    source = (folder / "conversion" / "base.py").read_text("utf-8")
    text = re.search(r"chktxt = ('.*')\n", source)
    assert text is not None
    named = re.findall(r'chkhsh == "(\w+)":\s+#.*\s+res = "([^"]+)"', source)
    return ast.literal_eval(text[1]), dict(named)


@pytest.mark.parametrize("name", SECTIONS)
def test_published_sections_give_the_ids_and_the_name(
    llama_cpp_dir: Path, tmp_path: Path, name: str
):
    with open_gguf(llama_cpp_dir / "models" / f"ggml-vocab-{name}.gguf") as file:
        metadata = file.metadata
        tokens = metadata["tokenizer.ggml.tokens"].tolist()
        types = metadata["tokenizer.ggml.token_type"].tolist()
        merges = metadata["tokenizer.ggml.merges"].tolist()
        begin = metadata["tokenizer.ggml.bos_token_id"]
    entry = PUBLISHED[SECTIONS[name]]
    vocab = {text: id for id, text in enumerate(tokens)}
    special = [id for id, kind in enumerate(types) if kind in (3, 4)]
    flags = {"special": True, "normalized": False, "single_word": False}
    sides = {"lstrip": False, "rstrip": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": tokens[id], **flags, **sides} for id in special],
        "normalizer": entry.normalizer,
        "pre_tokenizer": entry.pre_tokenizer,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}
        | {"ignore_merges": entry.ignore_merges},
    }
    text, names = check(llama_cpp_dir)
    built = tokenizers.Tokenizer.from_str(json.dumps(content))
    ids = built.encode(text, add_special_tokens=False).ids
    if name in BEGIN:
        ids = [begin, *ids]
    known = names[sha256(str(ids).encode()).hexdigest()]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    pre = vocabulary(tmp_path, {"model_type": entry.family})["tokenizer.ggml.pre"]
    assert pre == entry.pre
    assert PRE_TOKENIZERS[pre] == PRE_TOKENIZERS[known]
