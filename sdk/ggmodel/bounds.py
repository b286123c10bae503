"""Limits on the cost of untrusted files, images and requests.

Each is an attribute of `ggmodel.limits`. `ggmodel.limits.grammar_seconds = 60` changes one for the
process, and so does the environment variable `GGMODEL_LIMIT_GRAMMAR_SECONDS` at its start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from .errors import ConfigError, PromptError

_PREFIX = "GGMODEL_LIMIT_"


@dataclass
class Limits:
    """Bounds that hold for the whole process.

    Attributes:
        audio_bytes: size of a sound's file.
        audio_channels: channels of a sound, which are mixed to one; cinemas have 8.
        audio_memory: bytes that a sound may take while it is opened, 8 for each sample of one
            channel.
        audio_rate_highest, audio_rate_lowest: samples a second; telephones have 8,000, studios
            up to 384,000.
        audio_seconds: length of a sound, whatever a model can hear at once.
        frame_bytes: a message between the server and a runner, such as a request with its pictures.
        grammar_characters: length of a schema, pattern or grammar, and of all texts of a choice,
            with 5 for each of them.
        grammar_memory: bytes that compiling one may take.
        grammar_seconds: time of the processor that checking one may take, and compiling it.
        image_bytes: size of a picture's file.
        image_memory: bytes that a picture may take while it is opened and prepared, 13 for each
            pixel, 21 in a WebP.
        image_pixels: width times height of a picture; a file may promise far more pixels than it
            has bytes, and the largest cameras make 108 million.
        image_scans: scans of a progressive JPEG, each of which goes over all pixels; usual are 10.
        image_side: pixels of a picture's longer side, as in JPEG.
        input_bytes: length of a text that a command reads from a file or from standard input.
        input_line_bytes: length of a line that `ggmodel chat` reads from standard input.
        json_depth: objects and lists within each other in a JSON file; published ones have 10.
        model_card_bytes: the header of a README.md, which is YAML and read at 300 kB a second.
        request_pixels: width times height of all pictures of a request to the server. The seconds
            of its sounds are together at most `audio_seconds`, the pixels of its videos
            `video_pixels` and `video_decoded_pixels`.
        runner_requests: requests that a runner has not answered yet, those that wait included.
        runner_silence_seconds: how long a model's process may leave the server's pings unanswered,
            or not tell that it still loads, before it is ended; it answers while it computes
            (docs/reliability.md).
        serve_bodies_bytes: bodies of all requests that the server reads or answers at a time.
        serve_body_bytes: body of a request to the server, images in base64 included.
        serve_body_seconds: time to send a request to the server: its header, then its body.
        serve_captured_bytes: results of modules that a request captures.
        serve_choices: answers to one prompt that a request may want (`n`).
        serve_connections: connections that the server keeps open.
        serve_document_characters: text of a document in a request to the server.
        serve_document_seconds: time to read the PDF files of a request.
        serve_embedding_numbers: numbers in the rows of all tokens of a request, where the server
            pools nothing (`--pooling none`).
        serve_fetch_bytes: an image or a sound that the server fetches from an allowed host.
        serve_fetch_seconds: time to fetch it.
        serve_files: files that the server keeps for batches, and batches.
        serve_files_bytes: all of them together; the answers of one batch.
        serve_items: images, sounds and videos in a request to the server.
        serve_items_bytes: files of all images, sounds and videos in a request, those that are
            fetches included.
        serve_json_escapes: backslashes in a request to the server, each of which takes some 25 ns.
        serve_json_values: commas and opening brackets in a request to the server.
        serve_logprobs: log-probabilities that a request may want: for each token of its answers,
            and of its prompts where it wants them, that token's and the likeliest ones'. Each takes
            some 300 bytes.
        serve_messages: messages of a request, the parts of their contents and their calls included.
        serve_prompts: prompts, texts or documents in a request to the server.
        serve_send_seconds: how long a client may take nothing of its answer.
        serve_stored: answers of /v1/responses that are kept for later requests.
        serve_stored_bytes: memory of all of them.
        serve_tokenize_characters: a text or a chat whose tokens are asked for, and that is longer
            than what the context holds.
        serve_tools: functions that a request offers to the model.
        store_files: files and folders looked at in one folder of a store of models; a cache of a
            thousand models has some 20,000.
        template_characters: length of a chat template; the longest published ones have 2^14.
        template_seconds: time of the processor to compile a chat template, and to render one
            without messages; each message adds 10 ms.
        template_symbols: names, numbers and signs of a chat template, those in loops and macros
            counted once more for each of these around them; published ones have up to 5,200.
        template_total: characters in all the values that a template makes while it renders.
        template_value: characters in one of them, 16 added for each item of a list or dict.
        text_file_bytes: each JSON or text file of a model's folder, and the header of each
            safetensors file; the largest published index has 14 MB.
        tokenizer_bytes: memory of the process that applies the steps of an untrusted
            tokenizer.json.
        tokenizer_file_bytes: tokenizer.json, tekken.json, files of tiktoken, tokenizer.model,
            vocab.txt; the largest published ones have 35 MB.
        tokenizer_seconds: time of the processor that these steps may take.
        video_bytes: size of a video's file.
        video_decoded_pixels: width times height of a video, times the frames that are decoded: all
            up to the last one that a model looks at. An hour of 1280 × 720 pixels has 2^36.2, at 24
            frames a second.
        video_frames: frames of a video, also those that a model does not look at; an hour has
            86,400 at 24 a second.
        video_pixels: width times height of a video, times the frames that a model looks at; each
            pixel takes 3 bytes.
        vocabulary_letters: letters of all tokens of a vocabulary, of which a million may take half
            a second; the largest published ones have some 7 million.
        vocabulary_merges: merges of a vocabulary; the largest published one has 0.6 million.
        vocabulary_tokens: tokens of a vocabulary; the largest published one has 0.9 million.
        worker_silence_seconds: how long a worker may be silent that is waited for, besides the time
            of a step (docs/distributed.md). Holds for models loaded from then on.
    """

    audio_bytes: int = 1 << 30
    audio_channels: int = 8
    audio_memory: int = 4 << 30
    audio_rate_highest: int = 384_000
    audio_rate_lowest: int = 1_000
    audio_seconds: float = 4 * 3600.0
    frame_bytes: int = 1 << 30
    grammar_characters: int = 1 << 23
    grammar_memory: int = 1 << 30
    grammar_seconds: float = 10.0
    image_bytes: int = 256 << 20
    image_memory: int = 1600 << 20
    image_pixels: int = 128_000_000
    image_scans: int = 64
    image_side: int = 65_535
    input_bytes: int = 256 << 20
    input_line_bytes: int = 16 << 20
    json_depth: int = 100
    model_card_bytes: int = 2 << 20
    request_pixels: int = 1 << 28
    runner_requests: int = 4096
    runner_silence_seconds: float = 30.0
    serve_bodies_bytes: int = 512 << 20
    serve_body_bytes: int = 64 << 20
    serve_body_seconds: float = 60.0
    serve_captured_bytes: int = 1 << 26
    serve_choices: int = 128
    serve_connections: int = 4096
    serve_document_characters: int = 1 << 22
    serve_document_seconds: float = 30.0
    serve_embedding_numbers: int = 1 << 23
    serve_fetch_bytes: int = 32 << 20
    serve_fetch_seconds: float = 20.0
    serve_files: int = 1000
    serve_files_bytes: int = 4 << 30
    serve_items: int = 64
    serve_items_bytes: int = 256 << 20
    serve_json_escapes: int = 1 << 22
    serve_json_values: int = 1 << 19
    serve_logprobs: int = 1 << 22
    serve_messages: int = 1 << 14
    serve_prompts: int = 4096
    serve_send_seconds: float = 60.0
    serve_stored: int = 1000
    serve_stored_bytes: int = 256 << 20
    serve_tokenize_characters: int = 1 << 18
    serve_tools: int = 256
    store_files: int = 100_000
    template_characters: int = 1 << 18
    template_seconds: float = 2.0
    template_symbols: int = 1 << 15
    template_total: int = 1 << 28
    template_value: int = 1 << 23
    text_file_bytes: int = 32 << 20
    tokenizer_bytes: int = 1 << 30
    tokenizer_file_bytes: int = 64 << 20
    tokenizer_seconds: float = 10.0
    video_bytes: int = 1 << 30
    video_decoded_pixels: int = 1 << 37
    video_frames: int = 250_000
    video_pixels: int = 1 << 30
    vocabulary_letters: int = 1 << 24
    vocabulary_merges: int = 1 << 22
    vocabulary_tokens: int = 1 << 21
    worker_silence_seconds: float = 60.0

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            names = ", ".join(self.__dataclass_fields__)
            raise ConfigError(f"there is no limit {name!r}; the limits are {names}")
        kinds = int if isinstance(getattr(type(self), name), int) else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not value > 0:
            raise ConfigError(f"the limit {name} must be a positive number, not {value!r}")
        super().__setattr__(name, value)

    @classmethod
    def from_environment(cls) -> Limits:
        """The defaults, and those that environment variables replace.

        Raises:
            ConfigError: a variable names no limit, or its value is no positive number.
        """
        read = cls()
        variables = {_PREFIX + f.name.upper(): f for f in fields(cls)}
        for variable in sorted(v for v in os.environ if v.startswith(_PREFIX)):
            if variable not in variables:
                raise ConfigError(
                    f"{variable} names no limit; the limits are {', '.join(variables)}"
                )
            field, text = variables[variable], os.environ[variable]
            try:
                number = int(text) if isinstance(field.default, int) else float(text)
            except ValueError:
                raise ConfigError(f"{variable} must be a positive number, not {text!r}") from None
            setattr(read, field.name, number)
        return read


limits = Limits.from_environment()

_sums: ContextVar[dict[str, float] | None] = ContextVar("sums", default=None)


@contextmanager
def one_request() -> Iterator[None]:
    """Limits the sums of what `spend` counts in this thread, until the block ends."""
    before = _sums.set({})
    try:
        yield
    finally:
        _sums.reset(before)


def spend(limit: str, amount: float, unit: str) -> None:
    """Counts a part of a request before it is decoded; of no effect outside of `one_request`.

    Args:
        limit: the name of the limit of the sum.
        unit: what is counted, for the message.

    Raises:
        PromptError: the sum exceeds the limit.
    """
    sums = _sums.get()
    if sums is None:
        return
    sums[limit] = sums.get(limit, 0) + amount
    if sums[limit] > getattr(limits, limit):
        raise PromptError(
            f"the request has {sums[limit]:,.0f} {unit} or more; the limit {limit} of all together "
            f"is {getattr(limits, limit):,}: send fewer or smaller ones"
        )


class Deadline:
    """The end of the time that the calling thread may work: a stalled machine and other threads do
    not use it up.

    Args:
        seconds: time of the processor.
    """

    def __init__(self, seconds: float):
        self._end = time.thread_time() + seconds
        self._look = time.monotonic() + seconds  # before, it cannot be over

    def over(self) -> bool:
        """Whether the time has passed, asked in the same thread; costs a look at the clock."""
        now = time.monotonic()
        if now < self._look:
            return False
        left = self._end - time.thread_time()
        self._look = now + left
        return left <= 0
