"""The report on pairs of measurements: ratio, interval, verdict, and tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CONFIDENCE = 0.95
ENOUGH = 10  # pairs for a verdict


@dataclass(frozen=True)
class Row:
    """One quantity, measured in pairs.

    Attributes:
        name: "pp512", "tg32 x8", "start", "resident", …
        ours, peer: tokens/s, seconds or bytes, one of each a pair.
        disturbed: number of pairs that other processes disturbed in spite of all retries.
        outside: microseconds that a decoded token of ours spends outside ggml, one a pair; empty if
            unknown.
    """

    file: str
    name: str
    ours: list[float]
    peer: list[float]
    disturbed: int = 0
    outside: list[float] = field(default_factory=list)

    @property
    def speed(self) -> bool:
        """Whether more is better, unlike for seconds and bytes."""
        return self.name.startswith(("pp", "tg"))

    @property
    def ratios(self) -> list[float]:
        """Ours divided by the peer's, pair by pair."""
        return [a / b for a, b in zip(self.ours, self.peer, strict=True)]

    @property
    def verdict(self) -> str:
        """See `verdict`."""
        ratios = self.ratios if self.speed else [1 / r for r in self.ratios]
        return verdict(statistics.median(ratios), interval(ratios), len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A distribution-free interval that holds the median with at least 95 % confidence: from the
    k-th smallest to the k-th largest value, with the largest k that is safe. (The number of values
    below the median is binomial with p = 1/2.) None below six values."""
    n = len(values)
    k, outside = 0, 0.0
    while outside + 2 * math.comb(n, k) / 2**n <= 1 - CONFIDENCE:
        outside += 2 * math.comb(n, k) / 2**n
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[n - k]) if k else None


def verdict(median: float, bounds: tuple[float, float] | None, pairs: int) -> str:
    """The verdict on ratios of which more is better.

    "level": the median is at least 1.00, or at least 0.98 with 1.00 in the interval. "ahead": the
    whole interval is above 1.00. Else "behind"; "?" below ten pairs.
    """
    if bounds is None or pairs < ENOUGH:
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


def table_outside(rows: Sequence[Row]) -> list[list[str]]:
    """The header, and a line for each row with a known time outside ggml: medians of the time and
    of its share. Empty without such rows."""
    lines = [["file", "row", "outside ggml, a token", "of its time"]]
    for row in rows:
        if row.outside:
            shares = [us * speed / 1e4 for us, speed in zip(row.outside, row.ours, strict=True)]
            us, share = statistics.median(row.outside), statistics.median(shares)
            lines.append([row.file, row.name, f"{us:.1f} µs", f"{share:.2f} %"])
    return lines if len(lines) > 1 else []


def _quantity(row: Row, values: Sequence[float]) -> str:
    value = statistics.median(values)
    if row.speed:
        return f"{value:.1f}"
    return f"{value / 2**20:,.0f} MiB" if row.name.startswith("resident") else f"{value:.2f} s"


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """The machine and the versions, then the tables."""
    return page(about, table(rows), table_outside(rows))


def page(about: Mapping[str, str], *tables: Sequence[Sequence[str]]) -> str:
    """Facts, then tables of a header and lines; without those that are empty."""
    facts = "".join(f"- {name}: {value}\n" for name, value in about.items())
    return "\n".join([facts, *map(_markdown, filter(None, tables))])


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    header, *others = ["| " + " | ".join(line) + " |\n" for line in lines]
    return header + "|" + "---|" * len(lines[0]) + "\n" + "".join(others)


def write_between(path: Path, name: str, text: str) -> None:
    """Puts a text between the markers of that name in a document; appends them if missing."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    old = path.read_text() if path.exists() else ""
    if begin not in old or end not in old:
        old += f"\n{begin}{end}"
    before, _, rest = old.partition(begin)
    path.write_text(f"{before}{begin}{text}{end}{rest.partition(end)[2]}")
