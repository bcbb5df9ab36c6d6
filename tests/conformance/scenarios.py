"""What both versions of MQTT promise, seen through a client library.

Sources: MQTT 3.1.1 and 5, §4.3 (QoS), §3.3.1.3 (retain), §3.1.2.5 (will), §4.1 (sessions),
§3.8 to §3.11 (subscriptions), §4.7 (topic filters), §3.1.4 (client identifiers in use).
"""

from __future__ import annotations

from conformance.catalog import scenario
from conformance.observation import Message, Observation, Seen, Stopped
from conformance.stage import Stage
from isthmus.mqtt.packets import Subscription, Will

__all__: list[str] = []

BOTH = ("paho", "gmqtt")
QOS = {str(qos): {"qos": qos} for qos in (0, 1, 2)}
ACKNOWLEDGED = {key: QOS[key] for key in ("1", "2")}
BURST = 100
QUIET_S = 0.5
"""How long an absence is watched, on both sides alike, beyond what a marker proves."""


@scenario(
    "QoS",
    cases={
        f"{published}-to-{subscribed}": {"published": published, "subscribed": subscribed}
        for published in (0, 1, 2)
        for subscribed in (0, 1, 2)
    },
    quick_cases={f"{qos}-to-{qos}": BOTH for qos in (0, 1, 2)},
)
def qos(stage: Stage, published: int, subscribed: int) -> Observation:
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    granted = stage.subscribe(subscriber, stage.topic("t"), subscribed)
    completed = publisher.publish(stage.topic("t"), b"m", qos=published)
    return Observation(
        {
            "granted": granted,
            "completed": completed,
            "messages": stage.collect(subscriber, 1),
        },
        (
            {
                "granted": (subscribed,),
                "completed": True,
                "messages": (f"t 'm' qos{min(published, subscribed)}",),
            },
        ),
    )


@scenario("QoS", cases=QOS, quick_cases={"1": BOTH})
def order_of_a_burst(stage: Stage, qos: int) -> Observation:
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    stage.subscribe(subscriber, stage.topic("t"), qos)
    payloads = [str(number).encode() for number in range(BURST)]
    completed = publisher.publish(stage.topic("t"), *payloads, qos=qos)
    subscriber.wait_messages(BURST)
    messages = stage.settle(subscriber, publisher)
    return Observation(
        {"completed": completed, "messages": messages},
        (
            {
                "completed": True,
                "messages": tuple(f"t '{number}' qos{qos}" for number in range(BURST)),
            },
        ),
    )


@scenario("QoS", quick=BOTH)
def large_payload(stage: Stage) -> Observation:
    """More than the node passes in one piece."""
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    stage.subscribe(subscriber, stage.topic("t"), 1)
    payload = bytes(range(256)) * 800
    completed = publisher.publish(stage.topic("t"), payload, qos=1)
    messages = stage.collect(subscriber, 1)
    arrived = str(Message("t", payload, 1, retain=False))
    allowed: Seen = {"completed": True, "messages": (arrived,), "lost": None}
    return Observation(
        {"completed": completed, "messages": messages, "lost": publisher.lost}, (allowed,)
    )


@scenario("topics", libraries=("paho",))
def names_in_many_scripts(stage: Stage) -> Observation:
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    name = "Ωκεανός/地峡/🛰 a b"
    stage.subscribe(subscriber, stage.topic("+/地峡/#"), 1)
    completed = publisher.publish(stage.topic(name), b"", "ü".encode(), qos=1)
    messages = stage.collect(subscriber, 2)
    allowed: Seen = {"completed": True, "messages": (f"{name} '' qos1", f"{name} 'ü' qos1")}
    return Observation({"completed": completed, "messages": messages}, (allowed,))


@scenario("topics", quick=BOTH)
def several_filters_at_once(stage: Stage) -> Observation:
    client = stage.connected("c")
    filters = (("a", 0), ("b/+/c", 1), ("d/#", 2))
    granted = client.subscribe([Subscription(stage.topic(name), qos) for name, qos in filters])
    for name in ("a", "b/x/c", "d", "d/y/z", "b/c", "a/b"):
        client.publish(stage.topic(name), b"m", qos=1)
    return Observation(
        {"granted": granted, "messages": tuple(sorted(stage.collect(client, 4)))},
        (
            {
                "granted": (0, 1, 2),
                "messages": ("a 'm' qos0", "b/x/c 'm' qos1", "d 'm' qos1", "d/y/z 'm' qos1"),
            },
        ),
    )


