"""Connections that have not said who they are."""

from __future__ import annotations

from isthmus.exchange.client.entrance import SILENT_S, Entrance


class Guest:
    def __init__(self) -> None:
        self.left = False

    def cut_off(self) -> None:
        self.left = True


def test_the_one_that_has_waited_longest_leaves() -> None:
    entrance, (first, second) = Entrance(), (Guest(), Guest())
    entrance.enter(first, 0.0, handshake=True)
    entrance.enter(second, 0.5, handshake=False)
    assert not entrance.make_room(SILENT_S - 0.1)
    assert entrance.make_room(SILENT_S)
    assert (first.left, second.left) == (True, False)
    assert entrance.handshakes == 0
    assert not entrance.make_room(SILENT_S + 0.4)
    assert entrance.make_room(SILENT_S + 0.5)
    assert second.left


def test_who_has_left_is_not_cut_off() -> None:
    entrance, guest = Entrance(), Guest()
    entrance.enter(guest, 0.0, handshake=True)
    assert entrance.handshakes == 1
    entrance.leave(guest)
    entrance.leave(guest)
    assert entrance.handshakes == 0
    assert not entrance.make_room(100.0)
    assert not guest.left
