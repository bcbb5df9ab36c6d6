"""Which topics a client publishes on, for algorithms that want to know (`follows_publishers`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from isthmus.cooperation.api import Route, SessionInfo

__all__ = ["MAX_TOPICS", "PublisherRoutes"]

MAX_TOPICS: Final = 1_000
"""Of one client; beyond, the topic that it has used first counts as no longer used."""

Told = Callable[[SessionInfo, tuple[str, ...], tuple[str, ...]], None]


class PublisherRoutes(Mapping[bytes, Route]):
    """One client's way into the forwarding table; notes what is looked up for the first time."""

    def __init__(self, table: Mapping[bytes, Route], session: SessionInfo, told: Told) -> None:
        self._table = table
        self._session = session
        self._told = told
        self._topics: dict[bytes, None] = {}

    def __getitem__(self, topic: bytes) -> Route:
        route = self._table[topic]
        if topic not in self._topics:
            ended: tuple[bytes, ...] = ()
            if len(self._topics) >= MAX_TOPICS:
                ended = (next(iter(self._topics)),)
                del self._topics[ended[0]]
            self._topics[topic] = None
            self._told(self._session, (topic.decode(),), tuple(each.decode() for each in ended))
            return self._table[topic]  # what it was told may have changed it
        return route

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)

    def end(self) -> None:
        """The client is gone."""
        topics, self._topics = self._topics, {}
        if topics:
            self._told(self._session, (), tuple(topic.decode() for topic in topics))
