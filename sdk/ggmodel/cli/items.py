"""The options for images, audio and videos of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .expanded import option


@dataclass(kw_only=True)
class Items:
    """Files that go with a prompt."""

    image: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Image for the prompt; may be repeated.", "--image", metavar="FILE"
    )
    audio: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Audio for the prompt; may be repeated.", "--audio", metavar="FILE"
    )
    video: list[str] | None = option(  # noqa: RUF009  # a field
        None, "Video for the prompt, or a folder of its frames; may be repeated.", metavar="FILE"
    )

    def given(self) -> dict[str, list[str]]:
        """By option of a request, such as "images"; those that were not given left out."""
        found = {"images": self.image, "audio": self.audio, "videos": self.video}
        return {name: paths for name, paths in found.items() if paths}

    def each(self) -> list[tuple[str, str]]:
        """Kind and path of each."""
        kinds = {"image": self.image, "audio": self.audio, "video": self.video}
        return [(kind, path) for kind, paths in kinds.items() for path in paths or ()]


@dataclass(kw_only=True)
class Item:
    """A file that goes with a prompt."""

    image: str | None = option(None, "Image for the prompt.", metavar="FILE")
    audio: str | None = option(None, "Audio for the prompt.", metavar="FILE")
    video: str | None = option(
        None, "Video for the prompt, or a folder of its frames.", metavar="FILE"
    )

    def one(self, tokens: Any) -> tuple[str, str] | None:
        """Its kind and path; None if there is none.

        Args:
            tokens: value of --tokens, which does not go with it.

        Raises:
            ConfigError: there are several.
        """
        found = [(kind, path) for kind, path in vars(self).items() if path is not None]
        if len(found) > 1:
            raise ConfigError("give one of --image, --audio and --video")
        if found and tokens is not None:
            raise ConfigError(f"--{found[0][0]} goes with --prompt: the model lays out its tokens")
        return found[0] if found else None
