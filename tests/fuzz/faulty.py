"""A fuzzer whose cases misbehave, to see that the harness notices."""

from __future__ import annotations

import os
import signal
import threading
import time
from random import Random
from typing import Any

from ggmodel.errors import FormatError
from tests.fuzz.fuzzer import Fuzzer, Note


class Faulty(Fuzzer):
    """Harmless cases, and now and then the fault that GGMODEL_FUZZ_FAULT names."""

    name = "faulty"
    unit = "steps"
    patience = 2.0
    memory = 256 << 20

    def make(self, random: Random) -> dict[str, Any]:
        fault = os.environ.get("GGMODEL_FUZZ_FAULT", "none")
        harmless = random.choice(["none", "refused"])
        return {"fault": fault if random.random() < 0.07 else harmless, "data": random.randbytes(9)}

    def run(self, case: dict[str, Any], note: Note) -> None:
        assert isinstance(case["data"], bytes) and len(case["data"]) == 9
        self.counts["steps"] += 3
        note(f"the fault is {case['fault']}")
        fault = getattr(self, case["fault"])
        fault()

    def none(self) -> None: ...

    def refused(self) -> None:
        raise FormatError("the file is damaged")

    def foreign(self) -> None:
        raise KeyError("metadata")

    def leaving(self) -> None:
        raise SystemExit(3)

    def thread(self) -> None:
        thread = threading.Thread(target=self.foreign)
        thread.start()
        thread.join()

    def crash(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(self) -> None:
        while True:
            time.sleep(1)

    def bomb(self) -> None:
        hoard = bytes(1 << 30)
        del hoard

    def at_exit(self) -> None:
        os._exit(7)
