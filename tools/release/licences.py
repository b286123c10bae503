"""Licences of all that an installation of ggmodel brings along."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import Refused, run

ACCEPTED = frozenset(
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 HPND ISC LGPL-2.1-or-later MIT "
    "MIT-0 MIT-CMU MPL-2.0 PSF-2.0 Python-2.0 Unlicense Zlib".split()
)
"""By SPDX's names. A package is installed beside ours, and none is copied into our files."""

UNWANTED = ("pip", "setuptools")
"""In a new environment without being asked for."""

_SPELLED = (
    (r"apache.*(2|software)", "Apache-2.0"),
    (r"(?=.*bsd)(?=.*(3|new|modified|revised))", "BSD-3-Clause"),
    (r"(?=.*bsd)(?=.*(2|simplified))", "BSD-2-Clause"),
    (r"bsd", "BSD-3-Clause"),
    (r"mozilla public.*2|mpl.?2", "MPL-2.0"),
    (r"python software foundation|^psf", "PSF-2.0"),
    (r"^isc\b", "ISC"),
    (r"^mit\b|mit license", "MIT"),
)
"""Words of metadata from before SPDX → its names."""

# Runs in the environment that is looked at, which has nothing of ours.
_LOOK = r"""
import json, importlib.metadata as metadata
rows = []
for one in metadata.distributions():
    about = one.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or ()
                   if c.startswith("License ::")]
    files = [f for f in one.files or () if ".dist-info" in str(f)]
    texts = {str(f): f.read_text() for f in files
             if f.name.upper().startswith(("LICEN", "COPYING", "NOTICE"))}
    rows.append({"name": about["Name"], "version": one.version, "texts": texts,
                 "said": [about["License-Expression"], *classifiers, about["License"]]})
print(json.dumps(rows))
"""


@dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes:
        licence: an SPDX expression.
        texts: of its licences, by file.
    """

    name: str
    version: str
    licence: str
    texts: dict[str, str]


def installed(python: Path) -> list[Package]:
    """The packages in the environment of a Python, by name.

    Raises:
        Refused: a package does not tell its licence, or its licence is not accepted.
    """
    rows = json.loads(run([python, "-I", "-c", _LOOK]))
    packages = [
        Package(row["name"], row["version"], expression(row["name"], row["said"]), row["texts"])
        for row in rows
        if row["name"].lower() not in UNWANTED
    ]
    return sorted(packages, key=lambda package: package.name.lower())


def expression(name: str, texts: Sequence[str | None]) -> str:
    """The licence of a package as an SPDX expression.

    Args:
        texts: what its metadata say, the most reliable first.

    Raises:
        Refused: nothing that is known, or nothing that is accepted.
    """
    for words in filter(None, texts):
        spdx = _in_spdx(words)
        if spdx is None:
            continue
        # One of the alternatives suffices; of what is joined by AND all must be accepted.
        for choice in re.split(r"\s+OR\s+", spdx.replace("(", "").replace(")", "")):
            names = re.split(r"\s+AND\s+", choice)
            if all(one.partition(" WITH ")[0] in ACCEPTED for one in names):
                return spdx
        raise Refused(
            f"{name} has the licence {spdx}: leave the package out, or, if people may have it "
            "beside ours, accept it in tools/release/licences.py"
        )
    raise Refused(f"{name} does not tell its licence: look it up, and tools/release/licences.py")


def _in_spdx(words: str) -> str | None:
    if re.fullmatch(r"[\w.+()-]+(\s+(AND|OR|WITH)\s+[\w.+()-]+)*", words) and "-" in words:
        return words
    if words in ACCEPTED:
        return words
    first = words.strip().partition("\n")[0].lower()
    if len(first) > 100:
        return None
    return next((spdx for pattern, spdx in _SPELLED if re.search(pattern, first)), None)


def document(packages: Sequence[Package], bundled: dict[str, str]) -> str:
    """A table of all licences, and their texts.

    Args:
        bundled: parts that our own files bring, and their licences' texts.
    """
    width = max(len(p.name) + len(p.version) for p in packages) + 3
    lines = ["Licences of ggmodel, of what its files bring, and of what is installed with it", ""]
    lines += [f"{f'{p.name} {p.version}':{width}}{p.licence}" for p in packages]
    for name, text in sorted(bundled.items()):
        lines += ["", "=" * 80, f"brought along: {name}", "", text.rstrip()]
    for p in packages:
        for file, text in sorted(p.texts.items()):
            lines += ["", "=" * 80, f"{p.name} {p.version}: {Path(file).name}", "", text.rstrip()]
    return "\n".join([*lines, ""])
