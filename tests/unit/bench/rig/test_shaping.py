"""The delay line on a virtual clock: nothing early, nothing changed, never too fast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.bench.rig.shaping import LEAST_QUEUE_BYTES, MOST_QUEUE_BYTES, DelayLine, Shape

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
    line = DelayLine(shape)
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
    for at_ns, data in run(DelayLine(shape), came):
        for due_ns in earliest[position : position + len(data)]:
            assert at_ns >= due_ns
        # and no later than a piece of a millisecond after its last byte could have come
        assert at_ns <= earliest[position + len(data) - 1] + MS
        position += len(data)


def test_a_megabyte_at_a_megabyte_a_second_takes_a_second() -> None:
    line = DelayLine(Shape(delay_s=0.05, bytes_per_s=1_000_000))
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
    line = DelayLine(Shape(delay_s=0.01))
    line.push(0, b"last")
    line.push(5 * MS, b"")
    assert bytes(line.take(10 * MS) or b"") == b"last"
    assert line.take(15 * MS - 1) is None
    assert not line.ended
    assert line.take(15 * MS) is None
    assert line.ended


def test_without_delay_and_width_everything_is_due_at_once() -> None:
    line = DelayLine(Shape())
    line.push(7, b"now")
    assert line.next_ns() == 7
    assert bytes(line.take(7) or b"") == b"now"


def test_the_queue_holds_what_is_under_way_and_is_bounded() -> None:
    assert Shape().queue_bytes == MOST_QUEUE_BYTES
    assert Shape(0.0, 1_000).queue_bytes == LEAST_QUEUE_BYTES
    assert Shape(0.1, 10_000_000).queue_bytes == 2_000_000
    assert Shape(60.0, 1_000_000_000).queue_bytes == MOST_QUEUE_BYTES
