"""Gateways in front of several brokers, and clients of independent libraries at them.

Cells of the tests: k = 2, so there are 16, the last quarter divided among all brokers.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from paho.mqtt.client import topic_matches_sub

from conformance.clients import Client, Options, library
from conformance.clients_paho import PahoClient
from conformance.observation import Message
from conftest import require_broker
from isthmus.brokers import create
from isthmus.brokers.base import Broker
from isthmus.mqtt.packets import Subscription, Will
from isthmus.mqtt.properties import NO_PROPERTIES, Properties
from support.nodes import NodeProcess
from support.waiting import wait_for

__all__ = [
    "ARRIVE_S",
    "CELLS",
    "Crowd",
    "Key",
    "Site",
    "before",
    "cells_of",
    "gateway",
    "matching",
    "started",
    "until_away",
]

CELLS = tuple("/".join(digits) for digits in product("0123", repeat=2))
ARRIVE_S = 30.0

Brokers = Mapping[str, Broker]
Key = tuple[str, str, int]
"""Topic, payload and QoS of a message."""


def cells_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Of four brokers, or of three, the last of which then has one more."""
    quarters = {name: [str(at)] for at, name in enumerate(names[:3])}
    for at in range(4):
        quarters.setdefault(names[min(at, len(names) - 1)], []).append(f"3/{at}")
    return quarters


def gateway(folder: Path, brokers: Brokers, node_id: str, **tables: Any) -> NodeProcess:
    """A node that stands before `brokers`, each in charge of its cells; not started.

    Messages are held for those named in `holding`.
    """
    holding = tables.pop("holding", ())
    cooperation = {"algorithm": "geo", "k": 2, "cells": cells_of(list(brokers))}
    cooperation |= tables.pop("cooperation", {})
    several = []
    for name, broker in brokers.items():
        table = {"name": name, "url": f"mqtt://127.0.0.1:{broker.port}"}
        if broker.username is not None:
            table |= {"username": broker.username, "password": str(broker.password)}
        if name in holding:
            table["away"] = "hold"
        several.append(table)
    return NodeProcess(folder, "", id=node_id, brokers=several, cooperation=cooperation, **tables)


@dataclass(frozen=True, slots=True)
class Login:
    """What all clients say who they are; brokers that know no users take anything."""

    username: str | None = None
    password: str | None = None

    @classmethod
    def of(cls, brokers: Iterable[Broker]) -> Login:
        found = [cls(each.username, each.password) for each in brokers if each.username is not None]
        return found[0] if found else cls()


@dataclass(frozen=True, slots=True)
class Site:
    """Brokers, and the gateways in front of all of them."""

    brokers: dict[str, Broker]
    gateways: tuple[NodeProcess, ...]

    @property
    def ports(self) -> list[int]:
        return [each.port for each in self.gateways]

    def crowd(self, library: str, level: int) -> Crowd:
        return Crowd(library, level, Login.of(self.brokers.values()))

    def in_charge(self, cell: str) -> str:
        cells = cells_of(list(self.brokers))
        return next(
            name
            for name, theirs in cells.items()
            if any(f"{cell}/".startswith(f"{one}/") for one in theirs)
        )


def started(stack: ExitStack, names: Sequence[str]) -> dict[str, Broker]:
    """Brokers of these makes."""
    for name in names:
        require_broker(name)
    brokers = {name: create(name) for name in names}
    for broker in brokers.values():
        stack.callback(broker.stop)
        stack.callback(broker.kill)  # HiveMQ takes 5 s to end by itself
    with ThreadPoolExecutor() as pool:
        list(pool.map(Broker.start, brokers.values()))
    return brokers


def before(
    stack: ExitStack,
    brokers: dict[str, Broker],
    folder: Path,
    names: Sequence[str] = ("west",),
    **tables: Any,
) -> Site:
    """Gateways in front of `brokers`."""
    folder.mkdir(exist_ok=True)
    gateways = tuple(gateway(folder, brokers, name, **tables) for name in names)
    for each in gateways:
        stack.callback(each.stop)
        stack.callback(each.begin_stop)
        each.launch()
    for each in gateways:
        each.wait_until(each.is_ready)
    return Site(brokers, gateways)


