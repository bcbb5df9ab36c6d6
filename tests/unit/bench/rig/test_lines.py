"""Lines on a virtual clock: nothing early, nothing changed, never too fast, each pair its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.rig.lines import (
    LEAST_QUEUE_BYTES,
    MOST_QUEUE_BYTES,
    DelayLine,
    Line,
    Lines,
    Shape,
    Shapes,
)

MS = 1_000_000

Arrivals = list[tuple[int, bytes]]  # ns since the one before, and what came

arrivals = st.lists(st.tuples(st.integers(0, 20 * MS), st.binary(min_size=1, max_size=5000)))
shapes = st.builds(
    Shape,
    st.sampled_from([0.0, 0.0005, 0.005, 0.1]),
    st.one_of(st.none(), st.integers(1_000, 1_000_000_000)),
)


def run(line: DelayLine, came: Arrivals) -> list[tuple[int, bytes]]:
    """Push `came` and the end of file; take as a process would that is woken in time."""
    left: list[tuple[int, bytes]] = []
    now_ns = 0

    def take_until(limit_ns: int | None) -> None:
        while (due_ns := line.next_ns()) is not None and (limit_ns is None or due_ns <= limit_ns):
            at_ns = max(now_ns, due_ns)
            while (data := line.take(at_ns)) is not None:
                left.append((at_ns, bytes(data)))

    for after_ns, data in came:
        take_until(now_ns + after_ns)
        now_ns += after_ns
        line.push(now_ns, data)
    line.push(now_ns, b"")
    take_until(None)
    return left


@given(came=arrivals, shape=shapes)
def test_bytes_come_out_unchanged_in_order_and_then_the_end(came: Arrivals, shape: Shape) -> None:
    line = DelayLine(Line(shape))
    left = run(line, came)
    assert b"".join(data for _, data in left) == b"".join(data for _, data in came)
    assert line.ended
    assert line.queued_bytes == 0


@given(came=arrivals, shape=shapes)
def test_no_byte_is_early_and_none_is_faster_than_the_line(came: Arrivals, shape: Shape) -> None:
    delay_ns = round(shape.delay_s * 1e9)
    earliest: list[int] = []  # of each byte, by the definition
    now_ns = free_ns = 0
    for after_ns, data in came:
        now_ns += after_ns
        begin_ns = max(now_ns, free_ns)
        for count in range(1, len(data) + 1):
            passing_ns = -(-count * 10**9 // shape.bytes_per_s) if shape.bytes_per_s else 0
            earliest.append(begin_ns + passing_ns + delay_ns)
        free_ns = earliest[-1] - delay_ns
    position = 0
    for at_ns, data in run(DelayLine(Line(shape)), came):
        for due_ns in earliest[position : position + len(data)]:
            assert at_ns >= due_ns
        # and no later than a piece of a millisecond after its last byte could have come
        assert at_ns <= earliest[position + len(data) - 1] + MS
        position += len(data)


def test_a_megabyte_at_a_megabyte_a_second_takes_a_second() -> None:
    line = DelayLine(Line(Shape(delay_s=0.05, bytes_per_s=1_000_000)))
    line.push(0, bytes(1_000_000))
    assert line.take(50 * MS) is None
    half = line.take(550 * MS)
    assert half is not None
    assert len(half) == 500_000
    assert line.queued_bytes == 500_000
    assert line.take(1_049 * MS + MS - 1) is not None
    assert line.queued_bytes == 1
    assert line.take(1_050 * MS) is not None
    assert line.queued_bytes == 0


def test_an_end_of_file_travels_like_a_byte() -> None:
    line = DelayLine(Line(Shape(delay_s=0.01)))
    line.push(0, b"last")
    line.push(5 * MS, b"")
    assert bytes(line.take(10 * MS) or b"") == b"last"
    assert line.take(15 * MS - 1) is None
    assert not line.ended
    assert line.take(15 * MS) is None
    assert line.ended


def test_without_delay_and_width_everything_is_due_at_once() -> None:
    line = DelayLine(Line(Shape()))
    line.push(7, b"now")
    assert line.next_ns() == 7
    assert bytes(line.take(7) or b"") == b"now"


def test_the_queue_holds_what_is_under_way_and_is_bounded() -> None:
    assert Shape().queue_bytes == MOST_QUEUE_BYTES
    assert Shape(0.0, 1_000).queue_bytes == LEAST_QUEUE_BYTES
    assert Shape(0.1, 10_000_000).queue_bytes == 2_000_000
    assert Shape(60.0, 1_000_000_000).queue_bytes == MOST_QUEUE_BYTES


# ---- one line, several connections -------------------------------------------------------------

lanes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5 * MS), st.integers(1, 5000)), max_size=30
)
"""Which lane, ns since the one before, and how many bytes."""


@given(came=lanes, shape=shapes)
def test_lanes_share_the_line_and_each_has_the_delay(
    came: list[tuple[int, int, int]], shape: Shape
) -> None:
    line = Line(shape)
    under_way = [DelayLine(line) for _ in range(4)]
    delay_ns = round(shape.delay_s * 1e9)
    now_ns = 0
    for lane, after_ns, count in came:
        now_ns += after_ns
        under_way[lane].push(now_ns, bytes(count))
    # Looked at whenever any lane has something: of all lanes together no more has come out than
    # the line can have carried since the first byte came, and all of it in the end.
    first_ns = next((after_ns for _, after_ns, _ in came), 0)
    out = 0
    while dues := [due_ns for each in under_way if (due_ns := each.next_ns()) is not None]:
        at_ns = min(dues)
        for each in under_way:
            while (data := each.take(at_ns)) is not None:
                out += len(data)
        if shape.bytes_per_s is not None:
            assert out <= max(0, at_ns - delay_ns - first_ns) * shape.bytes_per_s // 10**9
        assert not out or at_ns >= first_ns + delay_ns
    assert out == sum(count for _, _, count in came)


def test_a_lane_that_waits_behind_another_waits_its_bytes() -> None:
    line = Line(Shape(delay_s=0.05, bytes_per_s=1_000_000))
    first, second = DelayLine(line), DelayLine(line)
    first.push(0, bytes(100_000))
    second.push(0, b"behind")
    assert second.next_ns() == (100 + 50) * MS + 6_000
    assert second.take(150 * MS) is None
    assert bytes(second.take(151 * MS) or b"") == b"behind"


def test_a_lane_whose_receiver_does_not_read_takes_nothing_from_the_others() -> None:
    line = Line(Shape(bytes_per_s=1_000_000))
    stuck, other = DelayLine(line), DelayLine(line)
    stuck.push(0, bytes(300_000))
    assert not stuck.has_room(0)
    # Nobody takes it out, yet it has passed the line after 0.3 s.
    other.push(1_000 * MS, b"on time")
    assert bytes(other.take(1_001 * MS) or b"") == b"on time"
    assert not stuck.has_room(1_000 * MS)  # it keeps what it has, and gets no more


def test_lanes_that_fill_a_line_together_are_held_together_but_take_turns() -> None:
    line = Line(Shape(bytes_per_s=1_000_000))
    one, other = DelayLine(line), DelayLine(line)
    assert one.has_room(0)
    one.push(0, bytes(90_000))
    assert one.has_room(0)
    other.push(0, bytes(90_000))
    assert not one.has_room(0)
    assert not other.has_room(0)
    assert DelayLine(line).has_room(0)  # a third one, that has nothing there yet, once
    assert line.room_ns == 80 * MS  # then 0.1 s of bytes wait
    assert one.has_room(80 * MS)


def test_each_pair_and_each_direction_has_its_own_line() -> None:
    far, narrow, back = Shape(0.2), Shape(0.0, 1_000), Shape(0.1, 500)
    default = Shape(0.001)
    lines = Lines(Shapes(default, {("a", "b"): far, ("c", "a"): narrow, ("a", "c"): back}), "abcd")

    def seen(caller: str, node: str) -> tuple[Shape, Shape]:
        there, home = lines.between(caller, node)
        return there.shape, home.shape

    assert seen("a", "b") == (far, default)
    assert seen("b", "a") == (default, far)
    assert seen("c", "a") == (narrow, back)
    assert seen("b", "d") == (default, default)
    assert seen("stranger", "a") == seen("", "a") == (default, default)
    # Lanes, and a link that the other node dials, are on the same lines; strangers never.
    assert lines.between("a", "b") == lines.between("a", "b") == lines.between("b", "a")[::-1]
    assert lines.between("b", "d")[0] is not lines.between("a", "d")[0]
    assert lines.between("x", "a")[0] is not lines.between("x", "a")[0]


def test_a_full_pair_holds_nobody_else() -> None:
    lines = Lines(Shapes(Shape(bytes_per_s=1_000)), "abc")
    busy, idle = (DelayLine(lines.between(caller, "c")[0]) for caller in "ab")
    busy.push(0, bytes(1_000_000))
    idle.push(0, b"x")
    assert idle.has_room(0)
    assert idle.next_ns() == MS


def test_lines_that_do_nothing() -> None:
    assert Shapes().plain
    assert Shapes(Shape(), {("a", "b"): Shape()}).plain
    assert not Shapes(Shape(0.1)).plain
    assert not Shapes(Shape(), {("a", "b"): Shape(0.0, 1)}).plain
