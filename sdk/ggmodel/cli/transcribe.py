"""`ggmodel transcribe`: what is said in a sound?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .expanded import expanded
from .loading import Loading
from .options import File, Json
from .terminal import printable, progress_bar, report

if TYPE_CHECKING:
    from ..transcript import Transcript


@expanded()
def transcribe(
    file: File,
    sound: Annotated[str, typer.Argument(metavar="SOUND", help="A file: WAV, FLAC, MP3 or OGG.")],
    language: Annotated[
        str | None,
        typer.Option(help="Its language, such as en or English; by default it is recognised."),
    ] = None,
    translate: Annotated[
        bool, typer.Option("--translate", help="Translate it to English.")
    ] = False,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Tell when each passage begins and ends.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text that might have been said before: its spelling is gone on with."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 always takes the likeliest words.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Of the random choice; -1 is random.")] = -1,
    srt: Annotated[bool, typer.Option("--srt", help="Print subtitles (SubRip).")] = False,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Write down what is said in a sound.

    The model is a Whisper or a Voxtral. A Whisper hears sounds of any length in windows of 30
    seconds; the share that is done is shown on standard error. A Voxtral hears a sound as a whole,
    and tells no times.
    """
    from ..transcript import transcribe as write_down

    with loading.load(file) as model, progress_bar("transcribing") as progress:
        found = write_down(
            model,
            sound,
            language=language,
            task="translate" if translate else None,
            timestamps=timestamps or srt,
            prompt=prompt,
            temperature=temperature,
            seed=seed,
            progress=lambda done, all: progress(done / all),
        )
    report(as_json, asdict(found), lambda: _print(found, timestamps, srt))


def _print(found: Transcript, timestamps: bool, srt: bool) -> None:
    from ..transcript import as_srt, as_text

    if srt or timestamps:
        text = (as_srt if srt else as_text)(found.segments)
        print(printable(text, keep="\n"), end="")
    else:
        print(printable(found.text, keep="\n"))
