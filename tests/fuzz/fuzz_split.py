"""Hostile clients and brokers at a node before two brokers, without sockets.

    python -m fuzz.fuzz_split --seeds 1000          (in tests/)

A seed gives a run: clients that connect, say this and that, some of it bytes at random, and hang
up; brokers that accept, refuse, answer what was not asked, send bytes at random, go and come back.
What must hold: nothing is raised, and when all have left nothing of them is held.
"""

from __future__ import annotations

import argparse
import random
import sys

from isthmus.errors import ProtocolError
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.split_rig import RigBroker, RigClient, SplitRig

__all__ = ["run"]

STEPS = 120
TOPICS = ("x", "two/x", "two/both", "a/both", "$SYS/x", "two")
FILTERS = (*TOPICS, "#", "+/both", "two/+", "$share/g/#", "+/+/#")
OF_CLIENTS = (Subscribe, Unsubscribe, PingReq, Disconnect)
OF_BROKERS = (SubAck, UnsubAck)
CODES = (ReasonCode.SUCCESS, ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED)


class Run:
    """One seed's."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = SplitRig()
        self.clients: list[RigClient] = []
        self.brokers: list[RigBroker] = []

    def run(self) -> None:
        steps = {
            self._come: 1,
            self._client_says: 3,
            self._leave: 1,
            self._connect_one: 3,
            self._broker_says: 3,
            self._broker_closes: 1,
            self._wait: 1,
        }
        for step in self.rng.choices(list(steps), list(steps.values()), k=STEPS):
            step()
        self._end()

    # ---- clients -------------------------------------------------------------------------

    def _come(self) -> None:
        rng, level = self.rng, self.rng.choice((4, 5))
        properties = Properties()
        if level == 5 and rng.random() < 0.5:
            properties = Properties(
                session_expiry_interval=rng.choice((0, 5, 0xFFFF_FFFF)),
                receive_maximum=rng.choice((1, 2, 100)),
            )
        will = Will(rng.choice(TOPICS), b"w", 1) if rng.random() < 0.3 else None
        self.clients.append(
            self.rig.client(
                rng.choice("abc"),
                level,
                clean_start=rng.random() < 0.5,
                keep_alive=rng.choice((0, 2, 60)),
                properties=properties,
                will=will,
            )
        )

    def _packet(self) -> Packet:
        rng = self.rng
        packet_id = rng.randint(1, 6)
        qos = rng.randrange(3)
        topic, payload = rng.choice(TOPICS), rng.randbytes(rng.choice((0, 5, 900)))
        filters = rng.sample(FILTERS, rng.randint(1, 4))
        code = rng.choice(CODES)
        return rng.choice(
            (
                Publish(topic, payload, qos, packet_id=packet_id if qos else 0),
                Publish(topic, b"", qos, retain=True, packet_id=packet_id if qos else 0),
                Subscribe(packet_id, tuple(Subscription(each, qos) for each in filters)),
                Unsubscribe(packet_id, tuple(filters)),
                PubAck(packet_id),
                PubRec(packet_id),
                PubRel(packet_id),
                PubComp(packet_id),
                PingReq(),
                SubAck(packet_id, tuple(code for _ in filters)),
                UnsubAck(packet_id, (ReasonCode.SUCCESS,)),
                Disconnect() if rng.random() < 0.2 else PingReq(),
            )
        )  # fmt: skip

    def _bytes(self, level: int, *, of_broker: bool = False) -> bytes:
        rng = self.rng
        data = b""
        for _ in range(rng.randint(1, 4)):
            packet = self._packet()
            others = OF_CLIENTS if of_broker else OF_BROKERS
            if isinstance(packet, others) and rng.random() < 0.98:
                continue
            try:
                data += encode(packet, level)
            except ProtocolError:
                pass  # what that level has not
        if data and rng.random() < 0.03:
            data = bytearray(data)  # type: ignore[assignment]
            data[rng.randrange(len(data))] = rng.randrange(256)  # type: ignore[index]
        return bytes(data) if rng.random() < 0.99 else rng.randbytes(20)

    def _client_says(self) -> None:
        if self.clients:
            client = self.rng.choice(self.clients)
            data = self._bytes(client.level)
            if not data:
                return
            cut = self.rng.randrange(len(data) + 1)
            for part in (data[:cut], data[cut:]):
                if part:
                    client.wire.feed(part)
            self.rig.host.run()

    def _leave(self) -> None:
        if self.clients:
            self.clients.pop(self.rng.randrange(len(self.clients))).hangs_up()

    # ---- brokers -------------------------------------------------------------------------

    def _connect_one(self) -> None:
        name = self.rng.choice(("one", "two"))
        if not self.rig.dialed[name]:
            return
        if self.rng.random() < 0.15:
            self.rig.refuses(name)
            return
        broker = self.rig.connects(name)
        self.brokers.append(broker)
        self._answer_connect(broker)

    def _answer_connect(self, broker: RigBroker) -> None:
        data = broker.wire.taken()
        if not data:
            return
        broker.level = 5 if data[:9].endswith(b"\x05") else 4
        if self.rng.random() < 0.85:
            broker.say(ConnAck(session_present=self.rng.random() < 0.4))
        elif self.rng.random() < 0.5:
            broker.wire.feed(b"\x20\x02\x00\x05" if broker.level == 4 else b"\x20\x03\x00\x87\x00")
            self.rig.host.run()

    def _broker_says(self) -> None:
        if self.brokers:
            broker = self.rng.choice(self.brokers)
            broker.wire.taken()
            if data := self._bytes(broker.level, of_broker=True):
                broker.wire.feed(data)
            self.rig.host.run()

    def _broker_closes(self) -> None:
        if self.brokers:
            self.brokers.pop(self.rng.randrange(len(self.brokers))).closes()

    def _wait(self) -> None:
        self.rig.host.run(self.rng.choice((0.1, 0.3, 1.0, 6.0)))

    # ---- the end -------------------------------------------------------------------------

    def _end(self) -> None:
        rig = self.rig
        for client in self.clients:
            client.hangs_up()
        for _ in range(12):
            for name in ("one", "two"):
                while rig.dialed[name]:
                    broker = rig.connects(name)
                    broker.wire.feed(b"\x20\x02\x00\x00")
                    rig.host.run()
            rig.host.run(3.0)
        assert not rig.relay.clients, f"{len(rig.relay.clients)} clients are held"
        assert rig.relay.pending.total == 0
        kept = rig.exchange.kept_sessions
        assert kept is not None
        assert kept.connected == 0, f"{kept.connected} are thought to be connected"
        for name, each in rig.brokers._brokers.items():
            assert not each.waiting, f"{len(each.waiting)} wait for {name}"
            assert not each.asking


def run(seed: int) -> None:
    """Raises what the node raised, or `AssertionError` if something is held."""
    Run(seed).run()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args(arguments)
    failed = 0
    for seed in range(given.first, given.first + given.seeds):
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001 - whatever a node raises is a finding
            failed += 1
            print(f"seed {seed}: {error!r}", flush=True)
    print(f"{given.seeds} runs, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
