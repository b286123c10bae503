"""Pictures of noise that are the same everywhere: their bytes come from SHAKE-256."""

import hashlib

import numpy as np
from PIL import Image

RESIZED = [  # from and to (width, height), and the method
    ((40, 30), (16, 16), "bilinear"),
    ((30, 40), (16, 16), "bicubic"),
    ((7, 5), (20, 24), "bilinear"),
    ((7, 5), (20, 24), "bicubic"),
    ((61, 9), (13, 9), "bilinear"),
    ((9, 61), (9, 17), "bicubic"),
    ((1, 1), (4, 3), "bilinear"),
    ((1, 50), (6, 1), "bicubic"),
    ((300, 4), (8, 8), "bilinear"),
    ((40, 30), (16, 16), "lanczos"),
    ((7, 5), (20, 24), "lanczos"),
    ((300, 4), (8, 8), "lanczos"),
    ((1, 50), (6, 1), "lanczos"),
]
SIDE = 8  # of a tile
SIZES = [
    (5, 3),
    (8, 8),
    (9, 8),
    (20, 10),
    (10, 31),
    (64, 8),
    (7, 90),
    (200, 150),
    (33, 33),
    (1, 40),
]
# Llama 4's processor makes a side of the last pair one pixel shorter than exact numbers would.
LARGE = [(336, 336), (337, 300), (640, 480), (1080, 1920), (4032, 3024), (50, 3000), (1200, 1600)]


def noise(width: int, height: int, channels: int = 3) -> Image.Image:
    """RGB, or RGBA with 4 channels."""
    name = f"{width}x{height}x{channels}".encode()
    data = hashlib.shake_256(name).digest(width * height * channels)
    return Image.fromarray(np.frombuffer(data, np.uint8).reshape(height, width, channels))
