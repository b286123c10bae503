"""Model files of the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
STORIES = ROOT / "examples" / "assets" / "stories.gguf"
SHAPES = ROOT / "examples" / "assets" / "shapes.gguf"
EMBEDDER = ROOT / "tests" / "golden" / "gemma3" / "converted" / "embedding.gguf"
