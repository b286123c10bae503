"""The findings of `ggmodel certify` as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Part = Literal[
    "architecture", "hyperparameter", "tensor", "tokenizer", "template", "behaviour", "server"
]
Status = Literal["equal", "bounded", "different", "missing", "surplus", "uncompared"]


@dataclass(frozen=True)
class Finding:
    """A fault, or something to know.

    Attributes:
        kind: what it is, in a word or two: "scaled", "edited", "merges", "add_bos_token".
        name: of the tensor or key.
        message: a sentence about it.
        fault: it makes the file another model; if not, it is a note.
    """

    part: Part
    kind: str
    name: str
    message: str
    fault: bool = True


@dataclass(frozen=True)
class TensorResult:
    """A tensor of the file beside the checkpoint's.

    Attributes:
        dtype: of the file.
        shape: in ggml's order.
        status: "equal": the same bytes, recomputed; "bounded": not recomputable, for the file was
            made with an importance matrix that was not given, and within the error of its type;
            "uncompared": no numbers of a type that can be computed.
        kind, note: of a difference: its name and a sentence.
        error: root of the mean square of the error, by that of the original; 0 where it was not
            measured, as of equal bytes in F32.
        blocks, differing: blocks of the type, and those with other bytes than were recomputed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    status: Status
    kind: str = ""
    note: str = ""
    error: float = 0.0
    blocks: int = 0
    differing: int = 0


@dataclass
class Certificate:
    """The result of `certify`.

    Attributes:
        file, against: as they were given.
        digest: SHA-256 of the file's bytes; "" for a server.
        checked: part → what was compared there, in words.
        unchecked: what was not, and why.
        tensors: in the order of the file.
        findings: faults and notes.
        modules: module diff: path → error of its results, and the KL divergence of the text.
    """

    file: str
    against: str
    digest: str = ""
    architecture: str = ""
    checked: dict[str, str] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    tensors: list[TensorResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    divergence: dict[str, float] = field(default_factory=dict)
    modules: list[dict[str, Any]] = field(default_factory=list)

    @property
    def faults(self) -> list[Finding]:
        """Findings by which the file is another model."""
        return [f for f in self.findings if f.fault]

    @property
    def ok(self) -> bool:
        """Whether nothing was found by which the file is another model."""
        return not self.faults

    @property
    def counts(self) -> dict[str, int]:
        """Status → number of tensors."""
        return dict(Counter(t.status for t in self.tensors))

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        if not self.ok:
            faults = len(self.faults)
            return f"{self.file} is not {self.against}: {faults} fault{'s'[: faults != 1]}"
        bounded = self.counts.get("bounded", 0)
        rest = f"; {bounded} tensors cannot be recomputed without --imatrix" if bounded else ""
        return f"{self.file} is {self.against}, in all that was compared{rest}"

    def add(self, part: Part, kind: str, name: str, message: str, fault: bool = True) -> None:
        """Adds a finding."""
        self.findings.append(Finding(part, kind, name, message, fault))

    def as_dict(self) -> dict[str, Any]:
        """All of it for JSON: the same for the same files."""
        own: Mapping[str, Any] = asdict(self)
        return {"ok": self.ok, "verdict": self.verdict, "counts": self.counts, **own}
