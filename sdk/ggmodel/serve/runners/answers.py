"""Answers on their way to the client: from pieces to events, no more than it takes."""

from __future__ import annotations

from ...runner import Piece as Generated
from ...runner.requests.generation import Generation
from ..requests import Begun, Ended, Event, Failure, Piece
from .failures import failure_of
from .frames import WINDOW
from .work import Prepared, Work


class Answer:
    """A generation and its client.

    Args:
        special: the token that ends the text is part of it.

    Attributes:
        granted: pieces that may be sent in all. The thread that reads the connection adds to it;
            all else belongs to the one that sends.
        over: its last event was taken.
    """

    def __init__(self, work: Work, prepared: Prepared, special: bool):
        self._work, self._special = work, special
        self.generation: Generation = prepared.generation
        self._begun: Begun | None = prepared.begun
        self.granted, self._sent, self.over = WINDOW, 0, False

    def events(self) -> list[Event | Failure]:
        """The events that have come and may be sent. Never waits."""
        events: list[Event | Failure] = []
        if self._begun is not None:
            events.append(self._begun)
            self._begun = None
        try:
            while not self.over and (room := self.granted - self._sent) > 0:
                pieces = self.generation.take(room)
                if pieces is None:
                    self.over = True
                    events += self._end()
                elif not pieces:
                    break
                else:
                    events += map(self._event, pieces)
        except Exception as error:
            self.over = True
            events.append(failure_of(error))
        return events

    def _event(self, piece: Generated) -> Piece:
        held_back = self._sent >= len(self.generation.tokens)  # until the end
        self._sent += 1
        if held_back:
            return Piece(str(piece))
        if piece.logprob is None:
            return Piece(str(piece), piece.token)
        token = self._work.token(piece.token, piece.logprob, piece.top_logprobs)
        return Piece(str(piece), piece.token, token)

    def _end(self) -> list[Piece | Ended]:
        generation, usage = self.generation, self.generation.usage
        ended = Ended(
            generation.finish_reason,
            usage.prompt_tokens,
            usage.completion_tokens,
            stop=generation.stop,
            reused_tokens=usage.reused_tokens,
            prompt_seconds=usage.prompt_seconds,
            decode_seconds=usage.decode_seconds,
            queue_seconds=usage.queue_seconds,
            drafted=usage.drafted,
            accepted=usage.accepted,
        )
        if not self._special or generation.ended_by is None:
            return [ended]
        text = self._work.bytes_of(generation.ended_by).decode("utf-8", "replace")
        return [Piece(text, generation.ended_by), ended]
