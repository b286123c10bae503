"""`ggmodel transcribe`: speech to text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .loading import Loading
from .options import File, Json, expanded
from .terminal import printable, progress_bar, report

if TYPE_CHECKING:
    from ..transcript import Transcript


@expanded()
def transcribe(
    file: File,
    sound: Annotated[
        str, typer.Argument(metavar="SOUND", help="Audio file: WAV, FLAC, MP3 or OGG.")
    ],
    language: Annotated[
        str | None,
        typer.Option(help="Language of the speech, such as en or English; default: detected."),
    ] = None,
    translate: Annotated[
        bool, typer.Option("--translate", help="Translate the speech to English.")
    ] = False,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Print the start and end of each segment.")
    ] = False,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Text that precedes the speech; sets spelling and style (initial prompt)."
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy decoding.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed (-1 = a new one each time).")] = -1,
    srt: Annotated[bool, typer.Option("--srt", help="Print subtitles (SubRip).")] = False,
    as_json: Json = False,
    *,
    loading: Loading,
) -> None:
    """Transcribe speech to text or subtitles.

    The model is a Whisper or a Voxtral. Whisper transcribes audio of any length in windows of 30
    seconds, with progress on standard error. Voxtral takes a file as a whole, without timestamps.
    """
    from ..transcript import transcribe as write_down

    with loading.load(file) as model, progress_bar("transcribing") as progress:
        transcript = write_down(
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
    report(as_json, asdict(transcript), lambda: _print(transcript, timestamps, srt))


def _print(transcript: Transcript, timestamps: bool, srt: bool) -> None:
    from ..transcript import as_srt, as_text

    if srt or timestamps:
        text = (as_srt if srt else as_text)(transcript.segments)
        print(printable(text, keep="\n"), end="")
    else:
        print(printable(transcript.text, keep="\n"))
