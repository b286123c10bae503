"""Make the directories in data/ and what llama.cpp's converter writes for them.

From the root of the repository, in an environment of its own (the tests need none of this):

    pip install torch==2.13.0 transformers==5.23.0 sentencepiece==0.2.3 mistral-common==1.13.1 \
        tiktoken==0.14.0 protobuf gguf numpy rwkv==0.8.32
    python -m tests.convert.vocabulary.make PATH/TO/llama.cpp [FOLDER…]

Each folder is a Hugging Face directory without weights. In `expected.json` is the `metadata` of
the converter, [type, value] for each key, and `ids` of texts by the original library:
sentencepiece, BertTokenizerFast, mistral_common, tiktoken or rwkv; what a tokenizer.json says can
be had from `tokenizers` at any time. The converter names a pre-tokenizer by a hash that needs the
published vocabulary: it is told the name here. It runs the class of a tokenizer of tiktoken, which
stands here in few lines. The trainers order ties at random, so a vocabulary comes out differently
each time.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import argparse
import base64
import importlib
import json
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sentencepiece
import tiktoken
import transformers
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from rwkv.rwkv_tokenizer import TRIE_TOKENIZER
from transformers import BertTokenizerFast

from tests.convert.vocabulary.directories import CORPUS, FOLDERS, save
from tests.convert.vocabulary.published import KIMI, QWEN2

DATA = Path(__file__).parent / "data"
# The same vocabulary under the rules of another family.
OTHERS = {"gemma": ("gemma3", "GemmaForCausalLM"), "gemma2": ("gemma3", "Gemma2ForCausalLM")}


def texts() -> list[str]:
    """Lines of the corpus, and seeded texts of any characters."""
    draw = random.Random(7)
    made = ["", " ", "  two  spaces", "\n\n \n", "naïve Größe ÀÉ", "x" * 120, "日本語 中文 한국어"]
    for _ in range(120):
        few = " -=>#ab01'\n\t.é日🙂"
        made.append("".join(draw.choices(CORPUS + few * 20, k=draw.randrange(30))))
    return [*CORPUS.splitlines(), *made]


def converted(folder: Path, config: dict[str, Any], pre: str) -> dict[str, list[Any]]:
    """The keys that `set_vocab` of the converter writes: type and value of each."""
    import gguf

    conversion = importlib.import_module("conversion")
    kind = conversion.get_model_class(config["architectures"][0])
    model = kind.__new__(kind)
    model.dir_model = folder
    model.hparams = {**config, **config.get("text_config", {})}
    model.hf_arch = model.origin_hf_arch = config["architectures"][0]
    model.is_mistral_format = model.disable_mistral_community_chat_template = False
    model.get_vocab_base_pre = lambda tokenizer: pre
    model.gguf_writer = gguf.GGUFWriter(path=None, arch="llama")
    if (encoding := tiktoken_of(folder)) is not None:
        ranks, special = encoding._mergeable_ranks, encoding._special_tokens
        made = SimpleNamespace(model=encoding, mergeable_ranks=ranks, special_tokens=special)
        made.eos_id = special.get("[EOS]")
        made.get_vocab = lambda: special
        transformers.AutoTokenizer = SimpleNamespace(from_pretrained=lambda *_, **__: made)
    model.set_vocab()
    result: dict[str, list[Any]] = {}
    for key, found in model.gguf_writer.kv_data[0].items():
        value, name = found.value, found.type.name
        if name == "ARRAY":
            uint8 = isinstance(value, bytes)
            item = "UINT8" if uint8 else gguf.GGUFValueType.get_type(value[0]).name
            value = [v.decode() if isinstance(v, bytes) else v for v in value]
            name = f"ARRAY {item}"
        if key.startswith("tokenizer."):
            result[key] = [name, value]
    return result


def tiktoken_of(folder: Path) -> tiktoken.Encoding | None:
    """The folder's file as the class of its tokenizer reads it; None without a file of tiktoken."""
    path = next(folder.glob("*tiktoken*"), None)
    if path is None:
        return None
    rows = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in rows}
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    first = len(ranks)
    if path.suffix == ".tiktoken":
        names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        names += [f"<|extra_{n}|>" for n in range(205)]
    else:
        decoder = settings["added_tokens_decoder"]
        reserved = {str(id): f"<|reserved_token_{id}|>" for id in range(first, first + 256)}
        names = [decoder.get(id, {}).get("content", text) for id, text in reserved.items()]
    special = {text: first + n for n, text in enumerate(names)}
    pattern = QWEN2 if path.suffix == ".tiktoken" else KIMI
    return tiktoken.Encoding(
        path.name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
    )


def ids_of(folder: Path) -> list[list[Any]]:
    """Ids of texts by the library that the vocabulary was made for."""
    if (folder / "tekken.json").is_file():
        tekken = Tekkenizer.from_file(folder / "tekken.json")
        more = ["<s>[INST] a[/INST]</s><pad>", "[TRANSCRIBE]", "<SPECIAL_39> <SPECIAL_40>"]
        return [[text, tekken.encode(text, bos=False, eos=False)] for text in [*texts(), *more]]
    if (world := folder / "rwkv_vocab_v20230424.txt").is_file():
        trie = TRIE_TOKENIZER(str(world))
        more = [
            "<s>",
            "it's \\ 'so' \"so\" '\"",
            "\\n \\\\n \\x41",
            "a\n\n\n\tb\t\t\n",
            "日本 本日",
        ]
        return [[text, trie.encode(text)] for text in [*texts(), *more]]
    if (encoding := tiktoken_of(folder)) is not None:
        more = ["[BOS]a[EOS]", "<|im_end|>", "<|reserved_token_500|>"]
        return [[text, encoding.encode_ordinary(text)] for text in [*texts(), *more]]
    path = next(
        (p for n in ("tokenizer.model", "spiece.model") if (p := folder / n).is_file()), None
    )
    if path is not None:
        library = sentencepiece.SentencePieceProcessor(str(path))
        return [[text, library.encode(text)] for text in texts()]
    if folder.name.startswith("bert"):
        fast = BertTokenizerFast.from_pretrained(folder)
        more = [
            "a [MASK] b[SEP]",
            "[CLS][MASK]",
            "Don't can't U.S.A.",
            "Élan\u0301 ÅNGSTRÖM İstanbul",
        ]
        return [[text, fast(text)["input_ids"]] for text in [*texts(), *more]]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description="Make data/ with a checkout of llama.cpp.")
    parser.add_argument("llama_cpp", type=Path, help="a checkout of llama.cpp")
    parser.add_argument("folders", nargs="*", default=[*FOLDERS], help="which to make; all")
    given = parser.parse_args()
    llama_cpp = given.llama_cpp
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    for name in given.folders:
        make, pre = FOLDERS[name]
        folder = DATA / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = make(folder)
        save(folder, "config.json", config)
        expected: dict[str, Any] = {"metadata": converted(folder, config, pre)}
        for family, (of, architecture) in OTHERS.items():
            if of == name:
                other = {**config, "model_type": family, "architectures": [architecture]}
                expected[family] = converted(folder, other, pre)
        save(folder, "expected.json", {**expected, "ids": ids_of(folder)})
    for file in sorted(DATA.glob("*/*.*")):
        print(f"{file.stat().st_size:8} {file.relative_to(DATA)}")


if __name__ == "__main__":
    main()
