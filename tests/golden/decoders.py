"""Decoders with an encoder beside them: transformers runs both, and a prompt without an item needs
the decoder alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def decode_alone(model: Any, item: str, into: str, logits: Callable[[Any], Any]) -> None:
    """Has a model of transformers compute ids without an item by its decoder alone.

    Args:
        item: the golden's name of what the encoder reads.
        into: the model's name of it.
        logits: of the decoder's hidden states.
    """
    output = import_module("transformers.modeling_outputs").CausalLMOutput
    whole, decoder = model.forward, model.get_decoder()

    def forward(input_ids: Any = None, decoder_input_ids: Any = None, **options: Any) -> Any:
        ids, encoded = (
            decoder_input_ids if input_ids is None else input_ids,
            options.pop(item, None),
        )
        if encoded is not None:
            return whole(**{into: encoded}, decoder_input_ids=ids, **options)
        return output(logits=logits(decoder(ids, **options).last_hidden_state))

    model.forward = forward
