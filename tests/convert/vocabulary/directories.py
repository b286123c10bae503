"""Small Hugging Face directories, one of each kind of vocabulary; for make.py."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import BertTokenizerFast, XLMRobertaTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ggmodel.convert.vocabulary.files import read_sentencepiece
from tests.convert.vocabulary.published import PUBLISHED, TEKKEN

CORPUS = (Path(__file__).parents[2] / "tokenizer" / "data" / "corpus.txt").read_text("utf-8")
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


def save(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")


def template_of(single: list[str], pair: list[str], ids: dict[str, int]) -> dict[str, Any]:
    def part(name: str) -> dict[str, Any]:
        if name in ("A", "B"):
            return {"Sequence": {"id": name, "type_id": int(name == "B")}}
        return {"SpecialToken": {"id": name, "type_id": 0}}

    special = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in ids.items()}
    return {
        "type": "TemplateProcessing",
        "single": [part(name) for name in single],
        "pair": [part(name) for name in pair],
        "special_tokens": special,
    }


def byte_level(
    folder: Path, published: str, added: list[AddedToken], size: int = 330, **sections: Any
) -> dict[str, int]:
    """tokenizer.json of byte pairs; the ids of its tokens."""
    _, _, cutter, normalizer, ignore_merges = PUBLISHED[published]
    built = Tokenizer(models.BPE())
    steps = {**json.loads(built.to_str()), "pre_tokenizer": cutter, "normalizer": normalizer}
    built = Tokenizer.from_str(json.dumps(steps))
    alphabet = ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    built.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    built.add_tokens(added)
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    content = {**json.loads(built.to_str()), "decoder": {**decoder, "use_regex": True}}
    content["model"]["ignore_merges"] = ignore_merges
    ids = built.get_vocab()
    for name, section in sections.items():
        content[name] = section(ids) if callable(section) else section
    save(folder, "tokenizer.json", content)
    return ids


def special(text: str, **flags: Any) -> AddedToken:
    return AddedToken(text, special=True, normalized=False, **flags)


def plain(text: str, **flags: Any) -> AddedToken:
    return AddedToken(text, **{"special": False, "normalized": False, **flags})


def llama3(folder: Path) -> dict[str, Any]:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    ids = byte_level(
        folder,
        "llama 3",
        [*map(special, names), plain("<|python_tag|>"), plain("[TOOL]", normalized=True)],
        post_processor=lambda ids: {
            "type": "Sequence",
            "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
                | {"use_regex": True},
                template_of(
                    [names[0], "A"], [names[0], "A", names[0], "B"], {names[0]: ids[names[0]]}
                ),
            ],
        },
    )
    settings = {"bos_token": names[0], "eos_token": names[2], "chat_template": TEMPLATE}
    save(
        folder, "tokenizer_config.json", {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    )
    save(folder, "generation_config.json", {"eos_token_id": [ids[names[1]], ids[names[2]]]})
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 344,  # more rows than tokens
        "bos_token_id": ids[names[0]],
        "eos_token_id": [ids[names[1]], ids[names[2]]],
    }


def smollm(folder: Path) -> dict[str, Any]:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ids = byte_level(folder, "smollm", [*map(special, names)], 300)
    settings = {"bos_token": names[1], "eos_token": names[2], "unk_token": names[0]}
    more = {"pad_token": "[PAD]", "add_prefix_space": False, "additional_special_tokens": names}
    save(folder, "tokenizer_config.json", {**settings, **more})
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(ids) + 2,  # room for [PAD], which only the settings name
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def qwen2(folder: Path) -> dict[str, Any]:
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ids = byte_level(
        folder,
        "qwen2, qwen3",
        [*map(special, names), plain("<tool_call>"), plain("<think>")],
        post_processor={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        | {"use_regex": False},
    )
    own = ["<tool_call>", "<think>"]
    decoder = {
        str(ids[name]): {"content": name, "special": name in names, "normalized": False}
        for name in [*names, *own]
    }
    settings = {"bos_token": None, "eos_token": names[2], "pad_token": names[0]}
    more = {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": decoder}
    save(folder, "tokenizer_config.json", {**settings, **more})
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    more_templates = folder / "additional_chat_templates"
    more_templates.mkdir()
    (more_templates / "tool-use.jinja").write_text("tools: " + TEMPLATE, "utf-8")
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 352,
        "bos_token_id": ids[names[0]],
        "eos_token_id": ids[names[2]],
    }


def gpt_oss(folder: Path) -> dict[str, Any]:
    names = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|call|>", "<|end|>"]
    ids = byte_level(folder, "gpt-oss", [*map(special, names)], 300)
    settings = {"bos_token": names[0], "eos_token": names[2], "pad_token": names[1]}
    save(folder, "tokenizer_config.json", settings)
    save(folder, "chat_template.json", {"chat_template": TEMPLATE})
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": len(ids),
        "eos_token_id": ids[names[2]],
        "pad_token_id": ids[names[1]],
    }


def llama4(folder: Path) -> dict[str, Any]:
    names = ["<|begin_of_text|>", "<|eot|>", "<|finetune_right_pad|>"]
    ids = byte_level(folder, "llama 4", [*map(special, names)], 300)
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool use", "template": "tools"}]
    settings = {
        "bos_token": names[0],
        "eos_token": {"__type": "AddedToken", "content": names[1]},
        "pad_token": names[2],
    }
    save(folder, "tokenizer_config.json", {**settings, "chat_template": named})
    text = {"model_type": "llama4_text", "vocab_size": len(ids), "bos_token_id": ids[names[0]]}
    architecture = "Llama4ForConditionalGeneration"
    return {"architectures": [architecture], "model_type": "llama4", "text_config": text}


def olmo2(folder: Path) -> dict[str, Any]:
    """Its texts end with another token than its settings say."""
    end = "<|pad|>"
    ids = byte_level(
        folder,
        "olmo 2",
        [special("<|endoftext|>"), plain(end)],
        300,
        post_processor=lambda ids: template_of(["A", end], ["A", end, "B", end], {end: ids[end]}),
    )
    settings = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    save(folder, "tokenizer_config.json", settings)
    config = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
    return {**config, "vocab_size": 320, "eos_token_id": ids["<|endoftext|>"]}


def roberta(folder: Path) -> dict[str, Any]:
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    ids = byte_level(
        folder,
        "roberta",
        [*map(special, names)],
        300,
        post_processor=lambda ids: {
            "type": "RobertaProcessing",
            "sep": ["</s>", ids["</s>"]],
            "cls": ["<s>", ids["<s>"]],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
    )
    tokens = dict(zip(("bos", "pad", "eos", "unk", "mask"), names, strict=True))
    settings = {f"{name}_token": token for name, token in tokens.items()}
    save(folder, "tokenizer_config.json", settings)
    config = {"architectures": ["RobertaModel"], "model_type": "roberta", "type_vocab_size": 1}
    return {**config, "vocab_size": len(ids)}


def sentence_piece(folder: Path, name: str = "tokenizer.model", **options: Any) -> int:
    """A SentencePiece model; how many pieces it has."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines()),
        model_writer=model,
        num_threads=1,
        minloglevel=2,
        **{"model_type": "bpe", "byte_fallback": True, "character_coverage": 0.98, **options},
    )
    (folder / name).write_bytes(model.getvalue())
    library = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return library.vocab_size()


IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def llama2(folder: Path) -> dict[str, Any]:
    size = sentence_piece(folder, vocab_size=480, **IDENTITY)
    save(folder, "added_tokens.json", {"<extra>": size, "▁<more>": size + 1, "<far>": 900})
    decoder = {
        "0": {"content": "<unk>", "special": True},
        "1": {"content": "<s>", "special": True},
        "2": {"content": "</s>", "special": True},
        str(size + 1): {"content": "▁<more>", "special": False},
        str(size + 2): {"content": "<|looks|>", "special": False},
    }
    settings = {"bos_token": {"__type": "AddedToken", "content": "<s>"}, "eos_token": "</s>"}
    more = {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": True}
    save(folder, "tokenizer_config.json", {**settings, **more, "added_tokens_decoder": decoder})
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size + 6}
    return {**config, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gemma3(folder: Path) -> dict[str, Any]:
    symbols = ["<start_of_image>", "▁▁", "▁▁▁", "<start_of_turn>", "<end_of_turn>", "<unused0>"]
    size = sentence_piece(
        folder,
        vocab_size=480,
        add_dummy_prefix=False,
        user_defined_symbols=symbols,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        bos_piece="<bos>",
        eos_piece="<eos>",
        **IDENTITY,
    )
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *symbols]
    decoder = {
        str(id): {"content": name, "special": "▁" not in name and name != "<unused0>"}
        for id, name in enumerate(names)
    }
    library = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    assert [library.id_to_piece(id) for id in range(4, 10)] == symbols
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True}
    save(folder, "tokenizer_config.json", {**settings, "added_tokens_decoder": decoder})
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 8],
        "text_config": {"model_type": "gemma3_text", "vocab_size": size + 4, "bos_token_id": 2},
    }


