"""Writes declared.json: transformers' reading of the declared replies.

`python -m tests.chat.replies.make_declared` needs transformers 5.23.
"""

from __future__ import annotations

import json

from transformers.utils.chat_parsing import ResponseParser

from .declared_cases import DECLARATIONS, GOLDEN, TOOLS, cases, cuts


def write() -> None:
    found = []
    for i, case in enumerate(cases()):
        tools = TOOLS if case["tools"] else None
        messages = []
        for pieces in ([case["text"]], cuts(case["text"], i)):
            parser = ResponseParser(DECLARATIONS[case["declaration"]], case["prefix"], tools=tools)
            for piece in pieces:
                parser.feed(piece)
            messages.append(parser.finalize()[0])
        assert messages[0] == messages[1], case
        found.append(case | {"message": messages[0]})
    GOLDEN.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
