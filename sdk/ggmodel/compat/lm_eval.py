"""A model for lm-eval (lm-evaluation-harness), computed in its own process, without torch.

    python -m ggmodel.compat.lm_eval run --model ggmodel --model_args pretrained=FILE --tasks NAMES

is `lm_eval run …` with one more model, "ggmodel". lm-eval 0.4.13 looks for no models in other
packages: its registry has its own ones, and those that code registers, as importing this module
does.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import ConfigError, PromptError, Unsupported
from ..loading import load
from ..runner import LoadedModel
from ..runner.engine.continuations import Continuations
from ..runner.requests.answering import complete_all
from ..runner.requests.generation import Generation

try:
    import lm_eval.models  # noqa: F401 (its own models, which an empty registry alone is filled with)
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import (
        handle_stop_sequences,
        normalize_gen_kwargs,
        postprocess_generated_text,
    )
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    raise Unsupported(f"this needs lm-eval ({error}): pip install 'lm-eval>=0.4.13'") from error


@register_model("ggmodel")
class GGModel(TemplateLM):
    """A loaded model as lm-eval asks it. Tokens, windows and ends of texts are those of its `hf`.

    Requests for log-likelihoods are computed in the order of their contexts, whose common
    beginnings are computed once; texts as many at a time as there are slots.

    Args:
        pretrained: anything that `ggmodel.load` takes, or a loaded model.
        batch_size: slots, as `parallel` of `ggmodel.load`, which counts where this is 1.
        max_length: tokens of a window, as `context_length` of `ggmodel.load`; of a loaded model at
            most those of its context.
        device: "cpu" uses no GPU.
        add_bos_token: False adds none of the tokens that the vocabulary wants around a text.
        prefix_token_id: the token before a text without a context; None is the beginning of text,
            or else the end.
        think_end_token: text behind which an answer begins.
        enable_thinking: this variable of the chat template; None sets none.
        max_batch_size: of no effect.
        options: of `ggmodel.load`.

    Raises:
        ConfigError: batch_size or max_length is no number above 0, an option is given twice under
            different names, or a loaded model is given a batch_size, a device or options.
        Error: as `ggmodel.load`.
    """

    def __init__(
        self,
        pretrained: str | Path | LoadedModel,
        *,
        batch_size: int | str | None = None,
        max_length: int | None = None,
        device: str | None = None,
        add_bos_token: bool | None = True,
        prefix_token_id: int | None = None,
        think_end_token: str | None = None,
        enable_thinking: bool | None = None,
        max_batch_size: int | None = None,
        **options: Any,
    ):
        super().__init__()
        if not str(batch_size or 1).isdecimal():
            raise ConfigError(f"batch_size {batch_size!r:.40}: give a number of slots")
        if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
            raise ConfigError(f"max_length {max_length!r:.40}: give a number of tokens")
        self._owned = not isinstance(pretrained, LoadedModel)
        if isinstance(pretrained, LoadedModel):
            fixed = {"batch_size": batch_size, "device": device, **options}
            given = [name for name, value in fixed.items() if value is not None]
            if given:
                raise ConfigError(
                    f"{', '.join(given)}: of no effect on a loaded model; load it with these"
                )
            self.model = pretrained
        else:
            # lm-eval's command has a batch_size of 1 where none is given.
            slots = None if int(batch_size or 1) == 1 else int(batch_size or 1)
            _rename(options, "batch_size", "parallel", slots)
            _rename(options, "max_length", "context_length", max_length)
            _rename(options, "device", "gpu_layers", 0 if device == "cpu" else None)
            self.model = load(str(pretrained), **options)
        self.vocabulary = self.model.prompts.vocabulary()
        most = self.model.context_length
        self.max_length = min(max_length or most, most)
        self.max_gen_toks = 256  # lm-eval's own default
        self._add_special = add_bos_token is not False
        ends = (prefix_token_id, self.vocabulary.bos, self.vocabulary.eos)
        self._prefix = next((id for id in ends if id is not None), None)
        self._think_end = think_end_token
        self._variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}

    @property
    def eot_token_id(self) -> int | None:
        """The end of a text."""
        return self.vocabulary.eos

    @property
    def prefix_token_id(self) -> int:
        """The token that a text without a context follows."""
        if self._prefix is None:
            raise ConfigError("the vocabulary begins and ends no text; give a prefix_token_id")
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """The name by which lm-eval keeps requests apart."""
        return self.model.source.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template of the file; None without."""
        return self.model.source.metadata.get("tokenizer.chat_template") if chat_template else None

    def apply_chat_template(
        self, chat_history: Sequence[dict[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """The text of messages by the file's template; the last one is left open, to go on with,
        where no answer begins.

        Raises:
            TemplateError: there is no template, or it refuses the messages.
        """
        more = {"continues": not add_generation_prompt, "variables": self._variables}
        return self.model.chat_text(chat_history, **more).text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """The ids of a text. Special tokens are added but where it begins with one."""
        if add_special_tokens is None:
            begun = self._prefix is not None and string.startswith(self._spelled(self._prefix))
            add_special_tokens = self._add_special and not begun
        return self.vocabulary.encode(string, add_special=add_special_tokens)

    def _spelled(self, id: int) -> str:
        return self.vocabulary.token_bytes(id).decode("utf-8", "replace")

    @cached_property
    def _continuations(self) -> Continuations:
        return Continuations(self.model.engine)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        answers = [(0.0, False)] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: requests[i][1:])
        for i in tqdm(order, desc="Running loglikelihood requests", disable=disable_tqdm):
            texts, context, continuation = requests[i]
            if not 0 < len(continuation) <= self.max_length:
                raise PromptError(
                    f"{str(texts)!r:.80}: the continuation has {len(continuation)} tokens; it "
                    f"needs one at least, and {self.max_length} (max_length) at most"
                )
            most = self.max_length + 1 - len(continuation)
            answers[i] = self._continuations.score(context[-most:], continuation)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answers[i])
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihood of each text, in windows of `max_length` that overlap by a token."""
        windows: list[tuple[Any, list[int], list[int]]] = []
        counts: list[int] = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            of_one = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
            windows += [(None, *make_disjoint_window(one)) for one in of_one]
            counts.append(len(windows))
        scores = [score for score, _ in self._loglikelihood_tokens(windows, disable_tqdm)]
        sums: list[float] = []
        for request, first, end in zip(requests, [0, *counts], counts, strict=False):
            sums.append(sum(scores[first:end]))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The texts that follow contexts, up to their ends; greedy unless a temperature is given.
        Other options are those of `RequestOptions`; a long context loses its beginning.

        Raises:
            ConfigError: an unknown option, or max_gen_toks leaves no space for a context.
            BatchError: some failed.
        """
        bar = tqdm(
            total=len(requests), desc="Running generate_until requests", disable=disable_tqdm
        )
        with bar:
            arguments = [one.args for one in requests]

            def progress(share: float) -> None:
                bar.update(round(share * len(arguments)) - bar.n)

            done = complete_all(self.model.engine, self._request, arguments, progress)
        texts: list[str] = []
        for (context, kwargs), answer in zip(arguments, done, strict=True):
            text = self.vocabulary.decode(answer.tokens, skip_special=True)
            texts.append(postprocess_generated_text(text, self._ends(kwargs), self._think_end))
            self.cache_hook.add_partial("generate_until", (context, kwargs), texts[-1])
        return texts

    def _request(self, arguments: tuple[str, dict[str, Any]]) -> Generation:
        context, kwargs = arguments
        options: dict[str, Any] = {**normalize_gen_kwargs(kwargs, self.max_gen_toks)}
        most = options.pop("max_gen_toks")
        if most >= self.max_length:
            raise ConfigError(
                f"max_gen_toks {most} leaves no space for a context in max_length "
                f"{self.max_length}; give other ones in --gen_kwargs or --model_args"
            )
        if not options.pop("do_sample"):
            options["temperature"] = 0.0
        del options["until"]
        options |= {"max_tokens": most, "stop": self._ends(kwargs)}
        return self.model.request(self.tok_encode(context)[most - self.max_length :], **options)

    def _ends(self, kwargs: dict[str, Any]) -> list[str]:
        eos, until = self.vocabulary.eos, kwargs.get("until")
        text = None if eos is None else self._spelled(eos)
        ends = handle_stop_sequences([*until] if isinstance(until, list) else until, text)
        return [end for end in ends if end]

    def close(self) -> None:
        """Frees the model; one that was given stays open. Idempotent."""
        if "_continuations" in vars(self):
            self._continuations.close()
            del self._continuations
        if self._owned:
            self.model.close()


def _rename(options: dict[str, Any], theirs: str, ours: str, value: int | None) -> None:
    """Adds an option that lm-eval has another name for; None is not given."""
    if value is not None and options.setdefault(ours, value) != value:
        raise ConfigError(f"{theirs} and {ours} differ and are the same option; give one of them")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]

    cli_evaluate()