def phi3(folder: Path) -> dict[str, Any]:
    size = sentence_piece(folder, vocab_size=440, **IDENTITY)
    names = ["<|endoftext|>", "<|assistant|>", "<|end|>", "▁x"]
    decoder = {"2": {"content": "</s>", "special": False}} | {
        str(size + i): {"content": name, "special": i != 3} for i, name in enumerate(names)
    }
    settings = {"bos_token": "<s>", "eos_token": names[0], "tokenizer_class": "LlamaTokenizer"}
    save(folder, "tokenizer_config.json", {**settings, "added_tokens_decoder": decoder})
    added = [{"id": int(id), **token} for id, token in decoder.items()]
    added[-1]["content"] = "▁y"
    save(
        folder,
        "tokenizer.json",
        {"added_tokens": added, "model": {"type": "BPE", "byte_fallback": True}},
    )
    config = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": size + 8}
    return {**config, "bos_token_id": 1, "eos_token_id": size}


def t5(folder: Path) -> dict[str, Any]:
    rules = folder / "rules.tsv"  # lower case for three letters: the usual rules fill 240 kB
    rules.write_text("41\t61\n54\t74\n57\t77\n", "utf-8")
    size = sentence_piece(
        folder,
        "spiece.model",
        model_type="unigram",
        vocab_size=180,
        byte_fallback=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        normalization_rule_tsv=str(rules),
    )
    rules.unlink()
    settings = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    save(folder, "tokenizer_config.json", settings)
    config = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}
    return {**config, "vocab_size": size + 12, "eos_token_id": 1, "pad_token_id": 0}


def _xlm_roberta(folder: Path) -> dict[str, Any]:
    rules = folder / "rules.tsv"
    rules.write_text("41\t61\nFB01\t66 69\n9\t20\n65 301\tE9\n", "utf-8")
    name, about = "sentencepiece.bpe.model", {"vocab_size": 180, "byte_fallback": False}
    size = sentence_piece(
        folder, name, model_type="unigram", normalization_rule_tsv=str(rules), **about
    )
    rules.unlink()
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    save(folder, "tokenizer_config.json", names)
    config = {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"}
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": size + 2, "type_vocab_size": 1, "max_position_embeddings": 34}
    return {**config, **ids, **sizes}


def xlm_roberta(folder: Path) -> dict[str, Any]:
    """The model alone, as it was published first."""
    return _xlm_roberta(folder)


def xlm_roberta_json(folder: Path) -> dict[str, Any]:
    """As transformers saves it."""
    config, path = _xlm_roberta(folder), folder / "sentencepiece.bpe.model"
    model = read_sentencepiece(path.read_bytes(), path.name)
    first = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces = [*zip(model.pieces, model.scores, strict=True)][3:]
    vocab = [*first, *pieces, ("<mask>", 0.0)]
    built = XLMRobertaTokenizer(vocab=vocab, _spm_precompiled_charsmap=model.charsmap)
    built.save_pretrained(folder)
    path.unlink()
    return config


def from_pieces(source: Path, prefix: bool) -> dict[str, Any]:
    """The tokenizer.json that transformers makes of a SentencePiece model of byte pairs."""
    library = sentencepiece.SentencePieceProcessor(str(source / "tokenizer.model"))
    size = library.vocab_size()
    pieces = [library.id_to_piece(id) for id in range(size)]
    ids = {piece: id for id, piece in enumerate(pieces)}
    merges = []
    for piece, id in ids.items():
        for at in range(1, len(piece)):
            pair = (piece[:at], piece[at:])
            if ids.keys() >= set(pair) and not library.is_byte(id):
                merges.append((-library.get_score(id), ids[pair[0]], ids[pair[1]], pair))
    special = [id for id in range(size) if library.is_control(id) or library.is_unknown(id)]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = [{"type": "Prepend", "prepend": "▁"}] if prefix else []
    bos = library.id_to_piece(library.bos_id())
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": id, "content": pieces[id], "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for id in special
        ],
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]}
        if prefix
        else replace,
        "pre_tokenizer": None,
        "post_processor": template_of([bos, "A"], [bos, "A", bos, "B"], {bos: ids[bos]}),
        "decoder": {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": [list(pair) for *_, pair in sorted(merges)],
        },
    }


