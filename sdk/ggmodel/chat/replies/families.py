"""Families of models by how they write replies, recognised by the text of their chat template.

Each is a fact about published templates; docs/chat.md has the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from .tool_calls import Code, Form, Json, Named, Python, Quoted, Tagged


@dataclass(frozen=True)
class Thought:
    """A pair of markers around reasoning.

    Attributes:
        anywhere: it may come after content, too; else content may mention the marker.
    """

    open: str
    close: str
    anywhere: bool = False


@dataclass(frozen=True)
class Block:
    """A stretch of a reply that holds calls.

    Attributes:
        open: "" for calls that stand bare, at the beginning of a reply.
        close: "" where a call's own end closes the block.
        begins: what follows `open` and space; () for anything.
        fill: may stand between the calls and `close`.
        whole: `open` and `close` belong to what `form` reads.
        before, after: texts beside the call that the model writes and the parser does not need.
    """

    form: Form
    open: str = ""
    close: str = ""
    begins: tuple[str, ...] = ()
    fill: tuple[str, ...] = ()
    whole: bool = False
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Channels:
    """Messages with headers, which say who speaks to whom: OpenAI's harmony."""

    opens: tuple[str, ...] = ("<|start|>", "<|channel|>")
    message: str = "<|message|>"
    channel: str = "<|channel|>"
    thoughts: tuple[str, ...] = ("analysis",)
    recipient: str = " to="
    functions: str = "functions."
    ends: tuple[str, ...] = ("<|end|>", "<|call|>", "<|return|>")


