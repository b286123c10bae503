"""The page of `ggmodel diff` in a real browser, judged by its picture.

Needs Debian's chromium (or another one named by CHROMIUM) and runs when named, see
`make test-browser`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ggmodel
from ggmodel.workbench.diff import diff
from ggmodel.workbench.diff.report import page
from tests.workbench.saved import saved, source_of

WIDTHS = [1280, 560]
PAPER = {"light": (255, 255, 255), "dark": (20, 23, 26)}
BAD = {"light": (179, 38, 30), "dark": (255, 138, 128)}
# chromium's numbers
SCHEMES = {"dark": 0, "light": 1}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One of a healthy model, and one of a model that lacks the scale of its scores."""
    folder = tmp_path_factory.mktemp("models")
    text = (Path(__file__).parents[1] / "models" / "outside" / "llama.py").read_text()
    assert text.count("scale=h.head_dim**-0.5") == 1
    (folder / "llama.py").write_text(text.replace("scale=h.head_dim**-0.5", "scale=1.0"))
    made = {}
    for name, models in (("healthy", None), ("faulty", folder)):
        with ggmodel.load(
            source_of("llama"), models=models, kv_type="f32", flash_attention="off"
        ) as model:
            made[name] = page(diff(model, saved("llama")))
    return made


def run(chromium: str, folder: Path, text: str, *options: str) -> str:
    """Opens a page; what chromium prints."""
    file = folder / "page.html"
    file.write_text(text)
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", *options, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def picture(chromium: str, folder: Path, text: str, width: int, scheme: str) -> np.ndarray:
    """The page as it looks, [height, width, 3]."""
    shot = folder / "page.png"
    run(
        chromium,
        folder,
        text,
        f"--window-size={width},1400",
        f"--screenshot={shot}",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
    )
    with Image.open(shot) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def near(image: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.all(np.abs(image - colour) <= 3, axis=-1, keepdims=True)[..., 0]


def bars(image: np.ndarray, colour: tuple[int, int, int]) -> list[tuple[int, int]]:
    """From where to where the left edge of what is on the page is thick and of this colour."""
    edge = near(image[:, 26:29], colour).all(1)
    changes = np.flatnonzero(np.diff(np.concatenate([[0], edge.astype(int), [0]])))
    return list(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))


def hues(image: np.ndarray) -> tuple[int, int]:
    """Pixels that are clearly green, and clearly red."""
    red, green, blue = image[..., 0], image[..., 1], image[..., 2]
    return int(((green > red + 40) & (green > blue + 20)).sum()), int(
        ((red > green + 25) & (red > blue + 25)).sum()
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_divergence_is_marked(
    chromium: str, pages: dict[str, str], tmp_path: Path, width: int, scheme: str
):
    image = picture(chromium, tmp_path, pages["faulty"], width, scheme)
    assert image.shape[1] == width
    assert near(image[0, 0], PAPER[scheme])
    # Nothing is painted into the margins.
    assert near(image[:, :12], PAPER[scheme]).all()
    assert near(image[:, -12:], PAPER[scheme]).all()
    # The bar of the card on top, and the one of the row that is to blame: its number is red, those
    # of the rows before it are green.
    card, row = bars(image, BAD[scheme])
    assert card[1] - card[0] > 80 > row[1] - row[0] > 12
    inner = slice(100, -100)
    green, red = hues(image[row[0] : row[1], inner])
    assert red > 300 and green == 0
    green, red = hues(image[row[0] - 120 : row[0] - 60, inner])
    assert green > 300 and red == 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_healthy_model_is_green(
    chromium: str, pages: dict[str, str], tmp_path: Path, scheme: str
):
    image = picture(chromium, tmp_path, pages["healthy"], WIDTHS[0], scheme)
    green, red = hues(image)
    assert green > 3000
    assert red == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("unfolded", [False, True])
def test_nothing_is_wider_than_the_window(
    chromium: str, pages: dict[str, str], tmp_path: Path, width: int, unfolded: bool
):
    """Measured by a script, which the page itself neither has nor allows."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", pages["faulty"])
    assert text != pages["faulty"]
    measure = "document.title = [innerWidth, document.documentElement.scrollWidth].join(' ')"
    unfold = "for (const d of document.querySelectorAll('details')) d.open = true;"
    script = f"<script>{unfold if unfolded else ''}{measure}</script></body>"
    dom = run(
        chromium,
        tmp_path,
        text.replace("</body>", script),
        f"--window-size={width},900",
        "--dump-dom",
    )
    found = re.search(r"<title>(\d+) (\d+)</title>", dom)
    assert found is not None
    inner, wanted = map(int, found.groups())
    assert inner == width
    assert wanted <= inner


def test_samples_open_on_a_click(chromium: str, pages: dict[str, str], tmp_path: Path):
    """All layers open, and in them the row that is to blame: the page grows by its numbers."""
    folded = pages["faulty"].replace('<details class="layer">', '<details class="layer" open>')
    opened = folded.replace('<details class="row wrong">', '<details class="row wrong" open>')
    assert opened != folded

    def painted(text: str) -> int:
        image = picture(chromium, tmp_path, text, WIDTHS[0], "light")
        return int(np.flatnonzero(~near(image, PAPER["light"]).all(1)).max())

    assert painted(opened) > painted(folded) + 60