class Crowd:
    """The clients of one test, of one library and version of MQTT; a context manager.

    All that it publishes has a level of its own, `run`, behind the cell, so that several crowds
    can be at the same brokers.
    """

    def __init__(self, library_name: str, level: int, login: Login) -> None:
        self.run = "r" + os.urandom(4).hex()
        self.level = level
        self.keeps_qos = True
        """Else all that is seen counts as QoS 0: there are brokers that change it."""
        self._library = library(library_name)
        self._login = login
        self._clients: list[Client] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(Client.close, self._clients))

    def topic(self, cell: str, rest: str = "t") -> str:
        return f"{cell}/{self.run}/{rest}"

    def client(
        self,
        port: int,
        name: str = "",
        *,
        clean: bool = True,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
        kind: type[Client] | None = None,
    ) -> Client:
        """One that has yet to connect."""
        if not clean and self.level == 5:
            properties = Properties(session_expiry_interval=300)
        options = Options(
            port=port,
            level=self.level,
            client_id=self.run + (name or os.urandom(5).hex()),
            clean=clean,
            username=self._login.username,
            password=self._login.password,
            will=will,
            properties=properties,
            patience_s=ARRIVE_S,
        )
        client = (kind or self._library)(options)
        self._clients.append(client)
        return client

    def connected(self, port: int, name: str = "", **settings: Any) -> Client:
        client = self.client(port, name, **settings)
        answer = client.connect()
        assert answer.code == 0, (answer, client.lost)
        return client

    def teller(self, port: int) -> Teller:
        """A client that hears how each of its messages is answered."""
        client = self.connected(port, kind=Teller)
        assert isinstance(client, Teller)
        return client

    def subscriber(self, port: int, *filters: str, qos: int = 2, **settings: Any) -> Client:
        client = self.connected(port, **settings)
        assert client.subscribe([Subscription(each, qos) for each in filters]) is not None
        return client

    # ---- what was seen -------------------------------------------------------------------

    def seen(self, client: Client) -> Counter[Key]:
        """Without what other crowds and ActiveMQ, of who subscribes to what, have published."""
        return Counter(
            (each.topic, each.payload.decode(), each.qos if self.keeps_qos else 0)
            for each in self.received(client)
        )

    def received(self, client: Client) -> list[Message]:
        return [
            each
            for each in list(client.received)
            if f"/{self.run}/" in each.topic and not each.topic.startswith("ActiveMQ/")
        ]

    def until(self, client: Client, wanted: Iterable[Key]) -> Counter[Key]:
        """All that it has seen when all of `wanted` has come."""
        wanted = set(wanted)
        deadline = time.monotonic() + ARRIVE_S
        while missing := wanted - self.seen(client).keys():
            count = len(client.received)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or client.lost is not None:
                some = sorted(missing)[:8]
                raise AssertionError(f"{len(missing)} missing, like {some}; {client.lost}")
            client.wait_messages(count + 1, min(left_s, 1.0))
        return self.seen(client)


class Teller(PahoClient):
    """paho, with the reason codes of its PUBACKs and PUBRECs."""

    def code_of(self, topic: str, payload: bytes, qos: int) -> int:
        return self.code_for(self.say(topic, payload, qos))

    def say(self, topic: str, payload: bytes, qos: int) -> int:
        """Publish, and do not wait; under which number it is asked for."""
        return int(self._paho.publish(topic, payload, qos).mid)

    def code_for(self, mid: int, limit_s: float | None = None) -> int:
        codes = self._await_acknowledgment(mid, limit_s)
        assert codes is not None, f"message {mid}: no answer; {self.lost}"
        return codes[0]

    def has_answer(self, mid: int) -> bool:
        return mid in self._acknowledged


def matching(filters: Iterable[str], sent: Iterable[Key], qos: int = 2) -> Counter[Key]:
    """Of what was `sent` what comes to a subscriber: once, at the lower QoS; paho's matching."""
    filters = list(filters)
    return Counter(
        (topic, payload, min(each, qos))
        for topic, payload, each in sent
        if any(topic_matches_sub(one, topic) for one in filters)
    )


def until_away(node: NodeProcess, *names: str) -> None:
    """Until exactly those of the node's brokers are away."""
    wait_for(
        lambda: {each["name"] for each in node.status()["brokers"] if each["away"]} == set(names),
        20,
        f"{node.id} to find {names or 'nobody'} away",
    )