def mistral_json(folder: Path) -> dict[str, Any]:
    with_model = folder.parent / "llama2"
    content = from_pieces(with_model, prefix=True)
    save(folder, "tokenizer.json", content)
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    more = {"add_bos_token": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    save(folder, "tokenizer_config.json", {**settings, **more})
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    return {**config, "vocab_size": 480, "bos_token_id": 1, "eos_token_id": 2}


def gemma3_json(folder: Path) -> dict[str, Any]:
    content = from_pieces(folder.parent / "gemma3", prefix=False)
    names = ["<tool_call>", "<end_of_call>"]
    extra = [
        {**content["added_tokens"][0], "id": 480 + i, "content": n} for i, n in enumerate(names)
    ]
    spaces = {**extra[0], "id": 482, "content": "▁▁▁▁", "special": False}
    decoded = {**extra[0], "id": 483, "content": "▁decoded▁"}
    content["added_tokens"] += [*extra, spaces, decoded]
    cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    save(folder, "tokenizer.json", {**content, "pre_tokenizer": {**cut, "invert": False}})
    settings = {
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    save(
        folder, "tokenizer_config.json", {**settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    )
    text = {"model_type": "gemma3_text", "vocab_size": 488, "bos_token_id": 2, "eos_token_id": 1}
    architecture = "Gemma3ForConditionalGeneration"
    return {"architectures": [architecture], "model_type": "gemma3", "text_config": text}


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_pieces(lowercase: bool) -> list[str]:
    built = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=420, special_tokens=SPECIAL, show_progress=False)
    built.train_from_iterator(CORPUS.splitlines(), trainer)
    vocab = built.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def bert_uncased(folder: Path) -> dict[str, Any]:
    pieces = word_pieces(lowercase=True)
    fast = BertTokenizerFast(vocab={piece: id for id, piece in enumerate(pieces)})
    fast.save_pretrained(folder)
    config = {"architectures": ["BertModel"], "model_type": "bert", "type_vocab_size": 2}
    return {**config, "vocab_size": len(pieces), "pad_token_id": 0}


def bert_cased(folder: Path) -> dict[str, Any]:
    """vocab.txt alone, as the oldest ones have it."""
    pieces = word_pieces(lowercase=False)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    save(
        folder,
        "tokenizer_config.json",
        {"do_lower_case": False, "tokenizer_class": "BertTokenizer"},
    )
    config = {"architectures": ["BertModel"], "model_type": "bert", "type_vocab_size": 2}
    return {**config, "vocab_size": len(pieces) + 3}


UNNAMED = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
FILLERS = [f"<SPECIAL_{id}>" for id in range(20, 36)]
# As Voxtral has them; the other ids have no name.
NAMED = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 32: "[ARGS]", 33: "[CALL_ID]", 34: "[TRANSCRIBE]"}


def tekken(folder: Path) -> dict[str, Any]:
    """tekken.json with named special tokens, as from version 7 on, sounds of 0.4 s at once, and a
    template."""
    special = [NAMED.get(id, name) for id, name in enumerate([*UNNAMED, *FILLERS])]
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    named = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(special)]
    spectrum = {"num_mel_bins": 8, "hop_length": 160, "window_size": 400}
    sounds = {"sampling_rate": 16000, "frame_rate": 12.5, "chunk_length_s": 0.4}
    audio = {**sounds, "audio_encoding_config": spectrum}
    return ranked_bytes(folder, "v7", special_tokens=named, audio=audio)


def tekken_v3(folder: Path) -> dict[str, Any]:
    """tekken.json alone; its special tokens are those of its version."""
    return ranked_bytes(folder, "v3")


def ranked_bytes(folder: Path, version: str, **sections: Any) -> dict[str, Any]:
    """Byte pairs in tekken.json, ten more than the model has."""
    ids = byte_level(folder, "mistral nemo", [], 410)
    (folder / "tokenizer.json").unlink()
    values = {char: byte for byte, char in bytes_to_unicode().items()}
    known = sorted(ids, key=ids.__getitem__)
    pairs = [bytes(values[char] for char in text) for text in known if len(text) > 1]
    tokens = [*(bytes([value]) for value in range(256)), *pairs]
    vocab = []
    for rank, token in enumerate(tokens):
        text = token.decode("utf-8", "replace")
        encoded = base64.b64encode(token).decode()
        vocab.append({"rank": rank, "token_bytes": encoded, "token_str": text})
    size, count = len(tokens) - 10 + 40, 40
    config = {"pattern": TEKKEN, "num_vocab_tokens": len(tokens), "default_vocab_size": size}
    config |= {"default_num_special_tokens": count, "version": version}
    save(folder, "tekken.json", {"config": config, "vocab": vocab, **sections})
    text = {"model_type": "llama", "vocab_size": size}
    architecture = "VoxtralForConditionalGeneration"
    return {"architectures": [architecture], "model_type": "voxtral", "text_config": text}