@scenario("topics", quick=("paho",))
def dollar_is_not_matched_by_a_wildcard(stage: Stage) -> Observation:
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    stage.subscribe(subscriber, f"+/{stage.prefix}", 0)
    # Of its own, because some brokers end a client that publishes there.
    stage.connected("d").publish(f"$own/{stage.prefix}", b"hidden")
    publisher.publish(f"own/{stage.prefix}", b"seen")
    subscriber.wait_messages(1)
    messages = tuple(sorted(stage.settle(subscriber, publisher)))
    return Observation({"messages": messages}, ({"messages": ("own/ 'seen' qos0",)},))


@scenario("topics", quick=BOTH)
def unsubscribe(stage: Stage) -> Observation:
    subscriber, publisher = stage.connected("s"), stage.connected("p")
    stage.subscribe(subscriber, stage.topic("t"), 1)
    publisher.publish(stage.topic("t"), b"before", qos=1)
    subscriber.wait_messages(1)
    acknowledged = subscriber.unsubscribe(stage.topic("t"))
    publisher.publish(stage.topic("t"), b"after", qos=1)
    messages = stage.settle(subscriber, publisher)
    return Observation(
        {"acknowledged": acknowledged, "messages": messages},
        ({"acknowledged": True, "messages": ("t 'before' qos1",)},),
    )


@scenario("topics", quick=("paho",))
def overlapping_subscriptions(stage: Stage) -> Observation:
    """Once at the highest QoS, or once for each subscription [MQTT-3.3.5-1]."""
    client = stage.connected("c")
    client.subscribe([Subscription(stage.topic("#"), 0), Subscription(stage.topic("+"), 1)])
    client.publish(stage.topic("t"), b"m", qos=1)
    messages = tuple(sorted(stage.collect(client, 1)))
    once: Seen = {"messages": ("t 'm' qos1",)}
    each: Seen = {"messages": ("t 'm' qos0", "t 'm' qos1")}
    return Observation({"messages": messages}, (once, each))


# ---- retained messages -------------------------------------------------------------------


@scenario("retain", cases=QOS, quick_cases={"1": BOTH})
def retained(stage: Stage, qos: int) -> Observation:
    """The last one, for those who come later; an empty one deletes it."""
    early, publisher = stage.connected("e"), stage.connected("p")
    topic = stage.topic("t")
    stage.subscribe(early, topic, qos)
    completed = publisher.publish(topic, b"old", b"new", qos=qos, retain=True)
    early.wait_messages(2)
    late = stage.connected("l")
    stage.subscribe(late, topic, qos)
    late_saw = stage.collect(late, 1)
    completed &= publisher.publish(topic, b"", qos=qos, retain=True)
    early.wait_messages(3)
    last = stage.connected("x")
    stage.subscribe(last, topic, qos)
    last_saw = stage.settle(last, publisher)
    return Observation(
        {
            "completed": completed,
            "early": stage.settle(early, publisher),
            "late": late_saw,
            "after deletion": last_saw,
        },
        (
            {
                "completed": True,
                "early": (f"t 'old' qos{qos}", f"t 'new' qos{qos}", f"t '' qos{qos}"),
                "late": (f"t 'new' qos{qos} retained",),
                "after deletion": (),
            },
        ),
    )


@scenario("retain", quick=("paho",))
def retained_found_by_wildcards(stage: Stage) -> Observation:
    publisher = stage.connected("p")
    for name in ("a", "b/c"):
        publisher.publish(stage.topic(name), b"kept", qos=1, retain=True)
    seen: dict[str, tuple[str, ...]] = {}
    for name, topic_filter, count in (("h", "#", 2), ("p", "+", 1), ("m", "+/c", 1)):
        client = stage.connected(f"w{name}")
        stage.subscribe(client, stage.topic(topic_filter), 1)
        seen[topic_filter] = tuple(sorted(stage.collect(client, count)))
    for name in ("a", "b/c"):
        publisher.publish(stage.topic(name), b"", qos=1, retain=True)
    a, c = "a 'kept' qos1 retained", "b/c 'kept' qos1 retained"
    return Observation(seen, ({"#": (a, c), "+": (a,), "+/c": (c,)},))


