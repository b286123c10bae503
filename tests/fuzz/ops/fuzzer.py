"""Random programs of the tensor interface: calls that are right, nearly right, and wrong.

A call with arguments of the types it asks for gives a tensor or an error of the `ggmodel.Error`
family. A program that ends otherwise is a finding.
"""

from __future__ import annotations

from random import Random

from tests.fuzz.fuzzer import Fuzzer, Note
from tests.fuzz.ops.program import Program
from tests.fuzz.ops.world import World

_RENEW = 400  # programs that share backends


class Ops(Fuzzer):
    """One program a case, on backends that many programs share."""

    name = "ops"
    unit = "calls"
    weight = 2.0
    memory = 6 << 30  # what asks for more is refused, as on a full machine

    def open(self) -> None:
        self._world = World()
        self._programs = 0

    def make(self, random: Random) -> int:
        return random.getrandbits(48)

    def run(self, case: int, note: Note) -> None:
        if self._programs == _RENEW:
            self._programs = 0
            self._world.close()
            self._world.open()
        self._programs += 1
        Program(self._world, case, note, self.counts).run()

    def close(self) -> None:
        self._world.close()
