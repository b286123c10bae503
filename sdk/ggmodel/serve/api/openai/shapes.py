"""Parts that the answers of several endpoints have: errors, counts, log-probabilities, ids."""

from __future__ import annotations

import secrets
import time
from typing import Any

from ...endpoint import Shape
from ...errors import Problem
from ...requests import Ended, State, Token
from ...streaming import event
from .answered import ErrorAnswer

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class OpenAI(Shape):
    """Errors as OpenAI puts them."""

    described = ErrorAnswer

    def refusal(self, error: Problem) -> Any:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        return {
            "error": {
                "message": error.message,
                "type": _TYPES.get(error.status, kind),
                "param": error.param,
                "code": error.code,
            }
        }

    def interruption(self, error: Problem) -> bytes:
        return event(self.refusal(error))


OPENAI = OpenAI()


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(16)}"


def head(prefix: str, kind: str, name: str, state: State) -> dict[str, Any]:
    """The beginning that answers and their chunks have in common.

    Args:
        prefix: of the id. kind: of the object. name: the model's, see `called`.
    """
    return {
        "id": new_id(prefix),
        "object": kind,
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": f"ggmodel-{state.engine}",
    }


def usage(ended: list[Ended], prompts: int | None = None) -> dict[str, Any]:
    """Counts of answers.

    Args:
        prompts: tokens of the prompts, if several answers have the same one.
    """
    if prompts is None:
        prompts = sum(one.prompt_tokens for one in ended)
    completions = sum(one.completion_tokens for one in ended)
    reused = min(prompts, sum(one.reused_tokens for one in ended))
    accepted = sum(one.accepted for one in ended)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": completions,
        "total_tokens": prompts + completions,
        "prompt_tokens_details": {"cached_tokens": reused, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(one.reasoning_tokens for one in ended),
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(one.drafted for one in ended) - accepted,
        },
    }


def timings(ended: Ended) -> dict[str, Any]:
    """Speed of an answer, as llama-server tells it."""
    read = ended.prompt_tokens - ended.reused_tokens
    prompt, decode = ended.prompt_seconds, ended.decode_seconds
    count = ended.completion_tokens
    return {
        "cache_n": ended.reused_tokens,
        "prompt_n": read,
        "prompt_ms": prompt * 1e3,
        "prompt_per_token_ms": prompt * 1e3 / read if read else 0.0,
        "prompt_per_second": read / prompt if prompt else 0.0,
        "predicted_n": count,
        "predicted_ms": decode * 1e3,
        "predicted_per_token_ms": decode * 1e3 / count if count else 0.0,
        "predicted_per_second": max(0, count - 1) / decode if decode else 0.0,
    }


def entry(token: Token) -> dict[str, Any]:
    """A token with its log-probability, without the likeliest at its place."""
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.data)}


def logprobs(tokens: list[Token]) -> dict[str, Any]:
    """Log-probabilities of a chat's answer."""
    content = [{**entry(one), "top_logprobs": [entry(top) for top in one.top]} for one in tokens]
    return {"content": content, "refusal": None}
