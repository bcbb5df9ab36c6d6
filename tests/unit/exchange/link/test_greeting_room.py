"""Who waits at the link port, and who leaves when somebody else comes."""

from __future__ import annotations

from isthmus.exchange.link.greeting_room import MAX_KNOWN, PLACES, SHARE, GreetingRoom


class Visitor:
    """A connection that came at `opened_s`."""

    def __init__(self, host: str, opened_s: float = 0.0, *, spoke: bool = False) -> None:
        self.host = host
        self.opened_s = opened_s
        self.spoke = spoke

    def abort(self) -> None:
        raise AssertionError("the room says who is to leave, and cuts nobody off")


def filled(room: GreetingRoom, hosts: int, each: int) -> list[Visitor]:
    """`each` visitors of `hosts` addresses, one a second, address by address."""
    visitors = [Visitor(f"10.0.0.{at // each}", float(at)) for at in range(hosts * each)]
    for visitor in visitors:
        assert room.enter(visitor) is None
    return visitors


def test_as_long_as_there_are_places_nobody_leaves() -> None:
    room = GreetingRoom()
    visitors = filled(room, PLACES // SHARE, SHARE)
    assert len(room) == PLACES
    assert list(room) == visitors  # oldest first


def test_a_guest_may_be_let_go_while_one_goes_through_them() -> None:
    room = GreetingRoom()
    filled(room, 1, 3)
    for guest in room:
        room.leave(guest)
    assert len(room) == 0
    assert list(room) == []


def test_an_address_with_its_share_makes_room_by_itself_though_there_are_places() -> None:
    room = GreetingRoom()
    first, *_ = filled(room, 1, SHARE)
    other = Visitor("10.9.9.9", -1.0)
    assert room.enter(other) is None
    assert room.enter(Visitor("10.0.0.0", 1_000.0)) is first
    assert other in list(room)
    assert len(room) == SHARE + 1


def test_a_stranger_with_many_connections_keeps_nobody_out() -> None:
    room = GreetingRoom()
    filled(room, PLACES // SHARE, SHARE)
    for number in range(3 * PLACES):
        comes = Visitor(f"10.7.{number // 200}.{number % 200}", 1_000.0 + number)
        assert room.enter(comes) is not None
        assert comes in list(room)
        assert len(room) == PLACES
        assert len(room._of_host) <= PLACES


def test_who_has_been_cut_off_counts_no_more() -> None:
    """Else an address would be at its share for ever."""
    room = GreetingRoom()
    visitors = filled(room, 1, SHARE)
    room.leave(visitors[5])
    room.leave(visitors[5])
    room.leave(Visitor("10.0.0.0"))
    assert room.enter(Visitor("10.0.0.0", 1_000.0)) is None
    assert room.enter(Visitor("10.0.0.0", 1_001.0)) is visitors[0]


def test_in_a_full_room_one_of_the_address_with_the_most_guests_leaves() -> None:
    room = GreetingRoom()
    few = [Visitor(f"10.1.0.{at}", -100.0 + at) for at in range(PLACES - SHARE)]
    many = [Visitor("10.2.0.0", float(at)) for at in range(SHARE)]
    for visitor in (*few, *many):
        room.enter(visitor)
    assert room.enter(Visitor("10.3.0.0", 500.0)) is many[0]


def test_of_them_those_leave_first_that_have_said_nothing_and_then_who_waits_longest() -> None:
    room = GreetingRoom()
    visitors = [Visitor("10.2.0.0", float(at), spoke=at < SHARE - 2) for at in range(SHARE)]
    for visitor in reversed(visitors):
        room.enter(visitor)
    leaving = [room.enter(Visitor("10.2.0.0", 1_000.0, spoke=True)) for _ in range(3)]
    assert leaving == [visitors[-2], visitors[-1], visitors[0]]


def test_where_a_neighbor_is_there_is_no_share() -> None:
    room = GreetingRoom()
    room.is_neighbor("10.0.0.0")
    filled(room, 1, PLACES)
    assert len(room) == PLACES


def test_from_where_a_neighbor_is_somebody_leaves_only_if_there_are_no_others() -> None:
    room = GreetingRoom()
    room.is_neighbor("10.0.0.0")
    known = filled(room, 1, PLACES - 1)
    stranger = Visitor("10.8.0.0", 500.0, spoke=True)
    assert room.enter(stranger) is None
    assert room.enter(Visitor("10.0.0.0", 501.0)) is stranger
    assert room.enter(Visitor("10.8.0.1", 502.0)) is known[0]


def test_the_addresses_of_neighbors_are_forgotten_in_the_order_in_which_they_were_last_seen() -> (
    None
):
    room = GreetingRoom()
    for number in range(MAX_KNOWN):
        room.is_neighbor(f"n{number}")
    room.is_neighbor("n0")
    room.is_neighbor("one more")

    def is_known(host: str) -> bool:
        leaving = [room.enter(Visitor(host, float(at))) for at in range(SHARE + 1)]
        for guest in list(room):
            room.leave(guest)
        return not any(leaving)

    assert is_known("n0")
    assert not is_known("n1")
    assert is_known("n2")
    assert is_known("one more")
