"""All clients that one load process plays, while they are connected.

They live from ``connect`` to ``close``, over any number of runs.  Those of `returning` nodes are
connected again when they lose their connection, tried every `RETRY_NS` while a run is measured.
What subscribers read while no run is measured, or what is left over of an earlier one, is counted
as strays of the next.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from isthmus.bench.coordinator.control import Target
from isthmus.bench.load.clients import (
    ClientConnection,
    Loss,
    Poller,
    PublishingClient,
    SubscribingClient,
)
from isthmus.bench.load.clock import now_ns
from isthmus.bench.load.connecting import Connected
from isthmus.bench.load.frames import LEVEL, Template, template
from isthmus.bench.load.receiving import Columns, Inbox, LoadSubscription, Parser
from isthmus.bench.load.returning import RETRY_NS, Attempt
from isthmus.bench.load.sending import Outbox
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Subscribe, Subscription
from isthmus.pipeline.log.reading import LoggedClient
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
        *,
        returning: Mapping[str, Target] | None = None,
    ) -> None:
        self.topics = tuple(topics)
        self.losses: list[Loss] = []
        self.returns: list[tuple[LoggedClient, int]] = []
        """Who has come back, and when."""
        self._returning = returning or {}
        self._poller = poller
        self._due: dict[int, int] = {}
        """When to try again, by the client's number."""
        self._attempts: dict[int, Attempt] = {}
        self._by_number: dict[int, ClientConnection] = {}
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
                one, poller, self._lost, outboxes[one.client.topic, qos[one.client.kind]]
            )
            for one in connected
            if one.client.role == "publisher"
        ]
        self.subscribers = [
            SubscribingClient(
                one,
                poller,
                self._lost,
                number=number,
                inbox=self._inbox,
                parser=self._parser,
                parse=self.parse,
                subscribe=_subscribe(topics[one.client.topic], qos[one.client.kind]),
            )
            for number, one in enumerate(subscribed)
        ]
        self._by_number |= {one.client.client: one for one in self.connections}

    @property
    def connections(self) -> list[ClientConnection]:
        """Of all clients, the lost ones included."""
        return [*self.publishers, *self.subscribers]

    @property
    def away(self) -> list[Loss]:
        """The last loss of each client that is not connected."""
        last = {loss.client.client: loss for loss in self.losses}
        return [loss for number, loss in last.items() if self._by_number[number].sock is None]

    def _lost(self, loss: Loss) -> None:
        self.losses.append(loss)
        if loss.client.node not in self._returning:
            return
        number = loss.client.client
        self._due[number] = loss.t_ns + RETRY_NS
        connection = self._by_number.get(number)
        if isinstance(connection, PublishingClient):
            connection.publisher.cut_off()

    def next_ns(self) -> int | None:
        """When `serve` has something to do; None: when a connection was lost."""
        deadlines_ns = [attempt.deadline_ns for attempt in self._attempts.values()]
        return min((*self._due.values(), *deadlines_ns), default=None)

    def serve(self, at_ns: int) -> None:
        """Try to connect those again whose time has come."""
        if not self._due and not self._attempts:
            return
        for attempt in list(self._attempts.values()):
            if attempt.deadline_ns <= at_ns:
                attempt.give_up()
        for number in [number for number, due_ns in self._due.items() if due_ns <= at_ns]:
            del self._due[number]
            connection = self._by_number[number]
            self._attempts[number] = Attempt(
                self._returning[connection.client.node],
                connection.client_id,
                clean=connection.clean,
                poller=self._poller,
                at_ns=at_ns,
                ended=partial(self._tried, connection),
            )

    def _tried(
        self, connection: ClientConnection, sock: socket.socket | None, heard: bytes
    ) -> None:
        number = connection.client.client
        self._attempts.pop(number, None)
        if sock is None:
            self._due[number] = now_ns() + RETRY_NS
            return
        self.returns.append((connection.client, now_ns()))
        connection.come_back(sock, heard)

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
        for attempt in list(self._attempts.values()):
            attempt.give_up()
        self._due.clear()
        for connection in self.connections:
            connection.close()


def _subscribe(topic: str, qos: int) -> bytes:
    return encode(Subscribe(1, (Subscription(topic, qos),)), LEVEL)
