"""What is used stays, what is not ages, and nothing is thrown away at a stroke."""

from __future__ import annotations

from isthmus.exchange.traffic.aged import Aged

SIZE = 100


def filled(count: int, room: int) -> Aged[int, str]:
    memory: Aged[int, str] = Aged(room * SIZE)
    for key in range(count):
        memory.keep(key, str(key), SIZE)
    return memory


def test_a_full_generation_grows_old_and_what_is_asked_for_comes_back() -> None:
    memory = filled(10, room=20)
    assert memory.get(0) == "0"
    memory.keep(10, "10", SIZE)
    assert memory.get(0) is None
    assert (memory.recall(0, SIZE), memory.get(0), memory.total) == ("0", "0", 11)
    for key in range(11, 20):
        memory.keep(key, str(key), SIZE)
    assert memory.recall(0, SIZE) == "0"
    assert memory.recall(1, SIZE) is None
    assert sorted(memory.every_key()) == [0, *range(10, 20)]
    memory.remove(0)
    memory.remove(10)
    assert sorted(memory.every_key()) == list(range(11, 20))


def test_what_leaves_is_freed_a_few_at_a_time_as_new_comes() -> None:
    memory = filled(1_000, room=2_000)
    memory.forget()
    assert (memory.total, memory.recall(1, SIZE)) == (0, None)
    freed = []
    for key in range(200):
        before = sum(map(len, memory._leaving))
        memory.keep(key, "", SIZE)
        freed.append(before - sum(map(len, memory._leaving)))
    assert max(freed) == 8
    assert not memory._leaving


def test_what_leaves_is_bounded_also_if_nothing_new_comes() -> None:
    memory: Aged[int, str] = Aged(20 * SIZE)
    for number in range(50):
        memory.keep(number, "", 11 * SIZE)
        memory.keep(-number, "", 11 * SIZE)
        memory.forget()
        assert len(memory._leaving) <= 2
    memory = filled(5_000, room=20)
    assert memory.total <= 20
    assert sum(map(len, memory._leaving)) <= 20


def test_what_is_larger_than_a_generation_is_remembered_alone() -> None:
    memory = filled(3, room=4)
    memory.keep(7, "large", 50 * SIZE)
    assert memory.get(7) == "large"
    memory.keep(8, "next", SIZE)
    assert (memory.recall(7, 50 * SIZE), memory.total) == ("large", 2)
