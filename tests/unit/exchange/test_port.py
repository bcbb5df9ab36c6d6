"""What the API's page says of the port is true of the exchange."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import pytest

from isthmus.cooperation import registry
from isthmus.cooperation.api import (
    LinkOptions,
    Port,
    Resources,
    SessionInfo,
    SessionKind,
    SessionStatus,
)
from isthmus.cooperation.publication_flooding.algorithm import PublicationFlooding
from isthmus.exchange.exchange import Exchange
from isthmus.exchange.link.links import LinkSettings
from isthmus.mqtt.encoding import encode
from isthmus.mqtt.packets import Publish
from isthmus.sim.fabric import SimFabric
from isthmus.sim.network import WireSettings
from isthmus.sim.node import SimNode


class Recording(PublicationFlooding):
    """Notes what it is told, and with which status."""

    name = "recording"
    at_first: Callable[[Port], object] = staticmethod(lambda port: None)

    def __init__(self, port: Port, options: Mapping[str, object]) -> None:
        super().__init__(port, options)
        self.told: list[tuple[str, SessionInfo, SessionStatus]] = []
        self.timers: list[Hashable] = []
        self.running = self.within = False
        self.first = self.at_first(port)

    def note(self, hook: str, session: SessionInfo) -> None:
        assert self.running, f"{hook} before on_node_start"
        assert not self.within, f"{hook} from within a call of the port"
        self.told.append((hook, session, session.status))

    def asked(self, call: Callable[[], object]) -> object:
        """Use the port, from outside of any hook."""
        self.within = True
        try:
            return call()
        finally:
            self.within = False

    def sessions(self, hook: str, kind: SessionKind = SessionKind.NEIGHBOR) -> list[SessionInfo]:
        return [session for name, session, _ in self.told if name == hook and session.kind is kind]

    def on_node_start(self) -> None:
        assert not self.timers
        self.running = True

    def on_session_established(self, session: SessionInfo) -> None:
        self.note("established", session)
        super().on_session_established(session)

    def on_session_closed(self, session: SessionInfo) -> None:
        self.note("closed", session)
        super().on_session_closed(session)

    def on_tcp_down(self, session: SessionInfo) -> None:
        self.note("down", session)

    def on_recv_failure(self, session: SessionInfo, error: Exception) -> None:
        self.note(f"failure: {error}", session)

    def on_neighbors_back(self) -> None:
        assert not self.within

    def on_timer(self, key: Hashable) -> None:
        assert self.running
        self.timers.append(key)


def recording(node: SimNode) -> Recording:
    algorithm = node.algorithm
    assert isinstance(algorithm, Recording)
    return algorithm


@pytest.fixture
def fabric() -> SimFabric:
    """The first pings are after a second."""
    return SimFabric(algorithm=Recording, link=LinkSettings(dead_after_s=3.0))


@pytest.fixture
def pair(fabric: SimFabric) -> tuple[SimNode, SimNode]:
    """a ── b, which a dialed."""
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.settle()
    return a, b


def neighbor_of(node: SimNode) -> SessionInfo:
    (session,) = (link.info for link in node.exchange.links)
    return session


# ---- sessions ----


def test_a_session_is_terminating_between_closing_and_closed(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, _ = pair
    session = neighbor_of(a)
    recording(a).asked(lambda: a.exchange.close_session(session))
    assert session.status is SessionStatus.TERMINATING
    assert not a.exchange.send_message(session, b"\xc0\x00")
    fabric.settle()
    assert recording(a).told[1:] == [("closed", session, SessionStatus.CLOSED)], "and not down"
    seen = {status for _, _, status in recording(a).told} | {SessionStatus.TERMINATING}
    assert seen == set(SessionStatus)


def test_who_was_closed_may_come_back_who_was_removed_may_not(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, b = pair
    first = neighbor_of(b)
    recording(b).asked(lambda: b.exchange.close_session(first))
    fabric.settle()
    again = neighbor_of(b)
    assert recording(b).sessions("closed") == [first]
    assert recording(b).sessions("down") == recording(a).sessions("down") == []
    assert recording(b).sessions("established") == [first, again]
    assert again is not first

    assert b.exchange.remove_peer("a")
    fabric.run(10.0)
    assert list(b.exchange.links) == []
    assert recording(b).sessions("closed") == [first, again]
    assert not b.exchange.remove_peer("a")
    assert a.exchange.links.peers[b.address].problem.endswith("'a' was removed here")


def test_who_is_closed_is_not_dialed_any_more(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, _ = pair
    session = neighbor_of(a)
    a.exchange.close_session(session)
    a.exchange.close_session(session)
    fabric.run(60.0)
    assert list(a.exchange.links) == []
    assert recording(a).sessions("closed") == [session]


def test_what_never_was_established_can_be_closed(fabric: SimFabric) -> None:
    a = fabric.node("a")
    session = a.exchange.create_session("nobody:1")
    fabric.run(1.0)
    recording(a).asked(lambda: a.exchange.close_session(session))
    fabric.run(60.0)
    assert recording(a).told == [("closed", session, SessionStatus.CLOSED)]
    assert a.exchange.links.peers == {}


def test_what_is_gone_for_good_is_not_closed_again(fabric: SimFabric) -> None:
    class Thorough(Recording):
        def on_session_closed(self, session: SessionInfo) -> None:
            super().on_session_closed(session)
            self.port.close_session(session)

    fabric = SimFabric(algorithm=Thorough)
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b)
    fabric.settle()
    session = neighbor_of(a)
    fabric.crash(b)
    fabric.run(100.0)
    assert recording(a).sessions("closed") == [session]
    a.exchange.close_session(session)
    assert session.status is SessionStatus.CLOSED
    fabric.restart(b)
    fabric.settle()
    assert recording(a).sessions("closed") == [session]
    assert neighbor_of(a).status is SessionStatus.ESTABLISHED


def test_of_two_addresses_of_a_neighbor_one_can_be_removed(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, b = pair
    fabric.link(b, a)
    fabric.settle()
    session = neighbor_of(b)
    b.exchange.links.peers["alias:1"] = b.exchange.links.peers[a.address]
    assert b.exchange.remove_peer(a.address)
    fabric.settle()
    assert neighbor_of(b) is session


@pytest.mark.parametrize("dials", ["a", "b"])
def test_the_session_that_is_created_is_the_one_that_is_established(
    fabric: SimFabric, dials: str
) -> None:
    """Both dial; the connection of the node with the lower id is kept."""
    a, b = fabric.node("a"), fabric.node("b")
    one, other = (a, b) if dials == "a" else (b, a)
    other.exchange.create_session(one.address)
    fabric.run(0.001)
    created = one.exchange.create_session(other.address)
    fabric.settle()
    assert recording(one).sessions("established") == [created]
    assert neighbor_of(one) is created
    assert created.name == other.name


@pytest.mark.parametrize("dials", ["a", "b"])
def test_a_session_with_a_neighbor_that_is_one_already_is_closed(
    fabric: SimFabric, dials: str
) -> None:
    a, b = fabric.node("a"), fabric.node("b")
    one, other = (a, b) if dials == "a" else (b, a)
    fabric.link(other, one)
    fabric.settle()
    session = neighbor_of(one)
    created = one.exchange.create_session(other.address)
    fabric.settle()
    assert recording(one).sessions("closed") == [created]
    assert created.name == other.name
    assert neighbor_of(one) is session
    assert session.status is SessionStatus.ESTABLISHED
    assert session.address == other.address


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.25, 0.35, 0.45])
def test_a_session_that_is_closed_while_it_is_opened_leaves_nothing_at_the_other_end(
    after_s: float,
) -> None:
    """A connection stands after 0.2 s, the other end has answered a greeting after 0.3 s."""
    fabric = SimFabric(algorithm=Recording, wire=WireSettings(0.1))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.run(0.5)
    created = a.exchange.create_session(b.address)
    fabric.run(after_s)
    a.exchange.close_session(created)
    fabric.run(1.0)
    assert recording(a).sessions("closed") == [created]
    for node in (a, b):
        assert not node.exchange.links.links
        assert not node.exchange.links.peers
    told = recording(b)
    assert told.sessions("closed") == told.sessions("established")


def test_a_neighbor_has_an_address_whoever_dialed(pair: tuple[SimNode, SimNode]) -> None:
    a, b = pair
    assert neighbor_of(a).address == b.address
    assert neighbor_of(b).address.startswith("a")


def test_what_the_operator_says_of_a_neighbor_is_about_that_one(fabric: SimFabric) -> None:
    class Picky(Recording):
        def on_node_add(self, address: str, options: LinkOptions) -> None:
            if address != "unwanted:1":
                super().on_node_add(address, options)

    fabric = SimFabric(algorithm=Picky)
    a, b = fabric.node("a"), fabric.node("b")
    a.exchange.add_peer("unwanted:1", 3, 0)
    a.exchange.create_session(b.address)
    fabric.settle()
    (link,) = a.exchange.links
    assert (link.lanes, link.qos) == (1, 1)
    a.exchange.remove_peer("b")
    fabric.settle()
    a.exchange.create_session(b.address, LinkOptions(lanes=2, qos=0))
    fabric.settle()
    (link,) = a.exchange.links
    assert (link.lanes, link.qos) == (2, 0)


# ---- bad bytes ----


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x20\x02\x00\x00", "0x20"),
        (encode(Publish("$isthmus/nobody's", b""), 5), "no control packets"),
    ],
    ids=["bytes", "algorithm"],
)
def test_bad_bytes_of_a_neighbor_are_told_once(
    pair: tuple[SimNode, SimNode], fabric: SimFabric, data: bytes, problem: str
) -> None:
    a, b = pair
    (link,) = a.exchange.links
    connection = link.connections[0]
    assert connection is not None
    connection.send(data)
    fabric.run(1.0)
    hooks = [hook for hook, session, _ in recording(b).told if session.kind is SessionKind.NEIGHBOR]
    assert hooks[0] == "established"
    assert problem in hooks[1]
    assert hooks[2:] == ["down", "established"]


# ---- before the node runs ----


def test_the_port_can_be_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(port: Port) -> SessionInfo:
        port.set_timer(0.5, "kept")
        port.set_timer(0.5, "canceled")
        port.cancel_timer("canceled")
        port.routes_changed()
        assert 0 <= port.random.random() < 1
        assert port.now() >= 0
        assert port.node_id == "a"
        return port.create_session("b:7883")

    fabric = SimFabric(algorithm=Recording)
    b = fabric.node("b")
    monkeypatch.setattr(Recording, "at_first", staticmethod(use))
    a = fabric.node("a")
    fabric.settle()
    assert recording(a).timers == ["kept"]
    assert neighbor_of(a) is recording(a).first
    assert neighbor_of(b).name == "a"


def test_what_is_closed_at_once_is_told_when_the_node_runs(
    fabric: SimFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(port: Port) -> SessionInfo:
        session = port.create_session("b:7883")
        port.close_session(session)
        return session

    fabric.node("b")
    monkeypatch.setattr(Recording, "at_first", staticmethod(use))
    with monkeypatch.context() as patch:
        patch.setattr(Exchange, "start", lambda self: None)  # its listeners take their time
        a = fabric.node("a")
        fabric.run(1.0)
    assert recording(a).told == []
    a.exchange.start()
    assert recording(a).told == [("closed", recording(a).first, SessionStatus.CLOSED)]
    fabric.settle()
    assert list(a.exchange.links) == []


def test_no_session_is_closed_when_the_node_has_stopped(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, _ = pair
    a.exchange.close_session(neighbor_of(a))
    a.exchange.stop()
    fabric.run(1.0)
    assert recording(a).sessions("closed") == []


def test_using_the_port_at_once_is_no_mistake_in_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Eager(Recording):
        def __init__(self, port: Port, options: Mapping[str, object]) -> None:
            super().__init__(port, options)
            port.set_timer(1.0, "x")

    class Broken(Recording):
        def __init__(self, port: Port, options: Mapping[str, object]) -> None:
            super().__init__(port, options)
            getattr(self, "no_such_attribute")  # noqa: B009

    monkeypatch.setattr(registry, "load", lambda name: Eager)
    registry.check_options("eager", {})
    monkeypatch.setattr(registry, "load", lambda name: Broken)
    with pytest.raises(AttributeError):
        registry.check_options("broken", {})


# ---- what is kept ----


def test_state_is_kept_by_name_over_restarts(fabric: SimFabric) -> None:
    a = fabric.node("a")
    port: Port = a.exchange
    assert port.load_state("tree") == []
    with pytest.raises(ValueError, match="nothing was saved under 'tree'"):
        port.append_state("tree", [b"too early"])
    port.save_state("tree", [b"one", b""])
    port.append_state("tree", [b"two", b"three"])
    port.save_state("other", [b"x"], version=7)
    fabric.run(5.0)
    fabric.crash(a)
    fabric.restart(a)
    port = a.exchange
    assert port.load_state("other") == []
    assert port.load_state("other", 7) == [b"x"]
    assert port.load_state("tree") == [b"one", b"", b"two", b"three"]
    port.append_state("tree", [b"four"])
    assert port.load_state("tree")[-1] == b"four"
    port.save_state("tree", [])
    assert port.load_state("tree") == []
    port.append_state("tree", [b"anew"])
    assert port.load_state("tree") == [b"anew"]


def test_a_crash_while_appending_costs_what_was_appended_last(fabric: SimFabric) -> None:
    a = fabric.node("a")
    seen = set()
    for number in range(40):
        a.exchange.save_state("s", [b"kept"])
        fabric.run(5.0)
        a.exchange.append_state("s", [b"first", b"second"])
        fabric.crash(a, torn=True)
        fabric.restart(a)
        left = a.exchange.load_state("s")
        assert left == [b"kept", b"first", b"second"][: len(left)], number
        a.exchange.append_state("s", [b"after"])
        assert a.exchange.load_state("s") == [*left, b"after"]
        seen.add(len(left))
    assert seen == {1, 2, 3}


def test_another_algorithm_has_other_files(fabric: SimFabric) -> None:
    a = fabric.node("a")
    a.exchange.save_state("s", [b"x"])
    (file,) = (name for name in a.disk.files if name.endswith("-s"))
    assert file == "algorithm-recording--s"


def test_what_the_disk_does_not_take_is_asked_for(
    fabric: SimFabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = fabric.node("a")
    asked: list[str] = []
    monkeypatch.setattr(a.algorithm, "on_state_lost", asked.append)
    for name in ("algorithm-recording--tree", "wills", "retained", "neighbors"):
        a.exchange.state_lost(name)
    assert asked == ["tree"]


def test_no_hook_is_called_from_within_synchronized(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, b = pair
    fabric.crash(a)
    fabric.restart(a)
    fabric.run(0.01)
    assert a.exchange.recovery.active
    for session in list(a.exchange.traffic.by_session):
        recording(a).asked(lambda session=session: a.exchange.synchronized(session))  # type: ignore[misc]
    fabric.settle()
    assert not a.exchange.recovery.active
    assert neighbor_of(b).status is SessionStatus.ESTABLISHED


# ---- what it may know ----


def test_a_node_knows_its_own_address_and_where_its_neighbors_can_be_dialed(
    pair: tuple[SimNode, SimNode],
) -> None:
    a, b = pair
    assert (a.exchange.address, b.exchange.address) == (a.address, b.address)
    assert neighbor_of(a).advertised == neighbor_of(a).address == b.address
    assert neighbor_of(b).advertised == a.address, "although a dialed"


@pytest.mark.parametrize("delay_s", [0.002, 0.15])
def test_the_round_trip_is_timed_and_smoothed(delay_s: float) -> None:
    fabric = SimFabric(algorithm=Recording, link=LinkSettings(dead_after_s=3.0))
    a, b = fabric.node("a"), fabric.node("b")
    fabric.link(a, b, delay_s=delay_s)
    fabric.run(0.9)
    assert neighbor_of(a).rtt_s == 0.0
    fabric.run(30.0)
    for node in (a, b):
        assert neighbor_of(node).rtt_s == pytest.approx(2 * delay_s, abs=1e-3)
    fabric.link(a, b, delay_s=2 * delay_s)
    fabric.break_connections(a, b)
    fabric.run(5.0)
    assert 2 * delay_s < neighbor_of(a).rtt_s < 4 * delay_s, "not at once"
    fabric.run(60.0)
    assert neighbor_of(a).rtt_s == pytest.approx(4 * delay_s, rel=0.05)


def test_what_a_link_has_carried_is_counted_by_kind(
    pair: tuple[SimNode, SimNode], fabric: SimFabric
) -> None:
    a, b = pair
    there, back = neighbor_of(a), neighbor_of(b)
    before = a.exchange.traffic_of(there)
    assert before is not None
    assert (before.data_sent, before.data_received) == (0, 0)
    assert before.control_sent > 0, "of the guard, and of retained messages"
    publisher = a.client("p")
    fabric.settle()
    for number in range(40):
        publisher.publish("t", bytes(100), qos=number % 3)
    fabric.settle()
    sent, received = a.exchange.traffic_of(there), b.exchange.traffic_of(back)
    assert sent is not None
    assert received is not None
    assert (sent.data_sent, received.data_received) == (40, 40)
    assert sent.control_sent == received.control_received == before.control_sent
    assert sent.data_sent_bytes - before.data_sent_bytes > 40 * 100
    assert received.data_received_bytes == sent.data_sent_bytes
    assert received.control_received_bytes == sent.control_sent_bytes
    assert a.exchange.traffic_of(publisher_session(a)) is None
    (link,) = a.exchange.status()["links"]
    assert link["data_sent_bytes"] == sent.data_sent_bytes


def publisher_session(node: SimNode) -> SessionInfo:
    return SessionInfo(99, SessionKind.LOCAL_CLIENT, "p")


def test_what_is_free_is_what_the_host_says(pair: tuple[SimNode, SimNode]) -> None:
    a, b = pair
    a.resources = Resources(0.25, 1_000)
    assert a.exchange.resources == Resources(0.25, 1_000)
    assert b.exchange.resources.cores == 1.0
