"""Opens videos safely: frames as pixels, each with its time."""

from .frames import Choose, Video
from .open import open_video

__all__ = ["Choose", "Video", "open_video"]