@dataclass(frozen=True)
class Family:
    """How the models of a family write replies.

    Attributes:
        marks: recognised by a template that has all texts of one of these groups.
        without: a template that has one of these is of another family.
        skip: markers that mean nothing to the user.
        section: markers around all the calls of a reply.
        stop: texts after which the model would go on with what others say.
    """

    name: str
    marks: tuple[tuple[str, ...], ...]
    without: tuple[str, ...] = ()
    thoughts: tuple[Thought, ...] = ()
    blocks: tuple[Block, ...] = ()
    skip: tuple[str, ...] = ()
    section: tuple[str, str] = ("", "")
    stop: tuple[str, ...] = ()
    channels: Channels | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All markers; a vocabulary may have special tokens for them."""
        marks = [*self.skip, *self.section, *self.stop]
        marks += [text for thought in self.thoughts for text in (thought.open, thought.close)]
        for block in self.blocks:
            marks += [block.open, block.close, *block.form.marks]
        if self.channels:
            marks += [*self.channels.opens, self.channels.message, "<|constrain|>"]
        return tuple(dict.fromkeys(filter(None, marks)))


_THINK = Thought("<think>", "</think>")
_TAGS = Tagged(("<function=", ">"), "</function>", ("<parameter=", ">"), "</parameter>", lines=True)
_INVOKE = Tagged(('<invoke name="', '">'), "</invoke>", ('<parameter name="', ">"), "</parameter>")
_PARAM = Tagged(
    ('<function name="', '">'),
    "</function>",
    ('<param name="', '">'),
    "</param>",
    wrap=("<![CDATA[", "]]>"),
)
_DSML = Tagged(
    ('<｜DSML｜invoke name="', '">'),
    "</｜DSML｜invoke>",
    ('<｜DSML｜parameter name="', ">"),
    "</｜DSML｜parameter>",
)
_ARG = Tagged(("", ""), "", ("<arg_key>", "</arg_key>"), "</arg_value>", value="<arg_value>")
_COHERE = Json(listed=True, name="tool_name", arguments="parameters")
_LLAMA = Json(arguments="parameters")
_MISTRAL = Named("[ARGS]", id_mark="[CALL_ID]")

# Calls of families that have no form of their own, written only under a grammar.
BARE = Block(Json(), begins=("{",))

# The first whose marks are in a template is taken.
FAMILIES = (
    Family(
        "harmony",
        (("<|channel|>", "<|message|>"),),
        blocks=(Block(Named("<|message|>")),),
        skip=("<|end|>", "<|call|>", "<|return|>", "<|message|>"),
        stop=("<|call|>", "<|return|>"),
        channels=Channels(),
    ),
    Family(
        "gemma4",
        (("<|tool_call>",), ("<|channel>", "<|turn>")),
        thoughts=(Thought("<|channel>thought", "<channel|>", anywhere=True),),
        blocks=(Block(Quoted('<|"|>'), "<|tool_call>", "<tool_call|>", ("call:",)),),
        skip=("<|channel>", "<channel|>", "<turn|>"),
        stop=("<|tool_response>",),
    ),
    Family(
        "functiongemma",
        (("<start_function_call>",),),
        blocks=(
            Block(Quoted("<escape>"), "<start_function_call>", "<end_function_call>", ("call:",)),
        ),
        stop=("<start_function_response>",),
    ),
    Family(
        "kimi-k2",
        (("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),),
        thoughts=(_THINK,),
        blocks=(
            Block(
                Named("<|tool_call_argument_begin|>", "functions.", numbered=True),
                "<|tool_call_begin|>",
                "<|tool_call_end|>",
            ),
        ),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    Family(
        "deepseek-v3.2",
        (("｜DSML｜", "function_calls"), ("｜DSML｜", "tool_calls")),
        thoughts=(_THINK,),
        blocks=(
            Block(_DSML, "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
            Block(_DSML, "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
        ),
    ),
    Family(
        "deepseek",
        (("<｜tool▁sep｜>", "```json"),),
        thoughts=(_THINK,),
        blocks=(
            Block(
                Named("<｜tool▁sep｜>", "function<｜tool▁sep｜>", also=("```json",)),
                "<｜tool▁call▁begin｜>",
                "<｜tool▁call▁end｜>",
                fill=("```",),
                before="function<｜tool▁sep｜>{name}\n```json\n",
                after="\n```",
            ),
        ),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    Family(
        "deepseek-v3.1",
        (("<｜tool▁sep｜>",),),
        thoughts=(_THINK,),
        blocks=(Block(Named("<｜tool▁sep｜>"), "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),),
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    Family(
        "cohere2",
        (("<|START_ACTION|>",),),
        thoughts=(Thought("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True),),
        blocks=(Block(_COHERE, "<|START_ACTION|>", "<|END_ACTION|>"),),
        skip=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Family(
        "command-r",
        (("Action:", "tool_name"),),
        blocks=(
            Block(_COHERE, "Action:\n```json", "```"),
            Block(_COHERE, "Action: ```json", "```"),
        ),
    ),
    Family(
        "minimax-m2",
        (("<minimax:tool_call>",),),
        thoughts=(_THINK,),
        blocks=(Block(_INVOKE, "<minimax:tool_call>", "</minimax:tool_call>", ("<invoke",)),),
    ),
    Family(
        "seed-oss",
        (("<seed:tool_call>",), ("<seed:think>",)),
        thoughts=(Thought("<seed:think>", "</seed:think>"),),
        blocks=(Block(_TAGS, "<seed:tool_call>", "</seed:tool_call>", ("<function=",)),),
        skip=("<seed:eos>",),
    ),
    Family(
        "glm-4",
        (("<arg_key>", "<arg_value>", "<tool_call>"),),
        thoughts=(_THINK,),
        blocks=(Block(_ARG, "<tool_call>", "</tool_call>"),),
    ),
    Family(
        "qwen3-coder",
        (("<tool_call>", "<function=", "<parameter="),),
        thoughts=(_THINK,),
        blocks=(
            Block(_TAGS, "<tool_call>", "</tool_call>", ("<function=",)),
            Block(_TAGS, "<function=", "</function>", whole=True),
        ),
        skip=("</tool_call>",),
    ),
    Family(
        "mistral",
        (("[TOOL_CALLS]", "[ARGS]"),),
        thoughts=(Thought("[THINK]", "[/THINK]", anywhere=True),),
        blocks=(Block(_MISTRAL, "[TOOL_CALLS]"),),
    ),
    Family(
        "mistral-nemo",
        (("[TOOL_CALLS]",),),
        thoughts=(Thought("[THINK]", "[/THINK]", anywhere=True),),
        blocks=(Block(Json(listed=True), "[TOOL_CALLS]"),),
    ),
    Family(
        "lfm2",
        (("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
        thoughts=(_THINK,),
        blocks=(Block(Python(), "<|tool_call_start|>", "<|tool_call_end|>"),),
    ),
    Family(
        "phi-4-mini",
        (("<|tool|>", "<|/tool|>"),),
        thoughts=(_THINK,),
        blocks=(
            Block(Json(listed=True), "functools"),
            Block(Json(listed=True), "<|tool_call|>", "<|/tool_call|>"),
        ),
    ),
    Family(
        "granite-3",
        (("<|tool_call|>",),),
        thoughts=(_THINK,),
        blocks=(Block(Json(listed=True), "<|tool_call|>"),),
        skip=("<response>", "</response>"),
    ),
    Family(
        "nemotron-nano-2",
        (("<TOOLCALL>",),),
        thoughts=(_THINK,),
        blocks=(Block(Json(listed=True), "<TOOLCALL>", "</TOOLCALL>"),),
    ),
    Family(
        "apriel",
        (("<tool_calls>[",),),
        blocks=(Block(Json(listed=True), "<tool_calls>", "</tool_calls>"),),
    ),
    Family(
        "functionary-3.1",
        (("'<function='", "</function>"),),
        blocks=(
            Block(Named(">"), "<function=", "</function>"),
            Block(Code(), "<|python_tag|>", "<|eom_id|>"),
        ),
    ),
    Family(
        "minicpm5",
        (('<function name="', '<param name="'),),
        thoughts=(_THINK,),
        blocks=(Block(_PARAM, '<function name="', "</function>", whole=True),),
    ),
    Family(
        "hermes",
        (("<tool_call>",),),
        without=("]<]minimax[>[",),
        thoughts=(_THINK,),
        blocks=(Block(Json(), "<tool_call>", "</tool_call>", before="\n", after="\n"),),
    ),
    Family(
        "llama-4",
        (("<|python_start|>",), ("<|header_start|>",)),
        blocks=(
            Block(Python(), begins=("[",)),
            Block(Python(), "<|python_start|>", "<|python_end|>"),
            Block(_LLAMA, begins=("{",)),
        ),
    ),
    Family(
        "llama-3",
        (("<|python_tag|>",), ("<|eom_id|>",), ('"parameters": ', "<|eot_id|>")),
        blocks=(
            Block(_LLAMA, begins=("{",), fill=(";",)),
            Block(Code(), "<|python_tag|>", "<|eom_id|>"),
        ),
    ),
    Family(
        "magistral",
        (("[THINK]",),),
        thoughts=(Thought("[THINK]", "[/THINK]", anywhere=True),),
        blocks=(BARE,),
    ),
    Family("think", (("<think>",),), thoughts=(_THINK,), blocks=(BARE,)),
)
PLAIN = Family("plain", (), blocks=(BARE,))

# Texts in which a template ends, when the model's turn begins.
TURNS = (
    "<|im_start|>assistant",
    "<|start_header_id|>assistant<|end_header_id|>",
    "<|header_start|>assistant<|header_end|>",
    "<|start_of_role|>assistant<|end_of_role|>",
    "<|start|>assistant",
    "<|im_assistant|>assistant<|im_middle|>",
    "<|turn>model",
    "<start_of_turn>model",
    "<|assistant|>",
    "<｜Assistant｜>",
    "<|CHATBOT_TOKEN|>",
    "<tool_response|>",
    "<end_function_response>",
    "[/INST]",
    "]~b]ai",
    "<seed:bos>assistant",
    "<SPECIAL_11>Assistant",
)


def family_of(template: str) -> Family:
    """The family of a template; `PLAIN` for one without any markers that are known."""
    for family in FAMILIES:
        fits = any(all(mark in template for mark in group) for group in family.marks)
        if fits and not any(text in template for text in family.without):
            return family
    return PLAIN
