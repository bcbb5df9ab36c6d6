"""What goes to the local broker: order, windows, bounds, terms, blame.  No socket, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.exchange.broker import injection
from isthmus.exchange.broker.aversions import MEMORY_S
from isthmus.exchange.broker.injection import Injection, SessionTerms
from isthmus.exchange.link.lane import IN_HAND_BYTES
from isthmus.exchange.traffic.message import Message
from isthmus.mqtt.decoding import decode
from isthmus.mqtt.framing import frame_length
from isthmus.mqtt.packets import ConnAck, Publish, PubRel
from isthmus.mqtt.properties import Properties
from isthmus.mqtt.reason_codes import ReasonCode


class Shell:
    """Records what the injection does."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sent: list[Publish] = []
        self.released: list[int] = []
        self.proofs = 0
        self.aside: list[tuple[bytes, str]] = []
        self.said_no: list[int] = []
        self.counters: Counter[str] = Counter()
        self.core = Injection(self, self.counters)

    def now(self) -> float:
        return self.now_s

    def write(self, data: bytes) -> None:
        while data:
            frame, data = data[: frame_length(data, 0)], data[frame_length(data, 0) :]
            packet = decode(frame, 5)
            if isinstance(packet, Publish):
                self.sent.append(packet)
            elif isinstance(packet, PubRel):
                self.released.append(packet.packet_id)

    def prove(self) -> None:
        self.proofs += 1

    def set_aside(self, message: Message, cause: str) -> None:
        self.aside.append((message.payload, cause))

    def refused(self, message: Message, code: int) -> None:
        self.said_no.append(code)

    # ---- a broker that answers -------------------------------------------------------------

    def take(self) -> list[bytes]:
        """What was sent since the last time."""
        sent, self.sent = self.sent, []
        self.last = sent
        return [publish.payload for publish in sent]

    def acknowledge(self, publish: Publish) -> None:
        head = 0x40 if publish.qos == 1 else 0x70
        self.core.acknowledged(bytes((head, 2)) + publish.packet_id.to_bytes(2))

    def open(self, **terms: Any) -> None:
        self.core.opened(SessionTerms(**terms))


def message(payload: bytes, qos: int = 1, *, topic: bytes = b"t", retain: bool = False) -> Message:
    return Message(topic, payload, qos=qos, retain=retain, hops=1)


def done_to(into: list[bytes], payload: bytes) -> Callable[[], None]:
    return lambda: into.append(payload)


@pytest.fixture
def shell() -> Shell:
    return Shell()


def inject(shell: Shell, *payloads: bytes, qos: int = 1) -> list[bytes]:
    done: list[bytes] = []
    for payload in payloads:
        assert shell.core.inject(message(payload, qos), done_to(done, payload))
    return done


def test_done_is_the_brokers_word(shell: Shell) -> None:
    shell.open()
    done = inject(shell, b"1", b"2")
    assert shell.take() == [b"1", b"2"]
    assert done == []
    for publish in shell.last:
        shell.acknowledge(publish)
    assert done == [b"1", b"2"]
    assert len(shell.core) == 0


def test_the_receive_maximum_is_kept(shell: Shell) -> None:
    shell.open(window=2)
    inject(shell, b"1", b"2", b"3")
    assert shell.take() == [b"1", b"2"]
    shell.acknowledge(shell.last[0])
    assert shell.take() == [b"3"]


def test_the_terms_are_read_from_the_connack() -> None:
    said = Properties(
        receive_maximum=7, maximum_qos=1, maximum_packet_size=99, retain_available=False
    )
    terms = SessionTerms.of(ConnAck(False, ReasonCode.SUCCESS, said), 5)
    assert terms == SessionTerms(5, 7, 1, 99, False)
    assert SessionTerms.of(ConnAck(False, ReasonCode.SUCCESS), 5) == SessionTerms(5)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_larger_than_the_broker_takes_is_set_aside_at_once(shell: Shell, qos: int) -> None:
    """[MQTT-3.2.2-15]"""
    shell.open(maximum_packet_bytes=50)
    done = inject(shell, bytes(60), qos=qos)
    assert shell.core.inject_plain([b"t"], [bytes(60)]) == 0
    assert shell.take() == []
    assert len(done) == 1
    assert shell.counters["set_aside"] == 2
    assert "at most" in shell.aside[0][1]
    inject(shell, b"small", qos=qos)
    assert shell.take() == [b"small"]


