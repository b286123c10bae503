"""The messages between server and replicas: bytes, which Ray carries as they are."""

from __future__ import annotations

import msgspec

from ..requests import Event, Failure, State
from ..runners.frames import Result

encode = msgspec.msgpack.Encoder().encode
events = msgspec.msgpack.Decoder(list[Event | Failure])
"""Reads a part of an answer: all events that came together."""
result = msgspec.msgpack.Decoder(Result)
state = msgspec.msgpack.Decoder(State)
