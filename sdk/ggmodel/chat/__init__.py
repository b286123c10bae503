"""Chat templates: turn messages into a prompt."""

from .history import fitting
from .messages import take_images
from .template import ChatTemplate

__all__ = ["ChatTemplate", "fitting", "take_images"]
