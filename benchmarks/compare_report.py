"""What pairs of measurements say: ratio, interval, verdict, and a table of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Row:
    """One quantity, measured in pairs.

    Attributes:
        name: "pp512", "tg32 x8", "start", "resident", …
        ours, peer: in tokens/s, seconds or bytes; one of each a pair.
        disturbed: how many pairs others took part in, in spite of all retries.
    """

    file: str
    name: str
    ours: list[float]
    peer: list[float]
    disturbed: int = 0

    @property
    def speed(self) -> bool:
        """Whether more is better; of seconds and bytes less is."""
        return self.name.startswith(("pp", "tg"))

    @property
    def ratios(self) -> list[float]:
        """Ours to the peer's, pair by pair."""
        return [a / b for a, b in zip(self.ours, self.peer, strict=True)]

    @property
    def verdict(self) -> str:
        """See `verdict`."""
        ratios = self.ratios if self.speed else [1 / r for r in self.ratios]
        return verdict(statistics.median(ratios), interval(ratios))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """An interval that has the median with at least 95 % confidence, whatever the distribution:
    from the k-th smallest to the k-th largest value, with the largest k that is safe. (The number
    of values below the median is binomial with p = 1/2.) None below six values."""
    n = len(values)
    k, outside = 0, 0.0
    while outside + 2 * math.comb(n, k) / 2**n <= 1 - CONFIDENCE:
        outside += 2 * math.comb(n, k) / 2**n
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[n - k]) if k else None


def verdict(median: float, bounds: tuple[float, float] | None) -> str:
    """Of ratios of which more is better.

    "level": the median is at least 1.00, or at least 0.98 where the interval has 1.00 in it.
    "ahead": all of the interval is above 1.00. Else "behind"; "?" without an interval.
    """
    if bounds is None:
        return "?"
    if bounds[0] > 1:
        return "ahead"
    level = median >= 1 or (median >= 0.98 and bounds[0] <= 1 <= bounds[1])
    return "level" if level else "behind"


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The header, and a line for each row."""
    lines = [["file", "row", "ours", "peer", "ratio", "95 %", "pairs", "verdict"]]
    for row in rows:
        ratios, bounds = row.ratios, interval(row.ratios)
        lines.append(
            [
                row.file,
                row.name,
                _quantity(row, row.ours),
                _quantity(row, row.peer),
                f"{statistics.median(ratios):.3f}",
                f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else "",
                f"{len(ratios)}" + (f", {row.disturbed} disturbed" if row.disturbed else ""),
                row.verdict,
            ]
        )
    return lines


def _quantity(row: Row, values: Sequence[float]) -> str:
    value = statistics.median(values)
    if row.speed:
        return f"{value:.1f}"
    return f"{value / 2**20:,.0f} MiB" if row.name.startswith("resident") else f"{value:.2f} s"


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """The table, and on what it was measured."""
    header, *lines = table(rows)
    out = ["| " + " | ".join(line) + " |" for line in lines]
    rule = "|" + "---|" * len(header)
    facts = "".join(f"- {name}: {value}\n" for name, value in about.items())
    return f"{facts}\n| {' | '.join(header)} |\n{rule}\n" + "\n".join(out) + "\n"


def write_between(path: Path, name: str, text: str) -> None:
    """Puts a text between the markers of that name in a document; they are appended if there are
    none."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    old = path.read_text() if path.exists() else ""
    if begin not in old or end not in old:
        old += f"\n{begin}{end}"
    before, _, rest = old.partition(begin)
    path.write_text(f"{before}{begin}{text}{end}{rest.partition(end)[2]}")
