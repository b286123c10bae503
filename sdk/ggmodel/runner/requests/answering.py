"""Answers of a model: prompts and messages in, one or many, completions and streams out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ...chat.messages import LISTS
from ...errors import (
    BatchError,
    ConfigError,
    Error,
    GraphError,
    PromptError,
    Unsupported,
)
from ...gguf_file import TensorSource
from ...ml import Backend
from ...ml.backend import Progress
from ...model import Model
from ...resources import reported
from ..engine.engine import Engine
from ..loading.resolved import Defaults
from ..request_options import RequestOptions, shows, split_options
from ..sampling import Sampler
from .adapters import Adapters
from .completion import Completion
from .generation import AsyncStream, Generation, Stream
from .inspecting import Inspecting
from .prompts import Prompt, Prompts
from .receipt import Forced, Receipt, Replay, differences

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...tokenizer import Tokenizer

P = TypeVar("P")


def complete_all(
    engine: Engine,
    request: Callable[[P], Generation],
    prompts: Sequence[P],
    progress: Callable[[float], None] | None = None,
) -> list[Completion]:
    """A completion for each prompt, in order.

    Args:
        request: makes the request of a prompt.
        progress: called with the share of prompts that are done; an error that it raises ends the
            batch.

    Raises:
        BatchError: some failed; carries the others' completions.
    """
    ended: SimpleQueue[int] = SimpleQueue()
    upcoming, running = iter(enumerate(prompts)), dict[int, "Generation"]()
    completions: list[Completion | None] = [None] * len(prompts)
    errors: dict[int, Error] = {}
    # Twice as many requests as sequences: one that ends finds the next waiting.
    most = 2 * len(engine.sequences.all)
    try:
        for done in range(1, len(prompts) + 1):
            for i, prompt in islice(upcoming, most - len(running)):
                try:
                    running[i] = request(prompt)
                    running[i].start(partial(ended.put, i))
                except Error as error:
                    errors[i] = error
                    ended.put(i)
            one = running.pop(i := ended.get(), None)
            try:
                completions[i] = None if i in errors or one is None else one.result()
            except Error as error:
                errors[i] = error
            if progress is not None:
                progress(done / len(prompts))
    finally:
        for one in running.values():
            engine.cancel(one)
    if errors:
        first = min(errors)
        raise BatchError(
            f"{len(errors)} of {len(prompts)} prompts failed, first prompts[{first}]: "
            f"{errors[first]}. The attribute `completions` of this error has the answers to the "
            "others",
            completions,
            errors,
        )
    return [one for one in completions if one is not None]


class Answering(Inspecting):
    """The methods of a loaded model that generate."""

    source: TensorSource
    backend: Backend
    model: Model
    tokenizer: Tokenizer | None
    engine: Engine
    prompts: Prompts
    adapters: Adapters
    defaults: Defaults = Defaults()

    @shows(RequestOptions)
    @reported
    def request(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Generation:
        """A request that has not begun, to be run or iterated over once."""
        own, sampler = self._options(options)
        max_tokens, stop = own.pop("max_tokens", None), own.pop("stop", ())
        truncate = own.pop("truncate", None)
        own["adapters"] = self.adapters.chosen(own.get("adapters"))
        items = {name: own.pop(name) for name in LISTS if name in own}
        if own.get("context_shift") and self.model.prompt_item:
            raise Unsupported(
                "an encoder–decoder has nothing to shift: its encoder reads the prompt once, and "
                "the answer alone fills the context. Leave out context_shift, or load the model "
                "with a larger context_length"
            )
        probe = self.probe(own.pop("capture", ()) or (), own.pop("steer", None))
        if probe is not None and probe.captures and own.get("context_shift"):
            raise Unsupported("positions that move cannot be captured: leave out context_shift")
        room = self._room(max_tokens, own.get("context_shift", False))
        prompt = self.prompts.with_items(prompt, items)
        ids = self.prompts.read(prompt, truncate, own.get("num_keep", 0), room, probe)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        own["probe"] = probe
        return Generation(
            self.engine, self.tokenizer, ids, sampler, max_tokens=max_tokens, stop=stops, **own
        )

    @shows(RequestOptions)
    @reported
    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Continues a prompt.

        Args:
            prompt: text, token ids, or a list that mixes both and images: paths as `Path`, bytes,
                PIL images, preprocessed pixels, embeddings; other items as parts of a message,
                {"type": "audio", "audio": …}. Text that begins a prompt gets the special tokens
                its vocabulary asks for.
            options: see `RequestOptions`.

        Raises:
            PromptError: the prompt is empty, too long, or has an id out of range.
            ConfigError: an unknown option, or a value outside of its range.
            ComputeError: the model's logits are NaN, or nothing obeys the grammar.
            Busy: all sequences are in use by streams of this very thread.
        """
        return self.request(prompt, **options).run()

    @reported
    def replay(self, receipt: Receipt) -> Replay:
        """Computes the logits of a receipt's tokens anew, and compares their bits.

        Raises:
            Unsupported: the model was not loaded with `deterministic=True`.
            ConfigError: it was loaded with another option that changes logits.
        """
        if not self.backend.params.deterministic:
            raise Unsupported("a receipt is replayed by a model loaded with deterministic=True")
        here = {
            "kv_type": self.engine.kv_type.name.lower(),
            "context_length": self.engine.context_length,
        }
        for name, value in here.items():
            if receipt.options.get(name) != value:
                raise ConfigError(
                    f"the receipt's {name} is {receipt.options.get(name)!r}, not {value!r}: load "
                    "the model with it"
                )
        forced = Forced(receipt)
        shift = receipt.options.get("context_shift", False)
        keep = receipt.options.get("num_keep", 0)
        own: Any = {"context_shift": shift, "num_keep": keep, "max_tokens": len(receipt.tokens)}
        own["adapters"] = self.adapters.of_receipt(receipt.options.get("adapters", {}))
        done = self.request(receipt.prompt, sampler=forced, **own).run()
        sums = [] if done.proof is None else done.proof.sums
        pairs = enumerate(zip(receipt.sums, [*sums, *[""] * len(receipt.sums)], strict=False))
        first = next((i for i, (then, now) in pairs if then != now), None)
        return Replay(first, forced.drawn, tuple(differences(receipt, self.backend.source)))

    @shows(RequestOptions)
    @reported
    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Stream:
        """Like `generate`, a piece a token; closing the stream cancels the request.

        Many threads may have streams at once: their tokens are computed together, as many sequences
        at a time as the model was loaded with (`parallel`); others wait.
        """
        return Stream(self.request(prompt, **options))

    @shows(RequestOptions)
    @reported
    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """Continues many prompts, as many at a time as the model was loaded with (`parallel`).

        Args:
            prompts: each as `generate` takes it.
            progress: called with the share of prompts that are done, at the end with 1.0.
            options: see `RequestOptions`; the same for all.

        Returns:
            One completion a prompt, in order.

        Raises:
            BatchError: some prompts failed. The others were answered: see its `completions`.
            ConfigError, PromptError: an option is wrong, or `prompts` is no list; nothing was done.
        """
        self._options(options)
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, Iterable):
            raise PromptError(f"prompts is a list of prompts, not {type(prompts).__name__}")
        if progress is not None and not callable(progress):
            raise ConfigError(f"progress is {progress!r:.80}; it must be a function, or None")
        return complete_all(
            self.engine, lambda prompt: self.request(prompt, **options), [*prompts], progress
        )

    @shows(RequestOptions)
    def astream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncStream:
        """`stream` for coroutines."""
        return AsyncStream(self.request(prompt, **options))

    @shows(RequestOptions)
    async def agenerate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """`generate` for coroutines."""
        async with self.astream(prompt, **options) as stream:
            return stream.completion([piece async for piece in stream])

    def _room(self, max_tokens: int | None, context_shift: bool) -> int:
        """Positions of the context that are kept free for an answer."""
        if context_shift:
            return 0
        quarter = self.engine.context_length // 4
        return quarter if max_tokens is None else min(quarter, max_tokens)

    def _options(self, options: RequestOptions) -> tuple[dict[str, Any], Sampler]:
        """Options of a request and its sampler, of a model that is open and generates."""
        self._check_open()
        chosen: Any = {**self.defaults.under(options)}
        if chosen.get("ignore_eos") is True:
            ends = dict.fromkeys(self.prompts.vocabulary().eog, -math.inf)
            chosen["logit_bias"] = {**(chosen.get("logit_bias") or {}), **ends}
        split = split_options(chosen)
        split[0].pop("ignore_eos", None)
        if self.model.only_embeds:
            raise Unsupported("this model generates nothing, it only embeds: use embed")
        return split

    def _check_open(self) -> None:
        self.engine.check_process()
        if self.backend.closed:
            raise GraphError("this model is closed; load it again")
        self.backend.check_files()
