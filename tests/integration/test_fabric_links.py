"""Who may be a neighbor, and what a neighbor may say.

Two real nodes, or a real one and a neighbor made by hand.  Whatever is wrong ends that connection
alone: with an answer that says why, a count in the status and a line in the log.
"""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from isthmus.exchange.link.hello import WIRE_VERSION, Hello
from isthmus.exchange.traffic.message import Message, to_link
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import (
    Connect,
    Packet,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode
from support.certificates import Authority
from support.fabrics import NodeFabric
from support.raw import RawClient
from support.raw_neighbors import RawNeighbor
from support.waiting import wait_for

SECRET = "a secret of the fabric"


def dials(fabric: NodeFabric, here: str, there: str) -> None:
    """Node `here` will dial `there` when it starts, which may not lead to a link."""
    fabric[here].peers.append({"address": fabric.address(here, there)})


def refusals(fabric: NodeFabric, name: str) -> dict[str, int]:
    found: dict[str, int] = fabric[name].fabric()["refusals"]
    return found


def until_refused(fabric: NodeFabric, name: str, cause: str) -> None:
    fabric[name].wait_until(lambda: refusals(fabric, name).get(cause, 0) > 0)
    assert cause in fabric[name].log()


# ---- authentication ----------------------------------------------------------------------


def test_the_same_secret_joins(tmp_path: Path) -> None:
    file = tmp_path / "fabric.secret"
    file.write_text(SECRET + "\n")
    secrets: dict[str, Any] = {"a": {"secret": SECRET}, "b": {"secret_file": file}}
    with NodeFabric(tmp_path, [("a", "b")], links_of=secrets, link={"lanes": 2}) as fabric:
        assert fabric.link("b", "a")["status"] == "active"
        # Neither the secret nor anything made of it alone crosses the wire.
        assert fabric.taps["a", "b"].packets()["Auth"] == 4


@pytest.mark.parametrize(
    "secrets",
    [
        {"a": {"secret": SECRET}, "b": {"secret": "another secret of 24 ch."}},
        {"a": {"secret": SECRET}},
        {"b": {"secret": SECRET}},
    ],
    ids=["wrong", "only-the-dialing-node", "only-the-accepting-node"],
)
def test_another_secret_does_not(tmp_path: Path, secrets: dict[str, Any]) -> None:
    fabric = NodeFabric(tmp_path, names=["a", "b"], links_of=secrets)
    dials(fabric, "a", "b")
    with fabric:
        until_refused(fabric, "b", "authentication")
        until_refused(fabric, "a", "authentication")
        assert not fabric.link("a", "b")
        assert not fabric.link("b", "a")


def test_mutual_tls(tmp_path: Path) -> None:
    """a and b have certificates of the fabric's authority, c has one of a stranger's."""
    ours, strangers = Authority(tmp_path, "Fabric CA"), Authority(tmp_path, "Stranger CA")
    tls = {}
    for name, authority in (("a", ours), ("b", ours), ("c", strangers)):
        pair = authority.issue(name)
        tls[name] = {"tls": {"cert": pair.cert, "key": pair.key, "ca": authority.cert}}
    fabric = NodeFabric(tmp_path, [("a", "b")], names=["c", "plain"], links_of=tls, tapped=False)
    dials(fabric, "c", "b")
    dials(fabric, "plain", "b")
    with fabric:
        assert fabric.link("b", "a")["status"] == "active"
        with fabric.client("a") as publisher, fabric.client("b") as subscriber:
            subscriber.subscribe("tls")
            fabric.settle()
            publisher.publish("tls", b"sealed", qos=2)
            assert subscriber.next().payload == b"sealed"
        for name in ("c", "plain"):
            fabric[name].wait_until(
                lambda name=name: fabric[name].fabric()["peers"][0]["problem"] != ""  # type: ignore[misc]
            )
            assert "cannot link" in fabric[name].log()
        assert {link["neighbor"] for link in fabric["b"].fabric()["links"]} == {"a"}


# ---- the greeting, by hand ---------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFabric]:
    """a ── b, to which the neighbors made by hand come."""
    with NodeFabric(tmp_path_factory.mktemp("links"), [("a", "b")]) as fabric:
        yield fabric


@pytest.fixture(autouse=True)
def link_unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever was said to b, its link to a has not been touched and still carries messages."""
    yield
    if "pair" not in request.fixturenames:
        return
    pair: NodeFabric = request.getfixturevalue("pair")
    with pair.client("a") as publisher, pair.client("b") as subscriber:
        subscriber.subscribe("unharmed")
        pair.settle()
        publisher.publish("unharmed", b"x", qos=1)
        assert subscriber.next().payload == b"x"
    assert "link down neighbor=a" not in pair["b"].log()


def connect_with(**changes: str) -> Connect:
    """A hello of a node `x`, with some user properties changed; an empty one is left out."""
    given = {"isthmus": WIRE_VERSION, "node": "x", "incarnation": "1", "algorithm": "sf"}
    given |= {"lane": "0/1", "topology": "tree", "labels": "0", "retained": "everywhere"}
    client_id = changes.pop("client_id", "$isthmus/x")
    said = tuple((name, value) for name, value in (given | changes).items() if value)
    return Connect(client_id, keep_alive=3, properties=Properties(user_properties=said))


@pytest.mark.parametrize(
    ("connect", "cause", "code"),
    [
        (connect_with(isthmus="2"), "version", ReasonCode.UNSUPPORTED_PROTOCOL_VERSION),
        (connect_with(isthmus=""), "not-a-node", ReasonCode.NOT_AUTHORIZED),
        (connect_with(client_id="sensor-7"), "not-a-node", ReasonCode.NOT_AUTHORIZED),
        (connect_with(client_id="$isthmus/y"), "bad-hello", ReasonCode.NOT_AUTHORIZED),
        (connect_with(lane="1/1"), "bad-hello", ReasonCode.PROTOCOL_ERROR),
        (connect_with(lane="0/65"), "bad-hello", ReasonCode.PROTOCOL_ERROR),
        (connect_with(incarnation="not hex"), "bad-hello", ReasonCode.PROTOCOL_ERROR),
        (connect_with(node="b", client_id="$isthmus/b"), "same-id", ReasonCode.NOT_AUTHORIZED),
        (connect_with(algorithm="pf"), "algorithm", ReasonCode.NOT_AUTHORIZED),
        (connect_with(topology="any"), "topology", ReasonCode.NOT_AUTHORIZED),
        (connect_with(topology=""), "topology", ReasonCode.NOT_AUTHORIZED),
        (connect_with(labels="64"), "labels", ReasonCode.NOT_AUTHORIZED),
        (connect_with(labels=""), "bad-hello", ReasonCode.PROTOCOL_ERROR),
        (connect_with(labels="-1"), "bad-hello", ReasonCode.PROTOCOL_ERROR),
        (connect_with(address="no port"), "bad-hello", ReasonCode.PROTOCOL_ERROR),
        (connect_with(lane="1/2"), "bad-lane", ReasonCode.NOT_AUTHORIZED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hello_that_is_refused(
    pair: NodeFabric, connect: Connect, cause: str, code: ReasonCode
) -> None:
    before = refusals(pair, "b").get(cause, 0)
    with RawClient(pair.link_ports["b"]) as peer:
        peer.send(connect)
        answer = peer.receive()
        assert getattr(answer, "reason_code", None) == code, answer
        assert dict(answer.properties.user_properties)["cause"] == cause  # type: ignore[union-attr]
        while peer.receive_frame():
            pass
    assert refusals(pair, "b")[cause] == before + 1
    assert "link refused" in pair["b"].log()
    assert {link["neighbor"] for link in pair["b"].fabric()["links"]} <= {"a", "x"}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x10\xff\xff\xff\x7f",
        b"\xc0\x00",
        encode(Publish("t", b"x"), 5),
        b"\x00" * 64,
        b"\x10\x05\x00\x04MQT",
    ],
    ids=["http", "huge", "pingreq-first", "publish-first", "zeros", "cut-short"],
)
def test_bytes_that_are_no_greeting(pair: NodeFabric, data: bytes) -> None:
    with RawClient(pair.link_ports["b"], timeout_s=15) as peer:
        peer.send(data)
        while peer.receive_frame():
            pass  # closed at once, or, if more could follow, when the greeting takes too long
    causes = refusals(pair, "b")
    assert causes.get("protocol-error", 0) + causes.get("greeting-timeout", 0) > 0


def test_nodes_with_one_name_or_two_algorithms_stay_apart(tmp_path: Path) -> None:
    fabric = NodeFabric(tmp_path, names=["a", "b", "c"])
    fabric["b"].tables["node"]["id"] = "a"
    fabric["c"].tables["cooperation"]["algorithm"] = "pf"
    dials(fabric, "c", "a")
    with fabric:
        fabric["b"].change("POST", "/api/peers", {"address": fabric.address("b", "a")})
        for name, cause in (("b", "same-id"), ("c", "algorithm")):
            until_refused(fabric, name, cause)
            until_refused(fabric, "a", cause)
        assert fabric["a"].fabric()["links"] == []
        for name in ("a", "b"):
            with pytest.raises(urllib.error.HTTPError) as answer:
                fabric[name].get("/readyz")
            assert answer.value.code == 503
            assert "both nodes are called 'a'" in answer.value.read().decode()
            assert fabric[name].log().count("another node has this node's id") == 1


def test_a_copy_of_a_nodes_file_on_other_ports_does_not_take_its_links_over(tmp_path: Path) -> None:
    """a ── b, and a copy of b that dials a as b does; all the while b gets every message."""
    fabric = NodeFabric(tmp_path, [("b", "a")], names=["copy"], link={"dead_after_s": 1.0})
    fabric["copy"].tables["node"]["id"] = "b"
    with fabric, fabric.client("a") as publisher, fabric.client("b") as subscriber:
        subscriber.subscribe("t")
        fabric.settle()
        fabric["copy"].change("POST", "/api/peers", {"address": fabric.address("copy", "a")})
        until_refused(fabric, "copy", "same-id")
        for number in range(300):
            publisher.publish("t", b"%d" % number, qos=1)
            time.sleep(0.01)  # a stream of messages that lasts longer than several attempts
        assert [subscriber.next().payload for _ in range(300)] == [b"%d" % i for i in range(300)]
        for name in ("b", "copy"):
            fabric[name].wait_until(lambda name=name: not fabric[name].is_ready())  # type: ignore[misc]
            assert fabric[name].log().count("another node has this node's id") == 1
        assert fabric["a"].is_ready()
        assert fabric["a"].log().count("cause=same-id") == 1
        assert "link down" not in fabric["a"].log()
        assert 1 <= refusals(fabric, "a")["same-id"] <= 10


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("said", [b"", b"\x10"], ids=["silent", "a-byte"])
def test_connections_that_say_nothing_keep_no_node_out(
    tmp_path: Path, tls: bool, said: bytes
) -> None:
    """400 of them at b's link port, for as long as b lets them stand; then a comes."""
    links_of: dict[str, Any] = {}
    if tls:
        authority = Authority(tmp_path, "Fabric CA")
        for name in ("a", "b"):
            own = authority.issue(name)
            links_of[name] = {"tls": {"cert": own.cert, "key": own.key, "ca": authority.cert}}
    fabric = NodeFabric(tmp_path, names=["a", "b"], links_of=links_of, tapped=False)
    with fabric, ExitStack() as strangers:
        began_s = time.monotonic()
        for _ in range(400):
            stranger = strangers.enter_context(RawClient(fabric.link_ports["b"]))
            if said:
                with suppress(OSError):  # it has made room already
                    stranger.send(said)
        fabric["a"].change("POST", "/api/peers", {"address": fabric.address("a", "b")})
        fabric["a"].wait_until(lambda: fabric.link("a", "b").get("status") == "active", 4)
        assert time.monotonic() - began_s < 5  # none of them has been timed out yet
        assert refusals(fabric, "b")["too-many-greetings"] >= 400 - 256
        assert len(list(Path(f"/proc/{fabric['b'].pid}/fd").iterdir())) < 256


def test_a_message_too_large_for_a_neighbor_is_not_sent_to_it(tmp_path: Path) -> None:
    """a takes 16 MiB, b 2,000 bytes; c is as large as a, and gets everything."""
    fabric = NodeFabric(tmp_path, [("a", "b"), ("a", "c")])
    fabric["b"].tables["limits"] = {"packet_bytes": 2_000}
    with fabric, ExitStack() as clients:
        publisher = clients.enter_context(fabric.client("a"))
        subscribers = {name: clients.enter_context(fabric.client(name)) for name in ("b", "c")}
        for subscriber in subscribers.values():
            subscriber.subscribe("t/#")
        fabric.settle()
        before = fabric.link("b", "a")["sent"]
        for qos in (0, 1, 2):
            for size in (100, 1_900, 2_000, 100_000):
                publisher.publish(f"t/{size}", bytes([qos]) * size, qos=qos)
        publisher.publish("t/retained", b"r" * 5_000, qos=1, retain=True)
        publisher.publish("t/end", b"end", qos=1)
        # Messages of several topics may overtake each other.
        got = sorted(len(subscribers["b"].next().payload) for _ in range(7))
        assert got == [3] + [100] * 3 + [1_900] * 3
        assert len([subscribers["c"].next() for _ in range(14)]) == 14
        assert fabric["a"].fabric()["counters"]["too_large"] == 7
        log = fabric["a"].log()
        assert log.count("message too large for a neighbor") == 1
        assert "topic=t/2000" in log
        assert "link down" not in log
        assert fabric.link("b", "a")["sent"] == before
        wait_for(lambda: fabric.link("a", "b")["unacknowledged"] == 0, 10, "acknowledgments")


# ---- what a neighbor may say ------------------------------------------------------------


def neighbor(pair: NodeFabric) -> RawNeighbor:
    return RawNeighbor(pair.link_ports["b"], Hello("x", "1f", "sf")).active()


def subscribe_to(*filters: str) -> Subscribe:
    return Subscribe(1, tuple(Subscription(each) for each in filters))


GOOD_MESSAGE = to_link(Message(b"t", b"x", origin="x"), 0, 0, 0.0)
MANY_PROPERTIES = Properties(user_properties=(("a", "b"),) * 100_000)
NO_SECTIONS = b"\0\1\0\0\1\0\0\0\0" * 100_000


@pytest.mark.parametrize(
    "said",
    [
        Publish("$isthmus/topology", b"{not json"),
        Publish("$isthmus/topology", json.dumps({"v": 2, "type": "hello"}).encode()),
        Publish("$isthmus/retained", b"\xff\xff\xff"),
        Publish("$isthmus/sf/sync", b"middle"),
        Publish("$isthmus/unknown", b""),
        subscribe_to("$SYS/#"),
        SubAck(7, (ReasonCode.SUCCESS,)),
        PubAck(9),
        Publish("t", b"without origin"),
        GOOD_MESSAGE.replace(b"$i", b"$j", 1),
        Connect("$isthmus/x"),
        b"\x82\x03\x00\x01\x00",
        b"\x30\xff\xff\xff\xff\xff",
        b"\x36\x05\x00\x01t\x00\x00",
        b"\x00\x00",
        Publish("$isthmus/sf/sync", b"begin", properties=MANY_PROPERTIES),
        to_link(Message(b"t", b"x", origin="x", properties=b"\x26\0\1a\0\1b" * 100_000), 0, 0, 0.0),
        SubAck(1, (ReasonCode.SUCCESS,) * 200_000),
        Publish("$isthmus/retained", b"\2\5\0\0\0\1" + NO_SECTIONS),
        Publish("$isthmus/retained", b"\2\2\0\0\0\1" + bytes(range(256)) * 4_000),
    ],
    ids=[
        "topology-not-json",
        "topology-version",
        "retained-garbage",
        "sync-garbage",
        "unknown-control",
        "subscribe-dollar",
        "suback-unasked",
        "puback-unasked",
        "message-without-origin",
        "message-other-property",
        "second-connect",
        "empty-subscribe",
        "length-of-five-bytes",
        "qos-3",
        "packet-type-0",
        "control-properties",
        "message-properties",
        "long-suback",
        "versions-of-nothing",
        "long-ask",
    ],
)
def test_a_malformed_control_message_ends_that_link_alone(
    pair: NodeFabric, said: Packet | bytes, request: pytest.FixtureRequest
) -> None:
    before = refusals(pair, "b").get("protocol-error", 0)
    name = request.node.callspec.id
    with neighbor(pair) as peer:
        peer.raw.send(said)
        if name == "puback-unasked":
            # An acknowledgment can come twice after a reconnect; it means nothing.
            peer.raw.send(subscribe_to("still/here"))
            while not isinstance(peer.receive(), SubAck):
                pass
            return
        reason = peer.closed_with()
    assert reason is not None
    assert reason >= 0x80
    assert refusals(pair, "b")["protocol-error"] == before + 1
    assert "bad bytes on a link" in pair["b"].log()


def test_a_neighbor_made_by_hand_is_served(pair: NodeFabric) -> None:
    """The counterpart of the test above: what is well-formed does work."""
    with neighbor(pair) as peer, pair.client("b") as subscriber, pair.client("b") as publisher:
        subscriber.subscribe("hand/#")
        peer.raw.send(subscribe_to("to/hand"))
        while not isinstance(peer.receive(), SubAck):
            pass
        publisher.publish("to/hand", b"out", qos=1)
        while not (isinstance(packet := peer.receive(), Publish) and packet.topic == "to/hand"):
            assert packet is not None
        assert (packet.payload, packet.qos) == (b"out", 1)
        ((name, value),) = packet.properties.user_properties
        assert (name, value[:4]) == ("$i", "11:b")  # QoS 1, one link crossed, entered at b
        peer.raw.send(to_link(Message(b"hand/1", b"in", origin="x"), 0, 0, 0.0))
        assert subscriber.next().payload == b"in"
