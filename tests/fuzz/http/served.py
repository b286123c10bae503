"""Good requests to a real server whose runner processes are killed and stopped, for hours."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from random import Random
from typing import Any

from tests.fuzz.fuzzer import Note, Wrong
from tests.fuzz.http.bodies import bodies, with_media
from tests.fuzz.http.client import Exchange, exchanges
from tests.fuzz.http.fuzzer import Http
from tests.fuzz.http.requests import packed

_AGAIN = 60.0  # seconds in which a model answers again
_CHANGES = ("/api/create", "/api/copy", "/api/delete", "/api/pull", "/api/blobs")


class Served(Http):
    """Rounds of requests, now and then with a runner that dies or stands still meanwhile."""

    name = "soak-serve"
    requests = 40

    def make(self, random: Random) -> dict[str, Any]:
        kept = [body for body in bodies() if not body[1].startswith(_CHANGES)]
        chosen = [
            with_media(random) if random.random() < 0.1 else random.choice(kept)
            for _ in range(self.requests)
        ]
        requests = [
            {
                "pieces": [packed(random, body)],
                "gap": 0.0,
                "leave": None,
                "whole": True,
                "model": body[2].get("model", "stories"),
            }
            for body in chosen
        ]
        fate = random.random()
        return {
            "requests": requests,
            "signal": "KILL" if fate < 0.05 else "STOP" if fate < 0.1 else None,
            "runner": random.randrange(len(self.models)),
            "after": random.random(),
            "seconds": random.choice([0.1, 1.0, 3.0]),
        }

    def run(self, case: dict[str, Any], note: Note) -> None:
        begin = time.monotonic()
        made = asyncio.run(self._disturbed(case))
        self.counts["requests"] += len(made)
        if case["signal"] is None:
            self.check_round(made, begin)
        else:
            self.counts[case["signal"]] += 1
            lost = [one for one in made if not one.complete or max(one.statuses, default=0) >= 500]
            self.counts["lost"] += len(lost)
            if len({one.request["model"] for one in lost}) > 1:
                raise Wrong("requests to other models are lost", *map(str, lost))
            self._answers_again()
            self.read_log()
            self.remember_runners()
        self.check_growth()

    async def _disturbed(self, case: dict[str, Any]) -> list[Exchange]:
        """The requests, with a signal to a runner meanwhile."""
        sending = asyncio.ensure_future(exchanges(self.port, case["requests"]))
        if case["signal"] is not None:
            await asyncio.sleep(case["after"])
            runners = sorted(self.server.runners())
            runner = runners[case["runner"] % len(runners)]
            with suppress(ProcessLookupError):
                os.kill(runner, signal.Signals[f"SIG{case['signal']}"])
                if case["signal"] == "STOP":
                    await asyncio.sleep(case["seconds"])
                    os.kill(runner, signal.SIGCONT)
        return await sending

    def _answers_again(self) -> None:
        """Whether each model answers.

        Raises:
            Wrong: it does not.
        """
        for model in self.models:
            end = time.monotonic() + _AGAIN
            body = {"model": model, "prompt": [3], "max_tokens": 1}
            while True:
                try:
                    json.loads(self.ask("/v1/completions", body))
                    break
                except OSError as error:
                    if time.monotonic() > end:
                        raise Wrong("a model that does not answer again", model, error) from None
                time.sleep(0.5)
