"""Files in Xet's storage, which hf_xet fetches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import Error


def receive(
    content: Any,
    size: int,
    file: Path,
    headers: Mapping[str, str],
    report: Callable[[int], None],
    excess: Error,
) -> None:
    """Writes a file.

    Args:
        content: huggingface_hub's description of it.
        size: in bytes.
        headers: with the token of the hub, which Xet's storage does not get.
        report: called with the bytes that came.
        excess: raised where more bytes come.
    """
    from huggingface_hub.file_download import xet_get
    from huggingface_hub.utils._xet import abort_xet_session

    left = size

    def count(nbytes: int) -> None:
        nonlocal left
        left -= nbytes
        if left < 0:
            abort_xet_session()  # hf_xet goes on whatever its callbacks raise
            raise excess
        report(nbytes)

    try:
        xet_get(
            incomplete_path=file,
            xet_file_data=content,
            headers=dict(headers),
            expected_size=size,
            tqdm_class=_counter(count),
        )
    except Exception:
        if left >= 0:
            raise
    if left < 0:
        raise excess


def _counter(count: Callable[[int], None]) -> type[Any]:
    """A class in place of tqdm's bars, which counts bytes that are written."""

    class Counter:
        total = 0

        def __init__(self, *args: Any, initial: float = 0, **options: Any):
            count(int(initial or 0))

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

        def update_transfer(self, n: float) -> None:
            """Bytes of the network, whose content `update` counts."""

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., None]:
            if name.startswith("_"):
                raise AttributeError(name)
            return lambda *args, **options: None

    return Counter
