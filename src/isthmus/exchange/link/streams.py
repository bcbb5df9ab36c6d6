"""The streams of a node's links: which numbers belong together (see `lane`).

What was accepted of a stream is remembered also when its neighbor has been let go meanwhile; the
link itself is not.  Bounded for all neighbors, and for each; the oldest are forgotten.
"""

from __future__ import annotations

from isthmus.errors import RemoteProtocolError
from isthmus.exchange.link.lane import Incoming
from isthmus.exchange.link.link import Link

__all__ = ["STREAM_TOPIC", "Streams"]

STREAM_TOPIC = "$isthmus/stream"
MAX_STREAMS = 4_096
MAX_STREAMS_EACH = 256
MAX_STREAM_NAME = 64


class Streams:
    """Names for those that begin here, and what came of those that begin elsewhere."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._begun = 0
        self._of: dict[str, dict[tuple[int, bytes], Incoming]] = {}
        """Of each neighbor, by lane and stream."""

    def new(self) -> str:
        self._begun += 1
        return f"{self._incarnation}.{self._begun}"

    def arrived(self, link: Link, lane: int, payload: bytes) -> None:
        """The neighbor says which numbers follow on this lane: take up where they were left."""
        if len(payload) > MAX_STREAM_NAME:
            raise RemoteProtocolError(f"a stream's name of {len(payload)} bytes")
        streams = self._of.pop(link.info.name, {})
        self._of[link.info.name] = streams
        if len(self._of) > MAX_STREAMS:
            del self._of[next(iter(self._of))]
        key = (lane, payload)
        incoming = streams.pop(key, None) or Incoming()
        streams[key] = link.incoming[lane] = incoming
        incoming.answer = lambda answer: link.answer(lane, incoming, answer)
        if len(streams) > MAX_STREAMS_EACH:
            del streams[next(iter(streams))]

    def left(self, neighbor: str) -> None:
        """Its link is gone: what comes of these streams from now on comes over another one."""
        for incoming in self._of.get(neighbor, {}).values():
            incoming.answer = None
