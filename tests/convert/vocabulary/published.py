"""How the tokenizer.json of published families cut texts.

Each entry: the name of the pre-tokenizer, a `model_type` that has it, and the sections
`pre_tokenizer` and `normalizer` as they are published, with `ignore_merges` of the model.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Published(NamedTuple):
    pre: str
    family: str
    pre_tokenizer: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    kind = {"pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    return {"type": "Split", **kind}


def byte_level(use_regex: bool = True, prefix: bool = False) -> dict[str, Any]:
    flags = {"add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **flags}


def row(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def digits(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


NFC = {"type": "NFC"}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = (
    r"[\p{Han}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BYTES = byte_level(use_regex=False)

PUBLISHED: dict[str, Published] = {
    "llama 3": Published("llama-bpe", "llama", row(split(LLAMA3), BYTES), None, True),
    "llama 3, removed and inverted": Published(
        "llama-bpe", "llama", row(split(LLAMA3, "Removed", True), BYTES), None, True
    ),
    "falcon 3": Published("llama-bpe", "llama", row(split(LLAMA3), BYTES), None, True),
    "lfm2": Published("lfm2", "lfm2", row(split(LLAMA3), BYTES), None, True),
    "lfm2, experts": Published("lfm2", "lfm2_moe", row(split(LLAMA3), BYTES), None, True),
    "muse glimmer": Published("llama4", "muse_glimmer", row(split(O200K), BYTES), None, True),
    "llama 4": Published("llama4", "llama4", row(split(O200K), BYTES), None, True),
    "gpt-oss": Published("gpt-4o", "gpt_oss", row(split(O200K), BYTES)),
    "gpt-4o": Published("gpt-4o", "gpt2", row(split(O200K, "Removed", True), BYTES)),
    "qwen2, qwen3": Published("qwen2", "qwen2", row(split(QWEN2), BYTES), NFC),
    "qwen3.5": Published("qwen35", "qwen3_5", row(split(QWEN35), BYTES), NFC),
    "stablelm 2": Published("stablelm2", "stablelm", row(split(QWEN2), BYTES), {"type": "NFC"}),
    "olmo 2": Published("dbrx", "olmo2", row(split(LLAMA3), BYTES)),
    "phi-4": Published("dbrx", "phi3", row(split(LLAMA3, "Removed", True), BYTES)),
    "dbrx": Published("dbrx", "dbrx", row(split(CL100K), BYTES)),
    "glm 4": Published("glm4", "glm4", row(split(LLAMA3), BYTES), None, True),
    "gpt-2": Published("gpt-2", "gpt2", byte_level()),
    "gpt-2, spelled out": Published("gpt-2", "gpt2", row(split(GPT2), BYTES)),
    "phi-2": Published("phi-2", "phi", byte_level()),
    "olmo": Published("olmo", "olmo", byte_level(), NFC),
    "roberta": Published("roberta-bpe", "roberta", byte_level()),
    "modernbert": Published("modern-bert", "modernbert", byte_level(), NFC),
    "smollm": Published("smollm", "llama", row(digits(True), byte_level())),
    "smollm 3": Published("llama-bpe", "smollm3", row(split(LLAMA3), BYTES), None, True),
    "starcoder": Published("starcoder", "starcoder2", row(digits(True), byte_level())),
    "granite": Published("refact", "granite", row(digits(True), byte_level())),
    "granite, experts": Published("refact", "granitemoe", row(digits(True), byte_level())),
    "granite, shared experts": Published(
        "refact", "granitemoeshared", row(digits(True), byte_level())
    ),
    "command-r": Published("command-r", "cohere", row(digits(True), byte_level()), NFC),
    "command-r7b": Published("command-r", "cohere2", row(digits(True), byte_level()), NFC),
    "falcon": Published(
        "falcon",
        "falcon",
        row(
            {"type": "Punctuation", "behavior": "Contiguous"},
            byte_level(),
            digits(False),
            split("[0-9][0-9][0-9]"),
        ),
    ),
    "mistral nemo": Published("tekken", "mistral", row(split(TEKKEN), BYTES), None, True),
    "mistral small, merges kept": Published("tekken", "mistral", row(split(TEKKEN), BYTES)),
    "deepseek 3": Published(
        "deepseek-v3",
        "deepseek_v3",
        row(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), BYTES),
    ),
    "deepseek-r1 on qwen": Published("qwen2", "qwen2", row(split(QWEN2), BYTES)),
    "deepseek coder": Published(
        "deepseek-coder",
        "llama",
        row(
            split("[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split("[一-龥ࠀ-一가-퟿]+"),
            digits(True),
            BYTES,
        ),
    ),
    "bloom": Published("bloom", "bloom", row(split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTES)),
    "kimi k2": Published("kimi-k2", "kimi_k2", row(split(KIMI), BYTES)),
}
