"""A neighbor that acknowledges nothing holds publishers, and does not cost them their connection.

publisher ── a ── b ── broker that hangs (SIGSTOP)
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from conftest import BrokerFactory
from isthmus.mqtt.packets import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
)
from support.nodes import NodeProcess, free_port
from support.raw import RawClient
from support.waiting import wait_for

KEEP_ALIVE_S = 2


def test_pings_pass_while_held_and_everything_arrives_afterwards(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    hanging, healthy = broker_factory("mosquitto"), broker_factory("mosquitto")
    link = f"127.0.0.1:{free_port()}"
    b = NodeProcess(tmp_path, f"mqtt://127.0.0.1:{hanging.port}", id="b", listen={"link": link})
    a = NodeProcess(
        tmp_path,
        f"mqtt://127.0.0.1:{healthy.port}",
        id="a",
        peers=[{"address": link}],
        link={"queue_bytes": 65_536},
    )
    with b, a, RawClient(b.port) as subscriber, RawClient(a.port) as publisher:
        subscriber.connect("subscriber")
        subscriber.send(Subscribe(1, (Subscription("t", 1),)))
        subscriber.receive()
        wait_for(
            lambda: a.status()["fabric"]["algorithm"]["neighbors"]["b"]["received_filters"] == 1,
            10,
            "the inter-subscription",
        )
        publisher.connect("publisher", keep_alive=KEEP_ALIVE_S)
        os.kill(hanging.pid, signal.SIGSTOP)
        try:
            for number in range(100):
                payload = b"%3d" % number + bytes(1_000)
                publisher.send(Publish("t", payload, 1, packet_id=number + 1))
            wait_for(lambda: "publishers held" in a.log(), 10, "the publisher to be held")
            # Longer than Mosquitto waits for a client with this keep-alive.
            acknowledged = 0
            ends = time.monotonic() + 3 * KEEP_ALIVE_S
            while time.monotonic() < ends:
                publisher.send(PingReq())
                while not isinstance(packet := publisher.receive(), PingResp):
                    assert isinstance(packet, PubAck), packet
                    acknowledged += 1
                time.sleep(KEEP_ALIVE_S / 4)
            assert 0 < acknowledged < 100, "some were read before the queue was full, not all"
        finally:
            os.kill(hanging.pid, signal.SIGCONT)
        while acknowledged < 100:
            assert isinstance(publisher.receive(), PubAck)
            acknowledged += 1
        publisher.send(Disconnect())
        for number in range(100):
            packet = subscriber.receive()
            assert isinstance(packet, Publish)
            assert packet.payload.startswith(b"%3d" % number)
            subscriber.send(PubAck(packet.packet_id))
