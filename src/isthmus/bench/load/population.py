"""All clients that one load process plays, while they are connected.

They live from ``connect`` to ``close``, over any number of runs.  What subscribers read while no
run is measured, or what is left over of an earlier one, is counted as strays of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from isthmus.bench.load.clients import (
    ClientConnection,
    Loss,
    Poller,
    PublishingClient,
    SubscribingClient,
)
from isthmus.bench.load.connecting import Connected
from isthmus.bench.load.frames import Template, template
from isthmus.bench.load.receiving import Columns, Inbox, LoadSubscription, Parser
from isthmus.bench.load.sending import Outbox
from isthmus.pipeline.log.schema import Table

__all__ = ["Population", "TakesDeliveries"]


class TakesDeliveries(Protocol):
    """What a population needs of :class:`isthmus.bench.load.recording.Recorder`."""

    def add(self, table: Table, columns: Columns) -> None: ...


class Population:
    """The publishers and subscribers of one load process."""

    def __init__(
        self,
        connected: Sequence[Connected],
        topics: Sequence[str],
        qos: Mapping[str, int],
        payload_bytes: int,
        poller: Poller,
    ) -> None:
        self.topics = tuple(topics)
        self.losses: list[Loss] = []
        self._inbox = Inbox()
        self._tag: int | None = None
        self._recorder: TakesDeliveries | None = None
        used = {(one.client.topic, qos[one.client.kind]) for one in connected}
        templates: dict[tuple[int, int], Template] = {
            key: template(topics[key[0]], key[1], payload_bytes) for key in used
        }
        outboxes = {key: Outbox(filled) for key, filled in templates.items()}
        subscribed = [one for one in connected if one.client.role == "subscriber"]
        self._parser = Parser(
            [
                LoadSubscription(
                    one.client.client,
                    one.client.topic,
                    templates[one.client.topic, qos[one.client.kind]],
                )
                for one in subscribed
            ]
        )
        self.publishers = [
            PublishingClient(
                one, poller, self.losses.append, outboxes[one.client.topic, qos[one.client.kind]]
            )
            for one in connected
            if one.client.role == "publisher"
        ]
        self.subscribers = [
            SubscribingClient(
                one,
                poller,
                self.losses.append,
                number=number,
                inbox=self._inbox,
                parser=self._parser,
                parse=self.parse,
            )
            for number, one in enumerate(subscribed)
        ]

    @property
    def connections(self) -> list[ClientConnection]:
        """Of all clients, the lost ones included."""
        return [*self.publishers, *self.subscribers]

    @property
    def received_bytes(self) -> int:
        """What all subscribers have read, as yet unparsed bytes included."""
        return self._inbox.received_bytes

    def begin(self, tag: int, recorder: TakesDeliveries) -> None:
        """What subscribers receive from now on goes to `recorder`, if it has this tag."""
        self._tag, self._recorder = tag, recorder

    def end(self) -> dict[str, int]:
        """What is read from now on belongs to no run; the strays since the last `end`."""
        self.parse()
        self._tag = self._recorder = None
        strays = dict(self._parser.strays)
        self._parser.strays.clear()
        return strays

    def parse(self) -> None:
        """Make deliveries of what was read until now."""
        columns = self._parser.parse(self._inbox, self._tag)
        if self._recorder is not None and self.subscribers:
            self._recorder.add("deliveries", columns)
        while self._parser.broken:
            number, problem = self._parser.broken.popitem()
            self.subscribers[number].lost(f"sent what is not MQTT: {problem}")

    def close(self) -> None:
        """Disconnect everybody."""
        for connection in self.connections:
            connection.close()
