"""`confirm = "fabric"`: a publisher is told when the others have its message.

a ── b        real brokers; the line between is frozen
"""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.mqtt.packets import PubAck, Publish, PubRec
from support.fabrics import FabricClient, NodeFabric

PAIR = [("a", "b")]
CONFIRM = {"confirm": "fabric", "confirm_s": 2.0, "confirm_topics": {"local/": "local"}}


def answered(publisher: FabricClient, topic: str, payload: bytes, qos: int) -> PubAck | PubRec:
    publisher.raw.send(Publish(topic, payload, qos, packet_id=7))
    answer = publisher.raw.receive()
    assert isinstance(answer, PubAck | PubRec), answer
    return answer


@pytest.mark.parametrize("qos", [1, 2])
def test_what_nobody_confirms_in_time_is_refused(tmp_path: Path, qos: int) -> None:
    with (
        NodeFabric(tmp_path, PAIR, state=True, link={"qos": 2}, cooperation=CONFIRM) as fabric,
        fabric.client("a") as publisher,
        fabric.client("b") as subscriber,
    ):
        subscriber.subscribe("#")
        fabric.settle()
        publisher.publish("t", b"first", qos)
        assert subscriber.next().payload == b"first"
        tap = fabric.taps["a", "b"]
        tap.freeze()
        try:
            assert answered(publisher, "local/t", b"local", 1).reason_code < 0x80
            assert answered(publisher, "t", b"late", qos).reason_code == 0x80
        finally:
            tap.thaw()
        fabric.until_linked(*PAIR, status="active")
        publisher.publish("t", b"again", qos)
        got = [message.payload for message in subscriber.until(b"again")]
        assert got == [b"local", b"late"], "what was refused may come all the same"
        assert "isthmus_not_confirmed_total 1.0" in fabric["a"].get("/metrics")


def test_a_client_of_3_1_1_is_disconnected(tmp_path: Path) -> None:
    with (
        NodeFabric(tmp_path, PAIR, state=True, cooperation=CONFIRM) as fabric,
        fabric.client("a", level=4) as publisher,
        fabric.client("b") as subscriber,
    ):
        subscriber.subscribe("#")
        fabric.settle()
        tap = fabric.taps["a", "b"]
        tap.freeze()
        try:
            publisher.raw.send(Publish("t", b"late", 1, packet_id=7))
            assert publisher.raw.receive() is None
        finally:
            tap.thaw()
        assert "cause=not-confirmed" in fabric["a"].log()
        assert subscriber.next().payload == b"late"