def test_a_broker_without_retained_messages_gets_live_ones_only(shell: Shell) -> None:
    """[MQTT-3.2.2-14]"""
    shell.open(retain_available=False)
    shell.core.inject(message(b"live", retain=True), None)
    done: list[bytes] = []
    compared = Message(b"t", b"old", qos=1, retain=True, hops=0)
    shell.core.inject(compared, done_to(done, b"old"))
    assert shell.take() == [b"live"]
    assert shell.last[0].retain is False
    assert done == [b"old"]
    assert shell.counters["retain_unavailable"] == 2


# ---- runs of plain messages --------------------------------------------------------------


def test_of_a_run_only_what_is_too_large_is_set_aside(shell: Shell) -> None:
    shell.open(maximum_packet_bytes=50)
    payloads = [b"1", bytes(60), b"3", bytes(70), b"5"]
    assert shell.core.inject_plain([b"t"] * 5, payloads) == 0
    assert shell.take() == [b"1", b"3", b"5"]
    assert [payload for payload, _ in shell.aside] == [bytes(60), bytes(70)]


def test_a_run_does_not_overtake_what_the_broker_has_not_released(shell: Shell) -> None:
    """A broker hands a message at QoS 2 out when it is released."""
    shell.open()
    inject(shell, b"two", qos=2)
    assert shell.take() == [b"two"]
    (two,) = shell.last
    assert shell.core.inject_plain([b"u", b"t", b"u"], [b"1", b"2", b"3"]) == 0
    assert shell.take() == [b"1"], "what is on another topic, and not behind it, need not wait"
    shell.acknowledge(two)
    assert shell.take() == [b"2", b"3"]


def test_of_a_run_for_which_there_is_no_room_each_is_counted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injection, "MAX_WAITING_BYTES", 2 * (injection.ENTRY_BYTES + 2))
    assert shell.core.inject_plain([b"t"] * 5, [b"%d" % number for number in range(5)]) == 3
    shell.open()
    assert shell.take() == [b"0", b"1"]


# ---- bounds ------------------------------------------------------------------------------


def test_qos_0_waits_for_the_session_up_to_a_bound_in_bytes(shell: Shell) -> None:
    payload = bytes(1000)
    accepted = 0
    while not shell.core.inject_plain([b"t"], [payload]):
        accepted += 1
    assert accepted == injection.MAX_WAITING_BYTES // (injection.ENTRY_BYTES + 1001)
    assert shell.core.inject(message(payload, 1), None), "QoS 1 is not dropped"
    shell.open()
    assert len(shell.take()) == accepted + 1
    assert shell.core.waiting_bytes == 0


def test_a_session_that_takes_no_bytes_makes_them_wait(shell: Shell) -> None:
    shell.open()
    shell.core.may_write(False)
    assert shell.core.inject_plain([b"t"], [b"0"]) == 0
    inject(shell, b"1")
    assert shell.take() == []
    shell.core.may_write(True)
    assert shell.take() == [b"0", b"1"]