@scenario("retain", quick=("paho",))
def retained_again_after_subscribing_again(stage: Stage) -> Observation:
    """[MQTT-3.8.4-3]; the option that changes this in MQTT 5 is another scenario's."""
    client = stage.connected("c")
    client.publish(stage.topic("t"), b"kept", qos=1, retain=True)
    for count in (1, 2):
        stage.subscribe(client, stage.topic("t"), 1)
        client.wait_messages(count)
    messages = stage.settle(client, client)
    client.publish(stage.topic("t"), b"", qos=1, retain=True)
    return Observation({"messages": messages}, ({"messages": ("t 'kept' qos1 retained",) * 2},))


# ---- wills -------------------------------------------------------------------------------


@scenario("will", cases=QOS, quick_cases={"1": BOTH})
def will(stage: Stage, qos: int) -> Observation:
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), qos)
    client = stage.connected("c", will=Will(stage.topic("t"), b"gone", qos))
    client.drop()
    messages = stage.collect(watcher, 1)
    return Observation({"messages": messages}, ({"messages": (f"t 'gone' qos{qos}",)},))


@scenario("will", quick=("paho",))
def will_retained(stage: Stage) -> Observation:
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), 1)
    client = stage.connected("c", will=Will(stage.topic("t"), b"gone", 1, retain=True))
    client.drop()
    watching = stage.collect(watcher, 1)
    late = stage.connected("l")
    stage.subscribe(late, stage.topic("t"), 1)
    later = stage.collect(late, 1) if watching else stage.settle(late, late)
    watcher.publish(stage.topic("t"), b"", qos=1, retain=True)
    return Observation(
        {"watching": watching, "later": later},
        ({"watching": ("t 'gone' qos1",), "later": ("t 'gone' qos1 retained",)},),
    )


@scenario("will", quick=BOTH)
def no_will_after_disconnect(stage: Stage) -> Observation:
    watcher = stage.connected("w")
    stage.subscribe(watcher, stage.topic("t"), 1)
    client = stage.connected("c", will=Will(stage.topic("t"), b"gone", 1))
    client.disconnect()
    watcher.wait_messages(1, QUIET_S)
    return Observation({"messages": stage.settle(watcher, watcher)}, ({"messages": ()},))


# ---- sessions ----------------------------------------------------------------------------


@scenario("session", cases=ACKNOWLEDGED, quick_cases={"1": BOTH})
def persistent_session(stage: Stage, qos: int) -> Observation:
    """Kept while the client is away, with its subscription, and gone once it starts clean."""
    publisher = stage.connected("p")
    topic = stage.topic("t")
    client, first = stage.present("c", clean=False)
    stage.subscribe(client, topic, qos)
    client.disconnect()
    completed = publisher.publish(topic, b"1", b"2", qos=qos)
    client, resumed = stage.present("c", clean=False)
    client.wait_messages(2)
    completed &= publisher.publish(topic, b"3", qos=qos)
    messages = stage.collect(client, 3)
    client.disconnect()
    client, cleaned = stage.present("c", clean=True)
    publisher.publish(topic, b"4", qos=qos)
    return Observation(
        {
            "session present": (first, resumed, cleaned),
            "completed": completed,
            "messages": messages,
            "after a clean start": stage.settle(client, publisher),
        },
        (
            {
                "session present": (False, True, False),
                "completed": True,
                "messages": tuple(f"t '{number}' qos{qos}" for number in (1, 2, 3)),
                "after a clean start": (),
            },
        ),
    )


@scenario("session", quick=("paho",))
def persistent_session_after_a_lost_connection(stage: Stage) -> Observation:
    publisher = stage.connected("p")
    client = stage.connected("c", clean=False)
    stage.subscribe(client, stage.topic("t"), 1)
    client.drop()
    completed = publisher.publish(stage.topic("t"), b"m", qos=1)
    client, resumed = stage.present("c", clean=False)
    return Observation(
        {"session present": resumed, "completed": completed, "messages": stage.collect(client, 1)},
        ({"session present": True, "completed": True, "messages": ("t 'm' qos1",)},),
    )


@scenario("session", quick=BOTH)
def takeover(stage: Stage) -> Observation:
    """A second client of the same name ends the first [MQTT-3.1.4-2]."""
    first = stage.connected("c")
    second = stage.connected("c")
    lost = first.wait_lost()
    stage.subscribe(second, stage.topic("t"), 1)
    second.publish(stage.topic("t"), b"m", qos=1)
    messages = stage.collect(second, 1)
    ends = ("closed",) if stage.level == 4 else ("closed", "DISCONNECT 0x8e")
    if lost is None:
        raise Stopped("the first client stays connected")
    return Observation(
        {"first": lost, "messages": messages},
        tuple({"first": end, "messages": ("t 'm' qos1",)} for end in ends),
    )
