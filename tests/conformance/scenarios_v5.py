"""What MQTT 5 adds, seen through a client library.

Source: MQTT 5, the sections named at each scenario.
"""

from __future__ import annotations

import time

from conformance.catalog import scenario
from conformance.observation import Message, Observation, Seen
from conformance.scenarios import BOTH, QUIET_S
from conformance.stage import Stage
from isthmus.mqtt.packets import Will
from isthmus.mqtt.properties import Properties

__all__: list[str] = []

MESSAGE = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/here",
    correlation_data=b"\x00\x01\xff",
    user_properties=(("k", "first"), ("other", "ö"), ("k", "second")),
)
MESSAGE_SEEN = (
    ("content_type", "text/plain"),
    ("correlation_data", "0001ff"),
    ("payload_format_indicator", 1),
    ("response_topic", "answers/here"),
    ("user_properties", (("k", "first"), ("other", "ö"), ("k", "second"))),
)


def _shown(topic: str, payload: bytes, qos: int) -> str:
    return str(Message(topic, payload, qos, False, MESSAGE_SEEN))


@scenario("MQTT 5", levels=(5,), quick=BOTH)
def message_properties(stage: Stage) -> Observation:
    """§3.3.2.3: passed on unaltered, user properties in their order."""
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    stage.subscribe(subscriber, stage.topic("t"), 1)
    publisher.publish(stage.topic("t"), b"m", qos=1, properties=MESSAGE)
    messages = stage.collect(subscriber, 1)
    return Observation({"messages": messages}, ({"messages": (_shown("t", b"m", 1),)},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def will_properties(stage: Stage) -> Observation:
    """§3.1.3.2."""
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), 1)
    will = Will(stage.topic("t"), b"gone", 1, properties=MESSAGE)
    stage.connected("c", will=will).drop()
    messages = stage.collect(watcher, 1)
    return Observation({"messages": messages}, ({"messages": (_shown("t", b"gone", 1),)},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def subscription_identifiers(stage: Stage) -> Observation:
    """§3.3.4: one copy with all identifiers, or one copy for each."""
    client = stage.connected("c")
    stage.subscribe(client, stage.topic("+"), 1, identifier=7)
    stage.subscribe(client, stage.topic("#"), 1, identifier=300)
    client.publish(stage.topic("t"), b"m", qos=1)
    client.wait_messages(1)
    messages = tuple(sorted(stage.settle(client, client)))
    copies = ["t 'm' qos1 subscription_identifiers=" + ids for ids in ("(300,)", "(7,)")]
    both = ["t 'm' qos1 subscription_identifiers=" + ids for ids in ("(7, 300)", "(300, 7)")]
    allowed: tuple[Seen, ...] = ({"messages": tuple(copies)},)
    allowed += tuple({"messages": (one,)} for one in both)
    return Observation({"messages": messages}, allowed)


@scenario("MQTT 5", levels=(5,), quick=BOTH)
def no_local(stage: Stage) -> Observation:
    """[MQTT-3.8.3-3]."""
    client, other = stage.connected("c"), stage.connected("o")
    stage.subscribe(client, stage.topic("t"), 1, no_local=True)
    client.publish(stage.topic("t"), b"own", qos=1)
    other.publish(stage.topic("t"), b"other's", qos=1)
    client.wait_messages(1)
    messages = stage.settle(client, other)
    return Observation({"messages": messages}, ({"messages": ('t "other\'s" qos1',)},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def retain_handling(stage: Stage) -> Observation:
    """§3.8.3.1: 0 always, 1 only for a new subscription, 2 never."""
    publisher = stage.connected("p")
    publisher.publish(stage.topic("t"), b"kept", qos=1, retain=True)
    seen: dict[str, tuple[str, ...]] = {}
    for option, count in ((0, 2), (1, 1), (2, 0)):
        client = stage.connected(f"c{option}")
        for _ in range(2):
            stage.subscribe(client, stage.topic("t"), 1, retain_handling=option)
        client.wait_messages(count)
        seen[f"option {option}"] = stage.settle(client, publisher)
    publisher.publish(stage.topic("t"), b"", qos=1, retain=True)
    kept = "t 'kept' qos1 retained"
    return Observation(seen, ({"option 0": (kept, kept), "option 1": (kept,), "option 2": ()},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def retain_as_published(stage: Stage) -> Observation:
    """[MQTT-3.3.1-12, MQTT-3.3.1-13]."""
    publisher = stage.connected("p")
    seen: dict[str, tuple[str, ...]] = {}
    clients = {name: stage.connected(name) for name in ("as-published", "otherwise")}
    for name, client in clients.items():
        stage.subscribe(client, stage.topic("t"), 1, retain_as_published=name == "as-published")
    publisher.publish(stage.topic("t"), b"kept", qos=1, retain=True)
    publisher.publish(stage.topic("t"), b"not kept", qos=1)
    for name, client in clients.items():
        client.wait_messages(2)
        seen[name] = stage.settle(client, publisher)
    publisher.publish(stage.topic("t"), b"", qos=1, retain=True)
    kept, other = "t 'kept' qos1", "t 'not kept' qos1"
    allowed = {"as-published": (f"{kept} retained", other), "otherwise": (kept, other)}
    return Observation(seen, (allowed,))


@scenario("MQTT 5", levels=(5,), quick=BOTH)
def shared_subscription(stage: Stage) -> Observation:
    """§4.8.2: every message to one of the members; which one is the broker's choice."""
    members = [stage.connected(f"m{number}") for number in range(2)]
    for member in members:
        stage.subscribe(member, f"$share/g/{stage.topic('t')}", 1)
    publisher = stage.connected("p")
    publisher.publish(stage.topic("t"), *(b"%d" % number for number in range(20)), qos=1)
    deadline = time.monotonic() + stage.patience_s
    while sum(len(member.received) for member in members) < 20 and time.monotonic() < deadline:
        members[0].wait_messages(len(members[0].received) + 1, 0.02)
    messages = [each for member in members for each in stage.settle(member, publisher)]
    expected = tuple(sorted(f"t '{number}' qos1" for number in range(20)))
    return Observation({"messages": tuple(sorted(messages))}, ({"messages": expected},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def message_expiry(stage: Stage) -> Observation:
    """§3.3.2.3.3: one that expired while the client was away is not delivered; the rest of the
    interval goes along with one that did not."""
    publisher = stage.connected("p")
    client = stage.connected("c", clean=False)
    stage.subscribe(client, stage.topic("t"), 1)
    client.disconnect()
    for payload, interval in ((b"short", 1), (b"long", 1000)):
        expiring = Properties(message_expiry_interval=interval)
        publisher.publish(stage.topic("t"), payload, qos=1, properties=expiring)
    time.sleep(2.5)  # the interval is the broker's to measure: nothing to wait for
    client = stage.connected("c", clean=False)
    client.wait_messages(1)
    stage.settle(client, publisher)
    seen: list[str] = []
    for message in client.received:
        left = dict(message.properties).get("message_expiry_interval")
        counted = isinstance(left, int) and 900 < left < 1000
        seen.append(f"{message.payload.decode()}: {'counted down' if counted else left}")
    return Observation({"messages": tuple(seen)}, ({"messages": ("long: counted down",)},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def session_expiry(stage: Stage) -> Observation:
    """§3.1.2.11.2."""
    seen: dict[str, bool] = {}
    for name, interval in (("short", 1), ("long", 1000)):
        properties = Properties(session_expiry_interval=interval)
        client = stage.connected(name, clean=False, properties=properties)
        stage.subscribe(client, stage.topic("t"), 1)
        client.disconnect()
    time.sleep(3.5)  # as above; some brokers look only every other second
    for name in ("short", "long"):
        _, seen[name] = stage.present(name, clean=False)
    return Observation(seen, ({"short": False, "long": True},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def will_delay(stage: Stage) -> Observation:
    """§3.1.3.2.2."""
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), 1)
    will = Will(stage.topic("t"), b"gone", 1, properties=Properties(will_delay_interval=2))
    properties = Properties(session_expiry_interval=60)
    stage.connected("c", will=will, properties=properties).drop()
    early = watcher.wait_messages(1, 1.0)
    messages = stage.collect(watcher, 1, stage.patience_s + 2)
    return Observation(
        {"at once": bool(early), "messages": messages},
        ({"at once": False, "messages": ("t 'gone' qos1",)},),
    )


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def no_will_when_back_within_its_delay(stage: Stage) -> Observation:
    """[MQTT-3.1.3-9]."""
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), 1)
    will = Will(stage.topic("t"), b"gone", 1, properties=Properties(will_delay_interval=2))
    stage.connected("c", clean=False, will=will).drop()
    _, present = stage.present("c", clean=False)
    watcher.wait_messages(1, 3.0)
    return Observation(
        {"session present": present, "messages": stage.settle(watcher, watcher)},
        ({"session present": True, "messages": ()},),
    )


@scenario("MQTT 5", levels=(5,), quick=BOTH)
def disconnect_with_will(stage: Stage) -> Observation:
    """§3.14.2.1: reason code 0x04 asks for the will."""
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), 1)
    client = stage.connected("c", will=Will(stage.topic("t"), b"asked for", 1))
    client.disconnect(0x04)
    messages = stage.collect(watcher, 1)
    return Observation({"messages": messages}, ({"messages": ("t 'asked for' qos1",)},))


@scenario("MQTT 5", levels=(5,), quick=("paho",))
def session_ends_with_the_connection_by_default(stage: Stage) -> Observation:
    """§3.1.2.11.2: without an interval nothing is kept, though clean start is 0."""
    none = Properties(session_expiry_interval=0)
    client = stage.connected("c", clean=False, properties=none)
    stage.subscribe(client, stage.topic("t"), 1)
    client.disconnect()
    client, present = stage.present("c", clean=False, properties=none)
    client.wait_messages(1, QUIET_S)
    return Observation({"session present": present}, ({"session present": False},))