def test_nothing_retained_is_dropped(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the bound the newest of a topic is kept: what a subscriber of later would get."""
    monkeypatch.setattr(injection, "MAX_WAITING_BYTES", 2000)
    for number in range(100):
        topic = b"t/%d" % (number % 10)
        assert shell.core.inject(message(b"%d" % number, 0, topic=topic, retain=True), None)
    assert not shell.core.inject(message(b"plain", 0), None)
    assert len(shell.core) < 20
    shell.open()
    last: dict[str, bytes] = {}
    for payload in shell.take():
        assert payload.isdigit()
    for publish in shell.last:
        last[publish.topic] = publish.payload
    assert last == {f"t/{n % 10}": b"%d" % n for n in range(90, 100)}
    assert shell.core.waiting_bytes == 0
    assert shell.counters["inject_dropped"] == 100 - len(shell.last)


def test_the_oldest_that_were_never_sent_are_given_up(shell: Shell) -> None:
    """Not what may be at the broker already, nor QoS 0, nor the newest retained of a topic."""
    done: list[bytes] = []

    def give(payload: bytes, qos: int = 1, *, topic: bytes = b"t", retain: bool = False) -> None:
        made = message(payload, qos, topic=topic, retain=retain)
        assert shell.core.inject(made, lambda: done.append(payload))

    shell.open()
    give(b"sent")
    shell.core.lost()
    shell.take()
    give(b"old", topic=b"r", retain=True)
    give(b"new", 2, topic=b"r", retain=True)
    give(b"plain", 0)
    for number in range(3):
        give(b"%d" % number)
    assert shell.core.give_up(3 * (message(b"0", 1).cost + IN_HAND_BYTES)) == 3
    assert done == [b"old", b"0", b"1"]
    assert shell.core.give_up(1 << 30) == 1
    assert shell.core.give_up(1 << 30) == 0
    assert done == [b"old", b"0", b"1", b"2"]
    assert len(shell.core) == 3


def test_what_waits_at_qos_1_leaves_qos_0_its_room(shell: Shell) -> None:
    for _ in range(20):
        assert shell.core.inject(message(bytes(1 << 20), 1), None)
    assert shell.core.inject_plain([b"t"], [b"0"]) == 0


def test_expired_messages_are_done_without_the_broker(shell: Shell) -> None:
    done: list[bytes] = []
    old = Message(b"t", b"old", qos=1, expiry_s=5, hops=1)
    shell.core.inject(old, done_to(done, b"old"))
    shell.now_s = 6.0
    shell.open()
    assert shell.take() == []
    assert done == [b"old"]


# ---- blame -------------------------------------------------------------------------------


def fall(shell: Shell) -> injection.InjectedMessage | None:
    return shell.core.lost()


def test_suspects_are_tried_alone_once_the_session_is_proven(shell: Shell) -> None:
    shell.open()
    inject(shell, b"1", b"2", b"3", b"4", b"5", b"6", b"7")
    shell.take()
    assert fall(shell) is None, "many were in flight"
    inject(shell, b"behind")
    shell.open()
    assert shell.take() == []
    assert shell.proofs == 1
    shell.core.proven()
    assert shell.take() == [b"1"]
    shell.acknowledge(shell.last[0])
    assert shell.take() == [b"2", b"3"], "the window grows by one with each"
    first, second = shell.last
    shell.acknowledge(first)
    shell.acknowledge(second)
    assert shell.take() == [b"4", b"5", b"6", b"7"]
    for publish in shell.last:
        assert shell.core.on_trial
        shell.acknowledge(publish)
    assert shell.take() == [b"behind"], "only when all suspects are cleared"
    assert shell.counters["set_aside"] == 0


def accuse(shell: Shell) -> injection.InjectedMessage | None:
    """A proven session falls; who was alone in flight."""
    shell.open()
    shell.core.proven()
    shell.take()
    return fall(shell)


def test_three_times_alone_and_it_is_set_aside(shell: Shell) -> None:
    shell.open()
    done = inject(shell, b"poison", b"good")
    fall(shell)
    for _ in range(injection.TRIES):
        accused = accuse(shell)
        assert accused is not None
        assert accused.message.payload == b"poison"
        shell.core.blame(accused, "closed")
    assert done == [b"poison"]
    assert shell.aside == [(b"poison", "3 sessions fell with it: closed")]
    shell.open()
    shell.core.proven()
    assert shell.take() == [b"good"]


def test_falls_while_the_broker_was_away_are_forgiven(shell: Shell) -> None:
    shell.open()
    inject(shell, b"innocent")
    fall(shell)
    for _ in range(5):
        for _ in range(injection.TRIES - 1):
            accused = accuse(shell)
            assert accused is not None
            shell.core.blame(accused, "closed")
        shell.core.forgive()
    assert shell.aside == []


def test_nobody_is_accused_of_what_happens_between_messages(shell: Shell) -> None:
    shell.open()
    inject(shell, b"1")
    fall(shell)
    shell.open()
    assert fall(shell) is None, "not sent yet: not proven"
    shell.open()
    shell.core.proven()
    shell.take()
    shell.acknowledge(shell.last[-1])
    assert fall(shell) is None


def test_qos_0_waits_while_suspects_are_tried(shell: Shell) -> None:
    shell.open()
    inject(shell, b"1")
    fall(shell)
    shell.open()
    shell.core.proven()
    shell.take()
    assert shell.core.inject_plain([b"t"], [b"0"]) == 0
    assert shell.take() == []
    assert fall(shell) is not None, "1 was alone"
    shell.open()
    shell.core.proven()
    assert shell.take() == [b"1"]
    shell.acknowledge(shell.last[0])
    assert shell.take() == [b"0"]


def test_a_suspect_that_is_never_acknowledged_stops_nobody(shell: Shell) -> None:
    shell.open()
    inject(shell, b"ignored")
    fall(shell)
    inject(shell, b"behind")
    shell.open()
    shell.core.proven()
    shell.take()
    shell.core.acquit()
    assert shell.take() == [b"behind"]
    assert fall(shell) is None, "two were in flight"
    shell.open()
    shell.core.proven()
    assert shell.take() == [b"ignored"]


def test_a_refusal_is_the_end_of_a_message_and_of_no_other(shell: Shell) -> None:
    shell.open()
    done = inject(shell, b"1", b"2")
    shell.take()
    packet_id = shell.last[0].packet_id
    shell.core.acknowledged(bytes((0x40, 3)) + packet_id.to_bytes(2) + b"\x87")
    assert shell.said_no == [0x87]
    assert done == [b"1"]
    assert shell.counters["inject_refused"] == 1


def fall_again(shell: Shell) -> None:
    """A session opens, and falls with the first message that is tried alone."""
    shell.open()
    shell.core.proven()
    accused = shell.core.lost()
    if accused is not None:
        shell.core.blame(accused, "closed")


def test_what_is_like_a_message_that_was_set_aside_is_not_tried(shell: Shell) -> None:
    for number in range(100):
        shell.core.inject(message(b"%d" % number, topic=b"p/\x01/%d" % number), None)
    shell.core.inject(message(b"good", topic=b"good"), None)
    for _ in range(injection.TRIES + 1):  # all are in flight at first, then one alone
        fall_again(shell)
    shell.take()
    shell.open()
    shell.core.proven()
    assert shell.take() == [b"good"]
    assert len(shell.aside) == shell.counters["set_aside"] == 100
    assert shell.aside[1][1] == "the broker closes on a control character in its topic"
    shell.acknowledge(shell.last[0])
    assert shell.core.inject_plain([b"p/\x02"], [b"plain"]) == 0
    assert shell.core.inject_plain([b"good"], [b"plain good"]) == 0
    assert shell.take() == [b"plain good"]


def test_what_was_learned_is_believed_for_a_while(shell: Shell) -> None:
    shell.core.inject(message(b"one", topic="a/\uffff".encode()), None)
    for _ in range(injection.TRIES + 1):
        fall_again(shell)
    shell.open()
    shell.take()
    shell.core.inject(message(b"two", topic="\ufdd0".encode()), None)
    assert shell.take() == []
    shell.now_s += MEMORY_S
    shell.core.inject(message(b"three", topic="\ufdd0".encode()), None)
    assert shell.take() == [b"three"]


def test_a_broker_that_was_away_may_take_what_it_closed_on(shell: Shell) -> None:
    shell.core.inject(message(b"one", topic=b"\x01"), None)
    for _ in range(injection.TRIES + 1):
        fall_again(shell)
    shell.core.forgive()
    shell.open()
    shell.take()
    shell.core.inject(message(b"two", topic=b"\x01"), None)
    assert shell.take() == [b"two"]


def test_what_a_broker_may_close_on_is_blamed_at_qos_0_too(shell: Shell) -> None:
    shell.open()
    shell.core.inject(message(b"poison", 0, topic=b"p/\x01"), None)
    shell.core.inject(message(b"good", 0), None)
    assert shell.take() == [b"poison", b"good"]
    assert [publish.qos for publish in shell.last] == [1, 0]
    fall(shell)
    for _ in range(injection.TRIES):
        fall_again(shell)
    assert [payload for payload, _ in shell.aside] == [b"poison"]
    shell.take()
    shell.open()
    for number in range(10):
        shell.core.inject(message(b"%d" % number, 0, topic=b"p/\x02"), None)
    assert shell.take() == [], "learned"
    assert len(shell.aside) == 11


@pytest.mark.parametrize("retain", [False, True])
def test_what_is_raised_to_qos_1_is_bounded_until_it_is_done(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, retain: bool
) -> None:
    monkeypatch.setattr(injection, "MAX_WAITING_BYTES", 2000)
    shell.open()
    done: list[bytes] = []
    taken = [
        shell.core.inject(message(b"x", 0, topic=b"\x01", retain=retain), done_to(done, b"x"))
        for _ in range(10)
    ]
    at_once = len(shell.take())
    assert at_once == 4
    assert taken == [True] * 4 + [retain] * 6
    for publish in shell.last:
        shell.acknowledge(publish)
    newest = shell.take()
    assert newest == [b"x"] * retain, "the newest retained message is never dropped"
    for publish in shell.last:
        shell.acknowledge(publish)
    assert len(done) == (10 if retain else 4)
    assert shell.core.inject(message(b"again", 0, topic=b"\x01"), None)
    assert shell.take() == [b"again"]


def test_qos_2_that_was_not_completed_is_published_again(shell: Shell) -> None:
    """Never lost: a broker may hand it out at PUBREL only, and forgets it with a clean session."""
    shell.open()
    done = inject(shell, b"2", qos=2)
    shell.take()
    shell.core.acknowledged(bytes((0x50, 2)) + shell.last[0].packet_id.to_bytes(2))
    fall(shell)
    assert done == []
    shell.open()
    shell.core.proven()
    assert shell.take() == [b"2"]
    shell.acknowledge(shell.last[0])
    assert done == [b"2"]


# ---- sessions that the broker keeps ------------------------------------------------------------


def test_qos_2_goes_on_in_a_session_that_is_resumed(shell: Shell) -> None:
    shell.open()
    done = inject(shell, b"known", b"unknown", qos=2)
    inject(shell, b"qos 1")
    assert shell.take() == [b"known", b"unknown"]
    known, unknown = shell.last
    shell.core.acknowledged(b"\x50\x02" + known.packet_id.to_bytes(2))
    assert shell.released == [known.packet_id]
    shell.core.lost()
    shell.core.opened(SessionTerms(), resumed=True)
    shell.core.proven()
    assert shell.take() == [], "the broker has it"
    assert shell.released == [known.packet_id] * 2
    shell.acknowledge(known)
    assert shell.take() == [b"unknown"]
    assert (shell.last[0].dup, shell.last[0].packet_id) == (True, unknown.packet_id)
    shell.acknowledge(unknown)
    assert done == [b"known", b"unknown"]
    assert shell.take() == [b"qos 1"]


def test_a_session_that_is_not_resumed_gets_all_of_it_anew(shell: Shell) -> None:
    shell.open()
    inject(shell, b"1", qos=2)
    shell.take()
    shell.core.acknowledged(b"\x50\x02" + shell.last[0].packet_id.to_bytes(2))
    shell.core.lost()
    shell.open()
    shell.core.proven()
    assert shell.take() == [b"1"]
    assert not shell.last[0].dup


def test_what_an_earlier_life_has_left_is_released_before_its_identifiers_are_used() -> None:
    shell = Shell()
    shell.core = Injection(shell, shell.counters, identifiers=3)
    shell.core.opened(SessionTerms(), resumed=True, unswept=True)
    inject(shell, b"qos 1")
    inject(shell, b"qos 2", qos=2)
    assert shell.take() == [b"qos 1"]
    first = shell.last[0]
    shell.core.sweep()
    assert shell.released == [1, 2, 3]
    for packet_id in (1, 2, 3):
        assert shell.take() == []
        shell.core.acknowledged(b"\x70\x02" + packet_id.to_bytes(2))
    assert shell.take() == [b"qos 2"], "it has waited for all of them"
    assert shell.last[0].packet_id != first.packet_id, "and that one is not acknowledged yet"


def test_a_broker_that_does_not_answer_is_not_waited_for(shell: Shell) -> None:
    shell.core.opened(SessionTerms(), resumed=True, unswept=True)
    inject(shell, b"qos 2", qos=2)
    shell.core.sweep()
    assert shell.take() == []
    shell.core.swept()
    assert shell.take() == [b"qos 2"]


def test_who_wants_to_know_is_told_what_is_written(shell: Shell) -> None:
    told: list[bytes] = []
    shell.core.published = lambda _topics, payloads: told.extend(payloads)
    inject(shell, b"waits")
    assert told == []
    shell.open()
    shell.acknowledge(shell.sent[0])
    shell.core.inject_plain([b"t", b"u"], [b"1", b"2"])
    assert told == [b"waits", b"1", b"2"]