def rwkv(folder: Path) -> dict[str, Any]:
    """Bytes, the next tokens as published, words and parts of characters, quotes of all kinds."""
    words = sorted({part for word in CORPUS.split() for part in (word, f" {word}")})
    wide = sorted({char for char in CORPUS if len(char.encode()) > 1})
    tokens: list[str | bytes] = [
        *(chr(i) for i in range(128)),
        *(bytes([i]) for i in range(128, 256)),
    ]
    tokens += ["\t\t", "\t\n", "\t ", "\n\t", "\n\n", "\\\\", "'\"", "''", "\\n", "\\x41", "    "]
    tokens += [
        *words[::3],
        *wide[::2],
        *(char.encode()[:2] for char in wide[1::2] if len(char.encode()) > 2),
    ]
    distinct = {t.encode() if isinstance(t, str) else t: t for t in tokens}
    lines = [f"{id} {t!r} {len(key)}" for id, (key, t) in enumerate(distinct.items(), 1)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines) + "\n", "utf-8")
    end = "<|rwkv_tokenizer_end_of_text|>"
    settings = {"bos_token": end, "eos_token": "\n\n", "add_prefix_space": False}
    decoder = {"0": {"content": end, "special": False}}
    more = {"chat_template": TEMPLATE, "added_tokens_decoder": decoder, "use_fast": False}
    save(folder, "tokenizer_config.json", {**settings, **more})
    config = {"architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7"}
    return {**config, "vocab_size": len(lines) + 5, "bos_token_id": 1, "eos_token_id": 2}


def kimi(folder: Path) -> dict[str, Any]:
    """tiktoken.model: the class reserves 256 special tokens, and the settings name some of them."""
    size = ranks_in_base64(folder, "kimi k2", "tiktoken.model")
    names = dict(enumerate(["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|tool_call_begin|>"]))
    names |= {22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]"}
    plain = ("<|tool_call_begin|>", "<think>", "</think>")
    decoder = {
        str(size + n): {"content": text, "special": text not in plain, "normalized": False}
        for n, text in names.items()
    }
    roles = {"bos": "[BOS]", "eos": "[EOS]", "unk": "[UNK]", "pad": "[PAD]"}
    settings = {f"{role}_token": text for role, text in roles.items()}
    settings |= {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": decoder}
    save(folder, "tokenizer_config.json", {**settings, "chat_template": TEMPLATE})
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": size + 256,
        **{"bos_token_id": size, "eos_token_id": size + 2, "pad_token_id": size + 255},
    }


def qwen(folder: Path) -> dict[str, Any]:
    """qwen.tiktoken: the class names all special tokens."""
    size = ranks_in_base64(folder, "qwen2, qwen3", "qwen.tiktoken")
    save(folder, "tokenizer_config.json", {"tokenizer_class": "QWenTokenizer"})
    ends = {"eos_token_id": size, "bos_token_id": size, "unk_token_id": size}
    return {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "vocab_size": size + 208 + 5,
        **ends,
    }


def ranks_in_base64(folder: Path, published: str, name: str) -> int:
    """A file of tiktoken; the number of its tokens."""
    ids = byte_level(folder, published, [], 480)
    (folder / "tokenizer.json").unlink()
    values = {char: byte for byte, char in bytes_to_unicode().items()}
    tokens = (bytes(values[char] for char in text) for text in sorted(ids, key=ids.__getitem__))
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (folder / name).write_text("".join(lines))
    return len(ids)


FOLDERS: dict[str, tuple[Callable[[Path], dict[str, Any]], str]] = {
    "llama3": (llama3, "llama-bpe"),
    "smollm": (smollm, "smollm"),
    "qwen2": (qwen2, "qwen2"),
    "gpt_oss": (gpt_oss, "gpt-4o"),
    "llama4": (llama4, "llama4"),
    "olmo2": (olmo2, "dbrx"),
    "roberta": (roberta, "roberta-bpe"),
    "llama2": (llama2, ""),
    "gemma3": (gemma3, ""),
    "phi3": (phi3, ""),
    "t5": (t5, ""),
    "xlm_roberta": (xlm_roberta, ""),
    "xlm_roberta_json": (xlm_roberta_json, ""),
    "mistral_json": (mistral_json, ""),
    "gemma3_json": (gemma3_json, "gemma4"),
    "bert_uncased": (bert_uncased, "jina-v2-en"),
    "bert_cased": (bert_cased, "jina-v2-en"),
    "tekken": (tekken, ""),
    "tekken_v3": (tekken_v3, ""),
    "rwkv": (rwkv, ""),
    "kimi": (kimi, "kimi-k2"),
    "qwen": (qwen, "qwen2"),
}
