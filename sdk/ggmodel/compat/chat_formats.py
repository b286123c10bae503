"""Chat formats that llama-cpp-python knows by name, as Jinja text and the text that ends a turn."""

from __future__ import annotations

from ..errors import Unsupported

_SYSTEM = (
    "{% set first = messages | selectattr('role', 'equalto', 'system') | list %}"
    "{% set system = first[0].content if first else '' %}"
)
_TURNS = "{% for m in messages if m.role in ('user', 'assistant') %}"

_CHATML = (
    _SYSTEM
    + "{{ '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}"
    + _TURNS
    + "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' }}"
)
_LLAMA_2 = (
    _SYSTEM
    + "{{ ('[INST] <<SYS>>\\n' + system + '\\n<</SYS>>' if system else '') + ' ' }}"
    + _TURNS
    + "{% if system and loop.first %}{{ m.content + ' ' }}{% else %}"
    "{{ ('<s>[INST]' if m.role == 'user' else '[/INST]') + m.content + ' ' }}"
    "{{ ' ' if loop.index0 is even else '</s>' }}{% endif %}{% endfor %}{{ '[/INST]' }}"
)
_LLAMA_3 = (
    "{% for m in messages if m.role in ('system', 'user', 'assistant') %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
)
_GEMMA = (
    _TURNS + "{{ '<start_of_turn>' + ('user' if m.role == 'user' else 'model') + '\\n' }}"
    "{{ m.content + '<end_of_turn>\\n' }}{% endfor %}{{ '<start_of_turn>model\\n' }}"
)
_MISTRAL = (
    _TURNS + "{{ '[INST] ' + m.content if m.role == 'user' else ' [/INST]' + m.content + '</s>' }}"
    "{% endfor %}{{ ' [/INST]' }}"
)
_ZEPHYR = (
    _SYSTEM
    + "{{ '<|system|>\\n' + system + '</s>\\n' }}"
    + _TURNS
    + "{{ '<|' + m.role + '|>\\n\\n' + m.content + '</s>\\n' }}{% endfor %}"
    "{{ '<|assistant|>\\n\\n' }}"
)
_FORMATS = {
    "chatml": (_CHATML, "<|im_end|>"),
    "chatml-function-calling": (_CHATML, "<|im_end|>"),
    "llama-2": (_LLAMA_2, ""),
    "llama-3": (_LLAMA_3, "<|eot_id|>"),
    "gemma": (_GEMMA, "<end_of_turn>\n"),
    "mistral-instruct": (_MISTRAL, "</s>"),
    "zephyr": (_ZEPHYR, "</s>"),
}


def format_of(name: str | None) -> tuple[str | None, str]:
    """The template of a name and its stop string; None and "" for the file's own. Jinja text is a
    template itself.

    Raises:
        Unsupported: another name.
    """
    if name is None:
        return None, ""
    if "{" in name:
        return name, ""
    if name not in _FORMATS:
        raise Unsupported(
            f"chat_format {name!r:.40} is unsupported; leave it out for the file's own template, "
            f"give Jinja text, or one of {', '.join(_FORMATS)}"
        )
    return _FORMATS[name]
