"""Chat: messages become a prompt by the Jinja template that comes with a model."""

from __future__ import annotations

from ggmodel.chat.history import fitting
from ggmodel.chat.messages import take_images
from ggmodel.chat.template import ChatTemplate

__all__ = ["ChatTemplate", "fitting", "take_images"]
